"""The table of CPython's versions, compared with offsets that each version publishes."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tracelloc.record.runtimes.cpython.interpreter import VERSIONS, CPython, UnsupportedRuntime
from tracelloc.record.runtimes.supported import find_runtime

RUNTIME, VERSION = 0x10000, 0x20000
# The words of `_Py_DebugOffsets` of 3.13.0, of 3.13.5 without the GIL, and of Debian's 3.14.10 and
# 3.15.2, from the third one on, which is 1 without the GIL.
TABLES = {
    (13, True): (
        0, 283320, 608, 632, 194968, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768,
        7760, 304, 0, 8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 208, 112, 120, 128, 136,
        68, 52, 96, 104, 200,
    ),
    (13, False): (
        1, 328320, 608, 632, 215616, 7272, 7264, 7344, 7400, 7664, 7648, 7656, 16, 7760, 0, 7784,
        7776, 304, 0, 8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 224, 128, 136, 144, 152,
        84, 68, 112, 120, 216,
    ),
    (14, True): (
        0, 316616, 784, 808, 225864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784, 0,
        7800, 7792, 7992, 0, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 74, 64, 0,
        216, 112, 120, 128, 136, 68, 52, 96, 104, 208,
    ),
    (14, False): (1,),
    (15, True): (
        0, 346568, 912, 936, 226240, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16, 7736, 0,
        7752, 7744, 7944, 0, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40, 136, 288, 0,
        88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208,
    ),
    (15, False): (1,),
    (16, True): (0,),
    (16, False): (1,),
}  # fmt: skip
NEWER = "this Python is newer than this tracelloc: C frames only"
# Why there are no frames of Python; or where the newest interpreter's address is, an interpreter's
# threads and whether it collects, a thread's id and frame, a frame's kind and variables, and what
# the first line and the instructions of code lie at, whose names are at the same place in all.
EXPECTED = {
    (9, True): "Python 3.10 or older: C frames only",
    (10, True): "Python 3.10 or older: C frames only",
    (11, True): (48, 16, None, 160, 56, 68, 72, 72, 184),
    (12, True): (48, 72, None, 144, 56, 70, 72, 68, 192),
    (13, True): (640, 7344, None, 160, 72, 70, 72, 68, 200),
    (13, False): (640, 7344, None, 160, 72, 70, 72, 68, 200),
    (14, True): (816, 7344, (7420, 7448), 160, 72, 74, 80, 68, 208),
    (14, False): "Python 3.14 without the GIL: C frames only",
    (15, True): (944, 7336, (7400, 7424), 184, 72, 74, 80, 68, 208),
    (15, False): "Python 3.15 without the GIL: C frames only",
    (16, True): NEWER,
    (16, False): NEWER,
}  # fmt: skip


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch, row: tuple[int, bool]) -> Any:
    """A process with a version of CPython, as far as its layout is asked for."""
    words = TABLES.get(row, ())
    table = struct.pack("<8s89Q", b"xdebugpy", 0, *words, *[0] * (88 - len(words)))
    images = {RUNTIME: table, VERSION: struct.pack("<Q", 3 << 24 | row[0] << 16)}
    monkeypatch.setattr(CPython, "read", lambda _, address, size: images[address][:size])
    addresses = {"_PyRuntime": RUNTIME} | ({"Py_Version": VERSION} if row[0] > 10 else {})
    module = SimpleNamespace(path="/usr/bin/python3", elf=SimpleNamespace(parts=lambda _: []))
    return SimpleNamespace(
        process=None, executable=module.path, mapped_modules=[module],
        object=lambda _, name: addresses.get(name),
    )  # fmt: skip


@pytest.mark.parametrize("row", EXPECTED)
def test_each_version_is_read_or_says_why_not(space: Any, row: tuple[int, bool]) -> None:
    expected = EXPECTED[row]
    assert EXPECTED.keys() - VERSIONS.keys() == {(16, True), (16, False)}
    if isinstance(expected, str):
        with pytest.raises(UnsupportedRuntime) as raised:
            find_runtime(space)
        assert str(raised.value) == expected
        return
    python = find_runtime(space)
    assert isinstance(python, CPython)
    layout, at, code = python.layout, python.layout.probes, python.layout.code
    assert expected == (
        layout.interpreter, at["threads"], layout.collector, at["thread_id"], at["frame"],
        at["entry"], layout.locals, code.first_line, code.instructions,
    )  # fmt: skip
    # What the probes take for given, in all versions.
    assert (code.file, code.name, code.lines) == (112, 128, 136)
    assert (code.head, at["head"]) == ((0, 0) if row[1] else (16, 16))
    assert (at["next"], python.known.has_objects) == (8, row[1])
    assert python.title == f"Python 3.{row[0]}{'' if row[1] else ' without the GIL'}"


@pytest.mark.parametrize("row", [(14, True), (15, True)])
def test_the_outermost_frame_of_nothing_is_no_group(space: Any, row: tuple[int, bool]) -> None:
    """From 3.15 on, each thread has one; before, such a frame is one of the loop's."""
    python = find_runtime(space)
    assert python is not None
    assert python.groups((1, 0, 1, 0)) == [[]] * (1 if row == (15, True) else 2)
