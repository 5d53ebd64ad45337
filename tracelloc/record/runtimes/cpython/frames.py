"""Running functions of a Python program, and where their local variables are."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import U64
from tracelloc.model.frames import RuntimeFrame
from tracelloc.record.runtimes.cpython.interpreter import CPython

_MOST_THREADS: Final = 4096
_MOST_FRAMES: Final = 1000  # Most frames of one thread that are read
_MOST_FRAMES_OF_ALL: Final = 1 << 16
_MOST_LOCALS: Final = 1 << 12
_NAMES_AT: Final = 96  # In a code object: the names of variables (`co_localsplusnames`)
_FRAME_BYTES: Final = 80
_DICTIONARY_AT: Final = -32
# In a thread's record, from `dict` before its native id to the last possible end of `context` (64
# bytes behind the id up to 3.12, 48 later).
_LOCALS_BYTES: Final = 104


_MOST_INTERPRETER_BYTES: Final = 1 << 14
_GENERATIONS_BYTES: Final = 3 * 24
_ENABLED_AT, _THRESHOLD_AT = -12, 16  # From the generations on: is it on; first threshold
_PADDING_BYTES: Final = 0, 4  # Behind the generations; Debian 13's Python has it at 4 bytes


@dataclass(frozen=True, slots=True)
class RunningFrame:
    """A frame of a running Python function."""

    code: FrameCode
    locals_address: int  # Where the variables are, followed by temporaries (evaluation stack)

    @property
    def size_bytes(self) -> int:
        return 8 * (self.code.variables + self.code.temporaries)


class FrameCode(NamedTuple):
    """The layout of a function's frames, by its code object."""

    function: RuntimeFrame
    variables: int  # Number of local variables
    temporaries: int  # Most values on the evaluation stack; those above the current are stale
    names_address: int  # Address of the tuple of the variables' names


class FrameCodes:
    """Layouts of frames by the addresses of their code objects, each read once."""

    def __init__(self, python: CPython) -> None:
        self._python = python
        self.is_old = not python.layout.probes["has_shims"]
        self._counts_at = 76 if self.is_old else 72
        self._known: dict[int, FrameCode] = {}

    def look_up(self, code: int) -> FrameCode:
        known = self._known.get(code)
        if known is None:
            image = self._python.read(code, 256)
            variables = temporaries = names = 0
            if len(image) == 256:
                temporaries, _, variables = struct.unpack_from("<3i", image, self._counts_at - 8)
                (names,) = struct.unpack_from("<Q", image, _NAMES_AT)
            known = self._known[code] = FrameCode(
                self._python.codes.function(code),
                variables if 0 <= variables <= _MOST_LOCALS else 0,
                temporaries if 0 <= temporaries <= _MOST_LOCALS else 0,
                names,
            )
        return known


def thread_states(python: CPython) -> list[int]:
    """Returns the addresses of all threads' records (``PyThreadState``)."""
    found: list[int] = []
    at = python.layout.probes
    thread = python.word(_interpreter(python) + at["threads"])
    while thread and len(found) < _MOST_THREADS:
        found.append(thread)
        thread = python.word(thread + at["next"])
    return found


def running_frames(python: CPython, codes: FrameCodes) -> list[RunningFrame]:
    """Returns the frames of all threads, innermost first; leaves out unreadable ones."""
    found: list[RunningFrame] = []
    at = python.layout.probes
    for thread in thread_states(python):
        frame = python.word(thread + at["frame"])
        if at["has_inner"]:
            frame = python.word(frame + at["inner"])
        for _ in range(min(_MOST_FRAMES, _MOST_FRAMES_OF_ALL - len(found))):
            image = python.read(frame, _FRAME_BYTES)
            if len(image) < _FRAME_BYTES:
                break
            if not (image[at["entry"]] >= at["least_entry"] and at["has_shims"]):
                (code,) = struct.unpack_from("<Q", image, at["code"])
                known = codes.look_up(code & ~7)
                if known.function.function is not None:
                    found.append(RunningFrame(known, frame + python.layout.locals))
            (frame,) = struct.unpack_from("<Q", image, at["previous"])
            if not frame:
                break
    return found


@dataclass(frozen=True, slots=True)
class ThreadLocals:
    """The roots of the objects that belong to one thread."""

    thread_id: int
    dictionary: int  # Of the dictionary with its part of each `threading.local`, or 0
    others: tuple[int, ...]  # Candidates for the current context's address (`contextvars`)


def thread_locals(python: CPython) -> list[ThreadLocals]:
    """Returns the roots of each thread's own objects."""
    id_at = python.layout.probes["thread_id"]
    found = []
    for thread in thread_states(python):
        image = python.read(thread + id_at + _DICTIONARY_AT, _LOCALS_BYTES)
        if len(image) == _LOCALS_BYTES:
            words = struct.unpack(f"<{_LOCALS_BYTES // 8}Q", image)
            found.append(ThreadLocals(words[-_DICTIONARY_AT // 8], words[0], words[5:]))
    return found


def interpreter_words(python: CPython, most_bytes: int) -> U64:
    """Reads the beginning of the main interpreter's record (``PyInterpreterState``), in words."""
    image = python.read(_interpreter(python), most_bytes)
    return np.frombuffer(image[: len(image) & ~7], np.uint64)


def is_collecting(python: CPython) -> bool | None:
    """Whether Python's garbage collector runs by itself (see ``gc.enable``); None if unknown.

    The collector's state contains the generations and, behind them, a pointer to the first one. By
    that pointer, the state is found in the interpreter's record (``_gc_runtime_state`` in
    pycore_gc.h). From 3.14 on, the table of offsets says where it is.
    """
    if (places := python.layout.collector) is not None:
        images = [python.read(_interpreter(python) + place, 4) for place in places]
        enabled, threshold = (int.from_bytes(image, "little") for image in images)
        return bool(enabled and threshold) if enabled in (0, 1) else None
    words = interpreter_words(python, _MOST_INTERPRETER_BYTES)
    image = words.tobytes()
    first = np.uint64(_interpreter(python)) + 8 * np.arange(len(words), dtype=np.uint64)
    for padding in _PADDING_BYTES:
        (found,) = np.nonzero(words == first - np.uint64(_GENERATIONS_BYTES + padding))
        for at in (8 * found - _GENERATIONS_BYTES - padding).tolist():
            if at >= -_ENABLED_AT:
                (enabled,) = struct.unpack_from("<i", image, at + _ENABLED_AT + padding)
                (threshold,) = struct.unpack_from("<i", image, at + _THRESHOLD_AT)
                if enabled in (0, 1):
                    return bool(enabled and threshold)
    return None


def _interpreter(python: CPython) -> int:
    return python.word(python.address + python.layout.interpreter)
