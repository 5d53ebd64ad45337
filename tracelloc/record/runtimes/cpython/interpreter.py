"""CPython in a process: the version, where frames are, and which functions they belong to.

3.11 and 3.12 have their structures at known offsets (Include/internal of those versions). From
3.13 on, ``_PyRuntime`` itself contains the offsets (``_Py_DebugOffsets``, pycore_runtime.h and, in
3.14, pycore_debug_offsets.h). Every build exports ``_PyRuntime``, even stripped ones.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Self

import numpy as np

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.codefiles import CodePlace, base_name
from tracelloc.model.frames import RuntimeFrame
from tracelloc.record.abi import PYTHON_ENTRY
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.process.identity import other_pid_namespace
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.codeobjects import CodeLayout, CodeObjects
from tracelloc.record.runtimes.known import is_python_name
from tracelloc.system.syscalls import read_process

_LOOP: Final = "_PyEval_EvalFrameDefault"
# A smaller function can't be the loop itself: it jumps to a function for each instruction.
_SMALL_LOOP_BYTES: Final = 8 << 10
_COOKIE: Final = b"xdebugpy"
_WORDS: Final = 90  # Words of `_Py_DebugOffsets` that are read
_OFFSETS_LIMIT: Final = 1 << 16
# Largest offsets of fields in the first 256 bytes of threads' records and code objects, and in the
# first 80 of frames.
_MOST_OFFSETS: Final = {
    248: ("next", "frame", "thread_id", "file", "name", "lines", "first_line", "locals"),
    79: ("entry",),
    72: ("previous", "code", "instruction"),
}


class UnsupportedRuntime(Exception):  # noqa: N818 - nothing fails for it
    """Raised if a process has an unsupported version of a runtime, which the message names."""


class UncountedPython(UnsupportedRuntime):
    """Raised for a version or build of CPython whose objects can't be counted, either."""


@dataclass(frozen=True, slots=True)
class PythonLayout:
    """Byte offsets of fields that the probes and tracelloc read in one version of CPython."""

    # In `_PyRuntime`: the main interpreter's address; the newest interpreter's precedes it.
    interpreter: int
    probes: Mapping[str, int]  # By `abi.PYTHON_OFFSETS`
    code: CodeLayout
    locals: int  # In a frame: its local variables


_CODE: Final = CodeLayout(112, 128, 136, 68, 192, 40, 56)
_LAYOUTS: Final = {
    (3, 11): PythonLayout(
        48,
        {
            "threads": 16, "next": 8, "thread_id": 160, "frame": 56, "has_inner": 1, "inner": 8,
            "code": 32, "previous": 48, "instruction": 56, "entry": 68, "least_entry": 1,
            "has_shims": 0, "has_no_versions": 1,
        },
        replace(
            _CODE, first_line=72, instructions=184, ascii_bytes=48, compact_bytes=72,
            has_versions=False,
        ),
        72,
    ),
    (3, 12): PythonLayout(
        48,
        {
            "threads": 72, "next": 8, "thread_id": 144, "frame": 56, "has_inner": 1, "inner": 0,
            "code": 0, "previous": 8, "instruction": 56, "entry": 70, "least_entry": 3,
            "has_shims": 1, "has_no_versions": 0,
        },
        _CODE,
        72,
    ),
}  # fmt: skip
# Word of `_Py_DebugOffsets` that has each offset.
_PLACES: Final = {
    (3, 13): {
        "interpreters": 5, "threads": 9, "next": 21, "frame": 23, "thread_id": 25, "previous": 29,
        "code": 30, "instruction": 31, "locals": 32, "entry": 33, "file": 35, "name": 37,
        "lines": 38, "first_line": 39, "instructions": 43,
    },
    (3, 14): {
        "interpreters": 5, "threads": 9, "next": 24, "frame": 26, "thread_id": 28, "previous": 32,
        "code": 33, "instruction": 34, "locals": 35, "entry": 36, "file": 40, "name": 42,
        "lines": 43, "first_line": 44, "instructions": 48,
    },
}  # fmt: skip
_SHIMS: Final = {"has_inner": 0, "inner": 0, "least_entry": 3, "has_shims": 1, "has_no_versions": 0}


