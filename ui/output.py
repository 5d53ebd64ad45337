"""The views of text lines: the log, and the last output of a started program."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from tracelloc.show.presentation.alerts import overhead_line
from tracelloc.show.presentation.facts import unseen_lines
from tracelloc.show.presentation.processfacts import losses_line, memory_lines
from tracelloc.text import NS_PER_S, format_duration, format_percent, format_size, plural, printable
from tracelloc.ui.header import target_name
from tracelloc.ui.lineview import LineView, Piece
from tracelloc.ui.tableview import short_count
from tracelloc.ui.view import TraceFacts, TraceSource, View, ViewSelection


class TextLines(LineView[Sequence[str]]):
    """A widget for lines of printable text, wrapped to its width."""

    _lines: Sequence[str] = ()
    _folded: Sequence[str] = ()

    def show(self, content: Sequence[str], *, at_once: bool = False) -> None:
        self._lines = content
        self.rows_changed()

    def rows_changed(self) -> None:
        width = max(self.width, 1)
        wrapped = (
            [Text(line)] if cell_len(line) <= width else Text(line).wrap(self.app.console, width)
            for line in self._lines
        )
        self._folded = [part.plain for parts in wrapped for part in parts]
        super().rows_changed()

    def row_count(self) -> int:
        return len(self._folded)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        yield self._folded[row], None


# ECMA-48's control sequences, strings such as window titles, other escapes, control characters.
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


def plain_lines(written: bytes) -> list[str]:
    """Returns the lines of a terminal's output, without escapes, as carriage returns leave them."""
    lines = _ESCAPES.sub("", written.decode(errors="replace")).split("\n")
    if not lines[-1]:
        lines.pop()
    return [printable(line.rstrip("\r").rpartition("\r")[2].expandtabs()) for line in lines]


def output_maker(source: TraceSource) -> Callable[[ViewSelection], Sequence[str]]:
    """Returns a function that makes the last lines of the started program's output."""
    last_output = source.last_output
    assert last_output is not None
    known: tuple[int, Sequence[str]] = -1, ()

    def output(_selection: ViewSelection) -> Sequence[str]:
        nonlocal known
        count, written = last_output()
        if known[0] != count:
            lines = plain_lines(written)
            if dropped := count - len(written):
                lines[:1] = [f"({format_size(dropped)} before this are not kept)"]
            known = count, lines
        return known[1]

    return output


class OutputView(TextLines):
    """The program's output; follows its end unless the user moves the cursor up."""

    _follows = True

    def show(self, content: Sequence[str], *, at_once: bool = False) -> None:
        super().show(content, at_once=at_once)
        if self._follows and content:
            super().move_to(self.row_count() - 1)

    def move_to(self, row: int) -> None:
        super().move_to(row)
        self._follows = row >= self.row_count() - 1

    def empty_text(self) -> str:
        return "The program has written nothing yet."


OUTPUT: Final = View(
    "Output", "0", output_maker, OutputView, keeps_state=True,
    exists=lambda source: source.last_output is not None,
)  # fmt: skip


def log_lines(selection: ViewSelection, facts: TraceFacts) -> Iterator[str]:
    """Returns the log: the current figures, then the messages, the oldest first."""
    snapshot = selection.snapshot
    totals = snapshot.totals
    yield f"target     {target_name(snapshot)}"
    yield from _capture_lines(selection, facts)
    if snapshot.sample_bytes is not None:
        distance = format_size(snapshot.sample_bytes)
        yield f"sampled    one per {distance}: figures with ~ are estimates"
    for function in facts.functions:
        yield f"traced     {printable(function)}"
    for line in unseen_lines(snapshot.allocators):
        yield f"not probed {line}"
    for path, method in snapshot.stack_methods.items():
        yield f"stacks     through {printable(path)}: {method}"
    for line in memory_lines(snapshot):
        yield f"memory     {line}"
    yield f"cost       {overhead_line(snapshot)}"
    yield f"missed     {losses_line(snapshot)}"
    for cause, count in snapshot.losses.by_cause.items():
        if count:
            yield f"           {cause.replace('_', ' ')}: {count:,}"
    yield (
        f"seen       {snapshot.events:,} events, {plural(len(snapshot.stacks) - 1, 'stack')}, "
        f"{short_count(float(totals.allocated_count.sum()))} allocations, "
        f"{short_count(float(totals.freed_count.sum()))} frees"
    )
    yield f"           {plural(snapshot.broken_stacks, 'broken stack')}"
    journal = selection.journal
    for view, costs in list(journal.costs.items()):
        pairs = list(costs)
        worked, drawn = (1000 * median(column) for column in zip(*pairs, strict=True))
        most = 1000 * max(map(sum, pairs))
        yield (
            f"{'screen':<11}{view}: {worked:.1f} ms to compute in the background, "
            f"{drawn:.1f} ms to draw, {most:.1f} ms at most"
        )
    yield ""
    for message in list(journal.messages):
        yield printable(message)


def _capture_lines(selection: ViewSelection, facts: TraceFacts) -> Iterator[str]:
    traced = format_duration(selection.snapshot.elapsed_ns // NS_PER_S)
    if not facts.ring_slots:
        yield f"recorded   {traced} up to this snapshot, by {facts.method}"
        return
    fill = f"at most {format_percent(selection.ring_share, 0)} full so far"
    yield f"attached   {traced} ago, by {facts.method}"
    yield f"ring       room for {plural(facts.ring_slots, 'event')}, {fill}"


LOG: Final = View(
    "Log", "8", lambda source: lambda one: list(log_lines(one, source.facts)), TextLines,
    others="errors overhead losses warnings",
)  # fmt: skip
