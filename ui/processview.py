"""The views of traced processes, as a tree to choose from, and of one's resident memory by part."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Final

from rich.text import Text

from tracelloc.dataclass import dataclass, replace
from tracelloc.model.heapusage import NO_ACCOUNT, MemoryPart
from tracelloc.model.process import ALL_PROCESSES, RUNNING_PROCESSES
from tracelloc.model.verdicts import Verdict
from tracelloc.show.analysis.differences import ALL
from tracelloc.show.presentation import memoryparts
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.tables import Column, Columns, count_with, or_blank, size_with
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.text import about_of, format_duration, format_size
from tracelloc.ui.tableview import Bar, Table, TableRows, clean, growth_cell, no_rows, sorted_rows
from tracelloc.ui.view import Settings, Sorting, View, ViewSelection


def _leaks(one: Snapshot) -> int:
    suspects = () if one.findings is None else one.findings.suspects
    return sum(suspect.judgement.verdict is Verdict.LEAKING for suspect in suspects)


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A row of the tree: one process, all processes, or several ended ones."""

    # The process's number, a negative number for several, or the parent of ended ones.
    key: Hashable
    name: str  # The text in the column of processes
    ones: Sequence[Snapshot]  # The snapshots whose figures the row sums up
    depth: int = 0  # Number of ancestors in the tree

    @property
    def is_process(self) -> bool:
        return isinstance(self.key, int) and self.key >= 0


def process_columns(
    about: str = "", chosen: int | None = None, *, is_tree: bool = False
) -> Columns[ProcessLine]:
    """Returns the view's columns. ``about``: the mark of estimates; ``chosen``: a process."""

    def sums(figure: Callable[[Snapshot], int]) -> Callable[[ProcessLine], int]:
        return lambda line: sum(map(figure, line.ones))

    def name(line: ProcessLine) -> Text:
        indent = "  " * line.depth if is_tree else ""
        mark = "● " if line.key == chosen else ""
        style = "" if isinstance(line.key, int) else "dim"
        text = Text(f"{indent}{mark}{clean(line.name)}", style)
        ended = line.is_process and line.ones[0].target.has_ended
        return text.append(" ended", "dim") if ended else text

    def pid(line: ProcessLine) -> str:
        return str(line.ones[0].target.pid) if line.is_process else ""

    size, count, leaks = size_with(about), count_with(about), lambda n: Text(str(n), "bold red")
    return (
        Column("bytes", "live", 10, sums(lambda one: one.live_bytes), size),
        Column("growth", "growth/min", 12, sums(_growth), growth_cell),
        Column("count", "blocks", 10, sums(lambda one: one.live_count), count, from_width=76),
        Column(
            "rss", "RSS", 10, sums(lambda one: one.rss_bytes or 0), or_blank(format_size),
            from_width=90,
        ),
        Column("leaks", "leaks", 7, sums(_leaks), or_blank(leaks)),
        Column("pid", "pid", 8, sums(lambda one: one.target.pid), draw=pid, descending=False),
        Column("name", "process", 0, lambda line: line.name, draw=name, descending=False),
    )  # fmt: skip


def _growth(one: Snapshot) -> int:
    return 0 if one.target.has_ended else int(one.growth_per_min.sum())


def _children(trace: TraceSnapshot) -> dict[int | None, list[Snapshot]]:
    numbers: dict[int, int] = {}
    children: dict[int | None, list[Snapshot]] = {}
    for one in trace.processes:
        # PIDs are reused: the parent is the latest earlier process with that PID.
        children.setdefault(numbers.get(one.target.parent_pid), []).append(one)
        numbers[one.target.pid] = one.target.number
    return children


def process_lines(trace: TraceSnapshot, settings: Settings) -> list[ProcessLine]:
    """Returns a line for all processes, then each process below its parent.

    Ended processes without leaks whose descendants have all ended share one line per parent, after
    the others.
    """
    children = _children(trace)
    # Ended processes without leaks, with their descendants
    families: dict[int, list[Snapshot]] = {}
    for one in reversed(trace.processes):
        nested = [families.get(c.target.number) for c in children.get(one.target.number, ())]
        is_quiet = one.target.has_ended and one.target.number != settings.process
        if is_quiet and not settings.shows_ended and None not in nested and not _leaks(one):
            families[one.target.number] = [one, *(each for part in nested for each in part or ())]
    families.pop(trace.root.target.number, None)

    def below(parent: int | None, depth: int) -> list[ProcessLine]:
        mine = children.get(parent, ())
        folded = [one for child in mine for one in families.get(child.target.number, ())]
        if len(folded) == 1:
            folded = []
        own = (one for one in mine if not (folded and one.target.number in families))
        shown = [ProcessLine(one.target.number, one.target.command, (one,), depth) for one in own]
        if folded:
            name = f"{len(folded):,} ended (D opens)"
            shown.append(ProcessLine(("ended", parent), name, folded, depth))
        return shown

    lines = []
    if len(trace.processes) > 1:
        together = f"all {len(trace.processes):,} processes"
        lines.append(ProcessLine(ALL_PROCESSES, together, trace.processes))
    if 0 < len(trace.living) < len(trace.processes):
        running = f"{len(trace.living):,} running processes"
        lines.append(ProcessLine(RUNNING_PROCESSES, running, trace.living))
    waiting = below(None, 0)[::-1]
    while waiting:
        line = waiting.pop()
        lines.append(line)
        if isinstance(line.key, int):
            waiting += below(line.key, line.depth + 1)[::-1]
    return lines


