"""The blocks that a program leaked, by call stack with file and line, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tracelloc.model.exitleaks import ExitLeaks, LeakedStack
from tracelloc.model.frames import Frame
from tracelloc.model.heapusage import BlockSum
from tracelloc.model.process import Target
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.blockholders import missing_lines
from tracelloc.show.presentation.calltree import shown_lines
from tracelloc.show.presentation.naming import frame_name
from tracelloc.text import format_size, plural, printable

_MISSING: Final = (
    "",
    "there may be more leaks: {}",
    "{}: blocks that only they point to count as leaked",
)


@dataclass(frozen=True, slots=True)
class NamedLeak:
    """Leaked blocks and the names of their call stack."""

    leak: LeakedStack
    stack: NamedStack

    @property
    def frame(self) -> Frame | None:
        """The innermost shown frame with a source line, else the innermost one; None: no stack."""
        shown = [part.frame for part in self.stack.parts() if part.frame is not None]
        with_line = (frame for frame in shown if frame.file is not None and frame.line is not None)
        return next(with_line, shown[0] if shown else None)

    @property
    def sentence(self) -> str:
        """One line, safe to print: ``40 bytes in 2 blocks leaked, allocated in f``."""
        direct, indirect = self.leak.direct, self.leak.indirect
        if not direct.count:
            text = f"{_amount(indirect)} leaked, to which only leaked blocks point"
        elif indirect.count:
            text = f"{_amount(direct)} leaked, and {_amount(indirect)} to which only these point"
        else:
            text = f"{_amount(direct)} leaked"
        frame = self.frame
        return f"{text}, allocated in {printable(frame_name(frame))}" if frame else text


def joined_leaks(leaks: Iterable[NamedLeak]) -> list[NamedLeak]:
    """Joins the leaks of call stacks with the same functions and lines; most bytes first."""
    found: dict[tuple[object, ...], NamedLeak] = {}
    for one in leaks:
        lines = tuple((frame_name(frame), frame.file, frame.line) for frame in one.stack.frames)
        # What a program lost comes before what it lost with that.
        key = (bool(one.leak.direct.count), *lines)
        same = found.get(key, one)
        if same is not one:
            same = NamedLeak(same.leak + one.leak, same.stack)
        found[key] = same
    return sorted(
        found.values(),
        key=lambda one: (not one.leak.direct.count, -one.leak.blocks.size_bytes, one.leak.stack),
    )


@dataclass(frozen=True, slots=True)
class LeakReport:
    """The result of a leak check, with names."""

    target: Target
    found: ExitLeaks
    leaks: Sequence[NamedLeak]
    suppressed: BlockSum = field(default_factory=BlockSum)  # Leaked blocks that suppressions hide

    @property
    def total(self) -> BlockSum:
        """All leaked blocks that are not suppressed."""
        return sum((one.leak.blocks for one in self.leaks), BlockSum())


def leak_report_lines(report: LeakReport, top: int) -> Iterator[str]:
    """A report's lines. ``top``: call stacks to list."""
    who = f"{printable(report.target.command)} ({report.target.pid})"
    lost = f"leaked {_amount(report.total)}" if report.leaks else "no leaks"
    yield f"==> {who}: {lost}, of {_amount(report.found.in_use)} in use at its end"
    for one in report.leaks[:top]:
        yield f"{one.sentence}:"
        yield from shown_lines(one.stack, 4)
    if rest := report.leaks[top:]:
        others = sum((one.leak.blocks for one in rest), BlockSum())
        yield f"{_amount(others)} of {plural(len(rest), 'more call stack')} leaked"
    if report.suppressed.count:
        yield f"{_amount(report.suppressed)} suppressed"
    gaps = report.found.pointers_left_out, report.found.swapped_bytes
    yield from missing_lines(_MISSING, 1.0, (), *gaps)


def _amount(blocks: BlockSum) -> str:
    size = blocks.size_bytes
    text = plural(size, "byte") if size < 1024 else format_size(size)
    return f"{text} in {plural(blocks.count, 'block')}"
