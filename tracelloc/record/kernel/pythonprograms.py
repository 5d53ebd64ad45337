"""Connects programs that walk and name Python frames with the programs that call them."""

from __future__ import annotations

from typing import Final

from tracelloc.record.abi import PythonProgram
from tracelloc.record.kernel.programs import KPROBE, Programs
from tracelloc.record.mallocs.signatures import ALLOCATOR_PROGRAM, MAPPING_PROGRAM

WALKER: Final = "walk_python"
NAMER: Final = "name_python_frames"  # In `probes/python.bpf.c`
_CALLERS: Final = {
    ALLOCATOR_PROGRAM: PythonProgram.ALLOCATOR,
    MAPPING_PROGRAM: PythonProgram.MAPPING,
}


def connect_walker(programs: Programs, name: str, attach_type: int) -> None:
    """Lets a loaded program get Python frames, if it captures stacks.

    Programs can only call programs of their own attach type, so each type has its walker. Raises
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
