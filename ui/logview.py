"""The view of the log: what is attached, what was counted, what was said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from tracelloc.target.found import unseen_lines
from tracelloc.text import printable
from tracelloc.ui.header import target_name
from tracelloc.ui.lines import LineView, Piece
from tracelloc.ui.table import clock, short_count
from tracelloc.ui.view import Facts, Selection, View
from tracelloc.units import format_size, plural
from tracelloc.views.losslines import losses_line, overhead_line
from tracelloc.views.memory import memory_lines


class TextLines(LineView[Sequence[str]]):
    """Shows lines that are harmless already."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._lines: Sequence[str] = ()
        self._folded: list[str] = []

    def show(self, content: Sequence[str], *, at_once: bool = False) -> None:
        """Replaces the lines; nothing moves but what is new."""
        self._lines = content
        self.rows_changed()

    def rows_changed(self) -> None:
        """Folds what is too long."""
        width = max(self.width, 1)
        self._folded = []
        for line in self._lines:
            if cell_len(line) <= width:
                self._folded.append(line)
            else:
                parts = Text(line).wrap(self.app.console, width)
                self._folded += [part.plain for part in parts]
        super().rows_changed()

    def row_count(self) -> int:
        """Lines on the screen."""
        return len(self._folded)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """One line."""
        yield self._folded[row], None


def log_lines(selection: Selection, facts: Facts) -> Iterator[str]:
    """All lines: the standing figures, then messages, the oldest first."""
    snapshot = selection.snapshot
    totals = snapshot.totals
    yield f"target     {target_name(snapshot)}"
    yield f"attached   {clock(snapshot.elapsed_ns)} ago, by {facts.method}"
    fill = f"{selection.ring_share:.0%} full at most"
    yield f"buffer     {format_size(facts.buffer_bytes)}, {fill}"
    if snapshot.sample_bytes is not None:
        distance = format_size(snapshot.sample_bytes)
        yield f"sampled    one in {distance}: figures with ~ are estimates"
    for function in facts.functions:
        yield f"traced     {printable(function)}"
    for line in unseen_lines(snapshot.allocators):
        yield f"unseen     {line}"
    for path, method in snapshot.stack_methods.items():
        yield f"stacks     through {printable(path)}: {method}"
    for line in memory_lines(snapshot):
        yield f"memory     {line}"
    yield f"cost       {overhead_line(snapshot.overhead)}"
    yield f"missed     {losses_line(snapshot)}"
    for cause, count in snapshot.losses.by_cause.items():
        if count:
            yield f"           {cause.replace('_', ' ')}: {count:,}"
    yield (
        f"seen       {snapshot.events:,} events, {plural(len(snapshot.stacks) - 1, 'stack')}, "
        f"{short_count(float(totals.allocated_count.sum()))} allocations, "
        f"{short_count(float(totals.freed_count.sum()))} frees"
    )
    yield f"           {snapshot.broken_stacks:,} stacks end in code without frame pointers"
    journal = selection.journal
    for view, costs in list(journal.costs.items()):
        pairs = list(costs)
        worked, drawn = (1000 * median(column) for column in zip(*pairs, strict=True))
        most = 1000 * max(map(sum, pairs))
        yield (
            f"{'screen':<11}{view}: {worked:.1f} ms worked out aside, "
            f"{drawn:.1f} ms drawn, {most:.1f} ms at most"
        )
    yield ""
    for message in list(journal.messages):
        yield printable(message)


LOG: Final = View(
    name="log",
    title="Log",
    key="8",
    maker=lambda source: lambda selection: list(log_lines(selection, source.facts)),
    widget=TextLines,
)
