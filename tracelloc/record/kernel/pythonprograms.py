"""The programs that walk and name frames of Python, and those that they go back to."""

from __future__ import annotations

from typing import Final

from tracelloc.record.abi import PythonProgram
from tracelloc.record.kernel.programs import KPROBE, Programs
from tracelloc.record.mallocs.signatures import ALLOCATOR_PROGRAM, MAPPING_PROGRAM

WALKER: Final = "walk_python"
NAMER: Final = "name_python_frames"
"""In ``probes/python.bpf.c``."""
_CALLERS: Final = {
    ALLOCATOR_PROGRAM: PythonProgram.ALLOCATOR,
    MAPPING_PROGRAM: PythonProgram.MAPPING,
}


def connect_walker(programs: Programs, name: str, attach_type: int) -> None:
    """Has a program that is loaded get frames of Python, if it is one that captures stacks.

    Programs call only those of their own attach type: each type has its walker. Raises
    UnsupportedError.
    """
    number = _CALLERS.get(name.partition("/")[0])
    if number is None:
        return
    for own, place in ((WALKER, PythonProgram.WALKER), (NAMER, PythonProgram.NAMER)):
        loaded = f"{own}/{attach_type}"
        if loaded not in programs.loaded:
            programs.load(loaded, KPROBE, attach_type)
            programs.let_call(loaded, attach_type, place)
    programs.let_call(name, attach_type, number)