def process_rows(trace: TraceSnapshot, settings: Settings) -> TableRows:
    """Returns the table, as a tree if sorted by name. Rows of several processes come first."""
    sorting, lines = settings.sorting, process_lines(trace, settings)
    is_tree = sorting.column == "name"
    shown = process_columns(about_of(trace.root.sample_bytes), settings.process, is_tree=is_tree)
    size = format_size(sum(one.live_bytes for one in trace.processes))
    count, untraced = len(trace.processes), trace.untraced_count
    more = f"; {untraced:,} more not traced" if untraced else ""
    total = f" {size} live in total; {len(trace.living)} of {count} processes running{more}"
    footer = [lambda _key: total]
    rows = sorted_rows({line.key: line for line in lines}, shown, sorting, footer=footer)
    together = [line.key for line in lines if isinstance(line.key, int) and line.key < 0]
    others = [line.key for line in lines[len(together) :]]
    if not is_tree:
        others = [key for key in rows.order if key not in together]
    elif sorting.descending:
        others.reverse()
    return replace(rows, order=[*together, *others])


def show_process(number: int, settings: Settings) -> Settings:
    """Returns settings that show a process, or all, without choices of former stacks."""
    # Processes have their peaks at different times, so their sum has none.
    peak_of_all = number < 0 and settings.metric is Metric.PEAK
    metric = Metric.BYTES if peak_of_all else settings.metric
    limits = replace(settings.limits, tid=ALL.tid, stack=ALL.stack)
    return replace(
        settings, process=number, metric=metric, limits=limits, selected=None, baseline=None,
        difference=None, marks=(),
    )  # fmt: skip


def _choose(key: Hashable, settings: Settings) -> Settings:
    if isinstance(key, int):
        return show_process(key, settings)
    return replace(settings, shows_ended=True)


PROCESSES: Final = View(
    "Processes", "9", lambda _source: lambda one: process_rows(one.trace, one.settings),
    lambda: Table(process_columns()), Sorting("name", descending=False), _choose, "Show",
    exists=lambda source: source.has_many,
)  # fmt: skip


# Sentences below the rows: what is freed and kept, and the selected part's items.
_MOST_SENTENCES: Final = 8
COLUMNS: Final[Columns[memoryparts.PartRow]] = (
    memoryparts.CHANGE,
    memoryparts.BYTES,
    memoryparts.SHARE,
    Column("bar", "", 12, lambda row: row.share, Bar, left=True, from_width=80, sorts=False),
    Column(
        "name", "resident memory", 0, lambda row: row.title, descending=False,
        draw=lambda row: clean(row.title),
    ),
)  # fmt: skip


def resident_rows(selection: ViewSelection) -> TableRows:
    """Returns a row per part of resident memory and large item, whose key is both."""
    snapshot = selection.snapshot
    usage, first = snapshot.usage, snapshot.first_usage
    if usage is None:
        return no_rows(_why_empty(selection))
    before = NO_ACCOUNT if first is None else first.account
    rows = {(row.part, row.item): row for row in memoryparts.part_rows(usage.account, before)}

    def text(key: Hashable | None) -> list[str]:
        part = key[0] if isinstance(key, tuple) else None
        return list(islice(_sentences(snapshot, part), _MOST_SENTENCES))

    return sorted_rows(rows, COLUMNS, selection.settings.sorting, text=text)


def _why_empty(selection: ViewSelection) -> str:
    if selection.snapshot.merged is not None:
        return "resident memory is shown per process: choose a single one (9)"
    return "resident memory is being examined… (not with --no-search)"


def _sentences(snapshot: Snapshot, part: MemoryPart | None) -> Iterator[str]:
    usage = snapshot.usage
    assert usage is not None
    ago = format_duration(max(0.0, snapshot.time_s - usage.time_s))
    rss = format_size(usage.account.own_bytes)
    yield f"RSS {rss}, examined {ago} ago; changes since tracing began"
    if part is not None and (items := memoryparts.large_items(usage.account, part)):
        named = ", ".join(f"{name} {format_size(size)}" for name, size in items)
        yield clean(f"{part.value}: {named}")
    yield from map(clean, memoryparts.memory_sentences(usage, snapshot.first_usage))
    yield from map(clean, usage.notes)


RESIDENT: Final = View(
    "Memory", "R", lambda _source: resident_rows, lambda: Table(COLUMNS), Sorting("bytes"),
    others="rss",
)  # fmt: skip