class CPython:
    """CPython in one process, for one executed program."""

    def __init__(self, space: AddressSpace, module: Module, runtime: int) -> None:
        """``runtime``: address of ``_PyRuntime`` in the process. Raises UnsupportedRuntime."""
        self._space = space
        self._process = space.process
        self._module = module
        self.address = runtime
        self.version = self._find_version()
        self.layout = self._find_layout()
        code_type = space.object(module, "PyCode_Type")
        self.codes = CodeObjects(self.layout.code, code_type or 0, self.read)
        self._loop = module.elf.parts(_LOOP)
        self._is_loop: dict[int, bool] = {}

    @property
    def title(self) -> str:
        """The runtime's name and version, for display."""
        return f"Python {self.version[0]}.{self.version[1]}"

    def publish(self, words: SpaceControl) -> None:
        """Tells the probes where Python's frames are, by the process's control words."""
        place = self.address + self.layout.interpreter
        namespace = other_pid_namespace(self._process) or (0, 0)
        words.set_python(place, namespace, self.layout.probes)

    def groups(self, words: Sequence[int]) -> list[list[RuntimeFrame]]:
        """Names the frames that the probes have read (``struct python_stack``), innermost first."""
        found: list[list[RuntimeFrame]] = []
        group: list[RuntimeFrame] = []
        for code, reached in zip(words[::2], words[1::2], strict=True):
            if code != PYTHON_ENTRY:
                group.append(self.codes.frame(code & ~PYTHON_ENTRY, reached))
            if code & PYTHON_ENTRY:
                found.append(group)
                group = []
        if group:
            found.append(group)
        return found

    def note_names(self, words: Sequence[int]) -> None:
        """Stores a record of names from the probes (``struct python_code``)."""
        self.codes.note_copy(words)

    def share_names(self, parent: Self) -> None:
        """Shares the names of the process from which this one was forked."""
        self.codes.share_names(parent.codes)

    def is_loop(self, address: int) -> bool:
        """Whether a return address is in the interpreter's loop, whose frames are replaced."""
        known = self._is_loop.get(address)
        if known is None:
            place = self._space.place(address - 1, stored=True)
            inside = None
            if isinstance(place, CodePlace) and place.module is self._module:
                inside = self._module.elf.address_of(place.file_offset)
            known = inside is not None and any(inside in part for part in self._loop)
            self._is_loop[address] = known
        return known

    @property
    def inner_frames(self) -> int:
        """Number of frames directly inside a frame of the loop to drop with it."""
        return int(sum(map(len, self._loop)) < _SMALL_LOOP_BYTES)

    def trouble(self) -> str | None:
        """Returns why some Python frames can't be followed now, for display; None if all can."""
        at = self.address + self.layout.interpreter
        image = self.read(at - 8, 16)
        if len(image) == 16 and image[:8] != image[8:]:
            return "stacks of its sub-interpreters have no frames of Python"
        return None

    def read(self, address: int, size_bytes: int) -> bytes:
        """Reads up to ``size_bytes`` bytes at an address: those that can be read."""
        into = np.empty(-(-size_bytes // 8), np.uint64)
        pieces = np.array([[address & (1 << 64) - 1, size_bytes]], np.uint64)
        try:
            count = read_process(self._process.pid, pieces, into)
        except OSError:
            return b""
        return into.tobytes()[:count]

    def _find_version(self) -> tuple[int, int]:
        at = self._space.object(self._module, "Py_Version")
        image = self.read(at, 8) if at is not None else b""
        if at is None:
            raise UncountedPython("Python 3.10 or older")
        if len(image) < 8:
            raise UnsupportedRuntime("Python of a version that can't be read")
        number: int = struct.unpack("<Q", image)[0]
        return number >> 24 & 0xFF, number >> 16 & 0xFF

    def _find_layout(self) -> PythonLayout:
        known = _LAYOUTS.get(self.version)
        if known is not None:
            return known
        places = _PLACES.get(self.version)
        if places is None:
            raise UnsupportedRuntime(f"{self.title}, which is not known yet")
        image = self.read(self.address, 8 * _WORDS)
        if len(image) < 8 * _WORDS or not image.startswith(_COOKIE):
            raise UnsupportedRuntime(f"{self.title} without its table of offsets")
        words = struct.unpack(f"<{_WORDS}Q", image)
        if words[2]:
            raise UncountedPython(f"{self.title} without the GIL")
        offsets = {name: words[place] for name, place in places.items()}
        if max(offsets.values()) >= _OFFSETS_LIMIT or any(
            offsets[name] > most for most, names in _MOST_OFFSETS.items() for name in names
        ):
            raise UnsupportedRuntime(f"{self.title} with a table of offsets that is damaged")
        code = replace(
            _CODE,
            **{name: offsets.pop(name) for name in ("file", "name", "lines", "first_line",
                                                    "instructions")},
        )  # fmt: skip
        interpreter = offsets.pop("interpreters") + 8
        first_local = offsets.pop("locals")
        return PythonLayout(interpreter, offsets | _SHIMS, code, first_local)


def find_cpython(space: AddressSpace) -> CPython | None:
    """Finds CPython among a process's mapped files; None without. Raises UnsupportedRuntime."""
    for module in space.mapped_modules:
        if module.path == space.executable or is_python_name(base_name(module.path)):
            runtime = space.object(module, "_PyRuntime")
            if runtime is not None:
                return CPython(space, module, runtime)
    return None
