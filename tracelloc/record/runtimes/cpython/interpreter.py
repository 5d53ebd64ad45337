"""CPython in a process: the version, where frames are, and which functions they belong to.

3.11 and 3.12 have their structures at known offsets (Include/internal of those versions). From
3.13 on, ``_PyRuntime`` itself contains the offsets (``_Py_DebugOffsets``, pycore_runtime.h and,
from 3.14 on, pycore_debug_offsets.h). Every build exports ``_PyRuntime``, even stripped ones.
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
_SMALL_LOOP_BYTES: Final = 8 << 10  # A smaller function only jumps to one for each instruction
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

    interpreter: int  # In `_PyRuntime`: the main interpreter's; the newest precedes it
    probes: Mapping[str, int]  # By `abi.PYTHON_OFFSETS`
    code: CodeLayout
    locals: int  # In a frame: its local variables
    collector: tuple[int, int] | None = None  # In an interpreter: is it on, first threshold


@dataclass(frozen=True, slots=True)
class Version:
    """What is known of a version of CPython. With neither layout nor places, nothing is read."""

    layout: PythonLayout | None = None
    places: Mapping[str, int] | None = None  # Words of `_Py_DebugOffsets` that have the offsets
    collector: tuple[int, int] | None = None  # As in `PythonLayout`, in the collector's state
    has_base_frames: bool = False  # Whether a frame of nothing is the outermost of each thread
    has_objects: bool = True  # Whether objects are counted, too


def _places(collector: int, thread: int, thread_id: int, frame: int, code: int) -> dict[str, int]:
    """Returns the words of ``_Py_DebugOffsets``, by where some of its parts begin."""
    return {
        "interpreters": 5, "threads": 9, "collector": collector,
        "next": thread, "frame": thread + 2, "thread_id": thread_id,
        "previous": frame, "code": frame + 1, "instruction": frame + 2, "locals": frame + 3,
        "entry": frame + 4, "file": code, "name": code + 2, "lines": code + 3,
        "first_line": code + 4, "instructions": code + 8,
    }  # fmt: skip


_CODE: Final = CodeLayout(112, 128, 136, 68, 192, 40, 56)
_SHIMS: Final = {"has_inner": 0, "inner": 0, "least_entry": 3, "has_shims": 1, "has_no_versions": 0}
# All versions that are known, by the minor number and whether the build has the GIL.
VERSIONS: Final[Mapping[tuple[int, bool], Version]] = {
    (9, True): Version(has_objects=False),
    (10, True): Version(has_objects=False),
    (11, True): Version(
        PythonLayout(
            48,
            {
                "threads": 16, "next": 8, "thread_id": 160, "frame": 56, "has_inner": 1,
                "inner": 8, "code": 32, "previous": 48, "instruction": 56, "entry": 68,
                "least_entry": 1, "has_shims": 0, "has_no_versions": 1,
                "head": 0,
            },
            replace(
                _CODE, first_line=72, instructions=184, ascii_bytes=48, compact_bytes=72,
                has_versions=False,
            ),
            72,
        )
    ),
    (12, True): Version(
        PythonLayout(
            48,
            {
                "threads": 72, "next": 8, "thread_id": 144, "frame": 56, "has_inner": 1,
                "inner": 0, "code": 0, "previous": 8, "instruction": 56, "entry": 70,
                "least_entry": 3, "has_shims": 1, "has_no_versions": 0, "head": 0,
            },
            _CODE,
            72,
        )
    ),
    (13, True): Version(places=_places(10, 21, 25, 29, 35)),
    (14, True): Version(places=_places(11, 24, 28, 32, 40), collector=(12, 40)),
    (15, True): Version(
        places=_places(11, 24, 31, 40, 48), collector=(0, 24), has_base_frames=True
    ),
    (13, False): Version(places=_places(10, 21, 25, 29, 35), has_objects=False),
    (14, False): Version(has_objects=False),
    (15, False): Version(has_objects=False),
}  # fmt: skip
_OLDEST_READ: Final = 11
_LONGER_HEAD: Final = 16  # Bytes that objects have more at their beginning without the GIL
_OFFSETS_FROM: Final = 13  # The first version that contains the offsets


class CPython:
    """CPython in one process, for one executed program."""

    has_gil = True
    known: Version

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
        if self.version[1] < _OLDEST_READ:
            return "Python 3.10 or older"
        without = "" if self.has_gil else " without the GIL"
        return f"Python {self.version[0]}.{self.version[1]}{without}"

    def publish(self, words: SpaceControl) -> None:
        place = self.address + self.layout.interpreter
        words.set_python(place, other_pid_namespace(self._process) or (0, 0), self.layout.probes)

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
        if found and not found[-1] and self.known.has_base_frames:
            found.pop()
        return found

    def note_names(self, words: Sequence[int]) -> None:
        self.codes.note_copy(words)

    def share_names(self, parent: Self) -> None:
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
        image = self.read(self.address + self.layout.interpreter - 8, 16)
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

    def word(self, address: int) -> int:
        """Reads the word at an address; 0 if it can't be read."""
        image = self.read(address, 8)
        return int.from_bytes(image, "little") if len(image) == 8 else 0

    def _find_version(self) -> tuple[int, int]:
        at = self._space.object(self._module, "Py_Version")
        if at is None:
            return 3, _OLDEST_READ - 1
        image = self.read(at, 8)
        if len(image) < 8:
            raise UnsupportedRuntime("Python of a version that can't be read")
        number: int = struct.unpack("<Q", image)[0]
        return number >> 24 & 0xFF, number >> 16 & 0xFF

    def _find_layout(self) -> PythonLayout:
        words: Sequence[int] = ()
        if self.version >= (3, _OFFSETS_FROM):
            image = self.read(self.address, 8 * _WORDS)
            if len(image) < 8 * _WORDS or not image.startswith(_COOKIE):
                raise UnsupportedRuntime(f"{self.title} without its table of offsets")
            words = struct.unpack(f"<{_WORDS}Q", image)
            self.has_gil = not words[2]
        if self.version > max((3, minor) for minor, _ in VERSIONS):
            newer = UnsupportedRuntime if self.has_gil else UncountedPython
            raise newer("this Python is newer than this tracelloc")
        self.known = VERSIONS[self.version[1], self.has_gil]
        if self.known.layout is not None:
            return self.known.layout
        if self.known.places is None:
            raise UncountedPython(self.title)
        return self._layout({name: words[place] for name, place in self.known.places.items()})

    def _layout(self, offsets: dict[str, int]) -> PythonLayout:
        if max(offsets.values()) >= _OFFSETS_LIMIT or any(
            offsets[name] > most for most, names in _MOST_OFFSETS.items() for name in names
        ):
            raise UnsupportedRuntime(f"{self.title} with a table of offsets that is damaged")
        head = 0 if self.has_gil else _LONGER_HEAD
        file, name, lines, first_line, instructions = (
            offsets.pop(field) - head
            for field in ("file", "name", "lines", "first_line", "instructions")
        )
        code = replace(
            _CODE, file=file, name=name, lines=lines, first_line=first_line,
            instructions=instructions, head=head,
        )  # fmt: skip
        interpreter = offsets.pop("interpreters") + 8
        local, state = offsets.pop("locals"), offsets.pop("collector")
        collector = self.known.collector and (
            state + self.known.collector[0],
            state + self.known.collector[1],
        )
        return PythonLayout(interpreter, offsets | _SHIMS | {"head": head}, code, local, collector)


def find_cpython(space: AddressSpace) -> CPython | None:
    """Finds CPython among a process's mapped files; None without. Raises UnsupportedRuntime."""
    for module in space.mapped_modules:
        if module.path == space.executable or is_python_name(base_name(module.path)):
            runtime = space.object(module, "_PyRuntime")
            if runtime is not None:
                return CPython(space, module, runtime)
    return None
