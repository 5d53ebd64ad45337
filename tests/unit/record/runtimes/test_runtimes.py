"""Lines of Python's functions, and how their frames take the interpreter's place."""

from __future__ import annotations

import argparse
import asyncio.base_events
import itertools
import types
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from tests.unit.events import sent_stacks
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import SentStacks
from tracelloc.model.frames import FIRST_ADDRESS, RuntimeFrame, RuntimeFrames
from tracelloc.model.stacks import StackFlag
from tracelloc.record import abi
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes import stackmerger
from tracelloc.record.runtimes.cpython.codeobjects import LineTable
from tracelloc.record.runtimes.stackmerger import StackMerger

LOOP = 0x1000  # Addresses from here on, up to 0x1100, are in the loop


def codes(of: types.CodeType) -> Iterator[types.CodeType]:
    yield of
    for constant in of.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("module", [argparse, asyncio.base_events], ids=lambda m: m.__name__)
def test_lines_are_pythons_own(module: types.ModuleType) -> None:
    assert module.__file__
    with open(module.__file__) as file:
        whole = compile(file.read(), module.__file__, "exec")
    count = 0
    for code in codes(whole):
        table = LineTable(code.co_linetable, code.co_firstlineno)
        for start, end, line in code.co_lines():
            for offset in range(start, end, 2):
                assert table.line(offset) == line
                count += 1
        assert table.line(-2) == code.co_firstlineno
        assert table.line(len(code.co_code) + 2) is None
    assert count > 5000


class Interpreter:
    """A runtime with groups as they are written: each number below 100 is a line, 0 an entry."""

    def __init__(self, inner_frames: int = 0) -> None:
        self.inner_frames = inner_frames

    def publish(self, words: SpaceControl) -> None:
        pass

    def groups(self, words: Sequence[int]) -> list[list[RuntimeFrame]]:
        groups = (list(some) for is_line, some in itertools.groupby(words, bool) if is_line)
        return [[RuntimeFrame("f", "f.py", line) for line in some] for some in groups]

    def is_loop(self, address: int) -> bool:
        return LOOP <= address < LOOP + 0x100

    def trouble(self) -> str | None:
        return None


@pytest.fixture
def merger(monkeypatch: pytest.MonkeyPatch) -> Merger:
    runtime = Interpreter()
    monkeypatch.setattr(stackmerger, "find_runtime", lambda _: runtime)
    return Merger()


class Merger(StackMerger):
    """One whose process and stacks tests look at."""

    def __init__(self) -> None:
        self.space, self.stacks = AddressSpace(Process(1)), Stacks()
        super().__init__(self.space, self.stacks, SpaceControl(np.zeros(1, abi.SPACE_DTYPE), 0))
        self.look_for_runtime()


def sent(stack_id: int, code_id: int, *lines: int) -> SentStacks:
    return sent_stacks((stack_id, StackFlag.PYTHON, (code_id, 0, *lines)))


def stack(merger: Merger, stack_id: int) -> tuple[list[int | str], StackFlag]:
    stacks = merger.stacks
    index = stacks.ids.get(stack_id)
    frames = stacks.frames(index)
    find = merger.space.files.runtime_frames.find
    return [f":{f.line}" if (f := find(at)) else at for at in frames], stacks.flags(index)


@pytest.mark.parametrize(
    ("code", "lines", "expected"),
    [
        ((1, LOOP, 2, LOOP + 8, 3), (11, 12, 0, 13), [1, ":11", ":12", 2, ":13", 3]),
        # A thread without frames of Python.
        ((1, 2), (), [1, 2]),
        # A loop that has no frame yet, or of which it could not be read.
        ((1, LOOP, 2, LOOP, 3), (11,), [1, ":11", 2, LOOP, 3]),
        # A part of the loop that was not recognized.
        ((1, LOOP, 2, 5, 3), (11, 0, 12, 0, 13), [1, ":11", ":12", ":13", 2, 5, 3]),
        ((1, 2), (11,), [1, 2, ":11"]),
    ],
)
def test_frames_take_the_loops_place(
    merger: Merger, code: tuple[int, ...], lines: tuple[int, ...], expected: list[int | str]
) -> None:
    merger.note_code(5, code, StackFlag.CODE)
    merger.merge_sent(sent(6, 5, *lines))
    assert stack(merger, 6) == (expected, StackFlag(0))


def test_a_loop_that_jumps_to_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frame within it is one that it has jumped to."""
    monkeypatch.setattr(stackmerger, "find_runtime", lambda _: Interpreter(inner_frames=1))
    merger = Merger()
    merger.note_code(5, (1, 90, LOOP, 2, 91, LOOP, LOOP, 3), StackFlag(0))
    merger.merge_sent(sent(6, 5, 11, 0, 12, 0, 13))
    assert stack(merger, 6) == ([1, ":11", 2, ":12", ":13", 3], StackFlag(0))


def test_loops_and_later_code(merger: Merger) -> None:
    merger.merge_sent(sent(6, 5, 11))
    assert merger.stacks.ids.get(6) < 0
    merger.stacks.add(5, (1, LOOP), StackFlag.TRUNCATED)
    merger.settle()
    assert stack(merger, 6) == ([1, ":11"], StackFlag.TRUNCATED)
    frames = RuntimeFrames()
    one, other = RuntimeFrame("f", "a.py", 1, 1), RuntimeFrame("f", "a.py", 2, 1)
    assert frames.address(one) == frames.address(RuntimeFrame("f", "a.py", 1, 1))
    assert FIRST_ADDRESS < frames.address(one) != frames.address(other)
    assert frames.find(frames.address(other)) is other
    assert (frames.find(FIRST_ADDRESS), frames.find(frames.address(other) + 1)) == (None, None)


def test_code_that_never_comes(merger: Merger) -> None:
    """What Python says is kept, and said to be not all."""
    merger.merge_sent(sent(6, 5, 11, 12))
    for _ in range(stackmerger._MOST_LOOKS):
        merger.settle()
    assert stack(merger, 6) == ([":11", ":12"], StackFlag.LOST_MISS)
