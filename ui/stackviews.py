"""The views of call stacks, blocks, and types of blocks, and the text of a stack's verdict."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.text import Text

from tracelloc.model.blocks import BlockStat
from tracelloc.model.figures import I64
from tracelloc.model.verdicts import VERDICTS, Verdict
from tracelloc.show.analysis.differences import BlockOrder, list_blocks
from tracelloc.show.presentation.blockholders import retained_by_message
from tracelloc.show.presentation.blocktypes import BlockTypes, TypeSum
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.presentation.suspects import headline, sentences, suspect_ranks
from tracelloc.show.tables import Column, Columns, or_blank, size_with
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_percent,
    format_size,
    signed_size,
)
from tracelloc.ui import tableview
from tracelloc.ui.groups import Grouping, GroupKey, grouped, with_one_old_row
from tracelloc.ui.header import target_name
from tracelloc.ui.lineview import wrapped
from tracelloc.ui.objectview import OBJECTS, TypeKey, with_growing_types
from tracelloc.ui.picture import SelectedStack
from tracelloc.ui.stacknames import Labels, Search
from tracelloc.ui.tableview import Cell, Table, TableRows, clean, growth_cell, sorted_rows
from tracelloc.ui.view import Settings, Sorting, TraceSource, View, ViewSelection

_REASON_LINES: Final = 2
# Most rows of a table: nobody scrolls further, and searches cover all stacks.
MOST_ROWS: Final = 10_000
# Columns that are left out beside changes, as they are none.
_NOT_CHANGES: Final = "share", "bytes", "count", "rate", "age", "temporary", "history"
STACK_COLUMNS: Final[Columns[Any]] = (
    Column("change", "change", 13),
    Column("bytes", "live", 13),
    # Shown only if rows are sorted by it: then the table is of the heap's peak.
    Column("peak", "at peak", 13, from_width=1 << 16),
    Column("share", "share", 6, from_width=132, sorts=False),
    Column("count", "blocks", 9, from_width=96),
    Column("growth", "growth/min", 12),
    Column("verdict", "verdict", 9, left=True, from_width=72),
    Column("rate", "alloc/s", 9, from_width=124),
    Column("age", "mean age", 10, from_width=118),
    Column("temporary", "temporary", 10, from_width=160),
    Column("history", "history", 8, from_width=146, sorts=False),
    Column("process", "process", 18, left=True, from_width=96, sorts=False),
    Column("name", "allocated in", 0, descending=False),
)


FOUND: Final = "bold reverse"


def name_cell(name: str, search: str) -> Cell:
    """Returns the name as a cell that highlights the search's matches."""
    if not search:
        return tableview.TitleCell(name)
    text = Text(name)
    for match in Search(search).pattern.finditer(name):
        if match.end() > match.start():
            text.stylize(FOUND, match.start(), match.end())
    return text


_WIDTH: Final = 8  # Of a stack's history
# Columns that a group sums over its stacks; in others it shows its first stack's figures.
ADDED: Final = frozenset({"change", "bytes", "count", "share", "rate"})


# By name, a value per stack, and its format.
Figures = dict[str, tuple[npt.NDArray[Any], Callable[[Any], str]]]


def figure_columns(selection: ViewSelection) -> Figures:
    """Returns the columns of figures: values per stack, and their format."""
    snapshot, figures, change = selection.snapshot, selection.figures, selection.change
    about = about_of(snapshot.sample_bytes)
    return {
        "change": (change if change is not None else figures.live_bytes, signed_size),
        "bytes": (figures.live_bytes, lambda value: about + format_size(value)),
        "peak": (Metric.PEAK.column(snapshot), lambda value: about + format_size(value)),
        "count": (figures.live_count, lambda value: f"{about}{value:,}"),
        "growth": (selection.growth, signed_size),
        "share": (figures.share, format_percent),
        "rate": (figures.allocations_per_s, tableview.short_count),
        "age": (figures.mean_age_ns, lambda ns: format_duration(ns / NS_PER_S) if ns >= 0 else "-"),
        "temporary": (snapshot.totals.temporary_share, format_percent),
    }


class StackCells:
    """The cells of the view of stacks, by row key and column."""

    def __init__(self, selection: ViewSelection, columns: Figures, grouping: Grouping) -> None:
        self._selection = selection
        self._columns = columns
        self._grouping = grouping
        self._special: dict[str, Callable[[GroupKey | int], Cell]] = {
            "name": self._name, "verdict": lambda key: tableview.verdict_cell(self._verdict(key)),
            "growth": self._growth, "history": self._history, "process": self._process,
        }  # fmt: skip

    def cell(self, key: Hashable, column: str) -> Cell:
        assert isinstance(key, GroupKey | int)
        last = key.members.max() if isinstance(key, GroupKey) else key
        # After a step back in a recording, rows may still be those of later stacks.
        if last >= len(self._selection.snapshot.totals):
            return ""
        if column in self._special:
            return self._special[column](key)
        values, written = self._columns[column]
        if isinstance(key, GroupKey):
            value = values[key.members].sum() if column in ADDED else values[key.stack]
        else:
            value = values[key]
        return written(value.item())

    def _name(self, key: GroupKey | int) -> Cell:
        search = self._selection.settings.search
        note = self._grouping.notes.get(key, "")
        if isinstance(key, GroupKey):
            return name_cell(_with_note(key.title, note), search)
        mark = "  └ " if key in self._grouping.inside else ""
        return name_cell(mark + _with_note(self._selection.names.labels.shown(key), note), search)

    def _verdict(self, key: GroupKey | int) -> Verdict | None:
        if isinstance(key, GroupKey):
            return key.verdict
        verdicts = self._selection.verdicts
        return None if verdicts is None else VERDICTS[verdicts[key]]

    def _growth(self, key: GroupKey | int) -> Cell:
        rate = key.rate if isinstance(key, GroupKey) else int(self._selection.growth[key])
        return growth_cell(rate, self._verdict(key))

    def _history(self, key: GroupKey | int) -> Cell:
        snapshot, stacks = self._selection.snapshot, _stacks_of(key)
        held, totals = snapshot.history.series(stacks)[1], snapshot.totals
        now = int((totals.allocated_bytes[stacks] - totals.freed_bytes[stacks]).sum())
        sizes = [*held, now]
        if (last := len(sizes) - 1) >= _WIDTH:
            # At even distances, the oldest and the newest included.
            sizes = [sizes[round(n * last / (_WIDTH - 1))] for n in range(_WIDTH)]
        return Text(tableview.sparkline(sizes, _WIDTH), "dim")

    def _process(self, key: GroupKey | int) -> Cell:
        merged, stacks = self._selection.snapshot.merged, _stacks_of(key)
        assert merged is not None
        sharing = merged.sharing[stacks]
        numbers = set(merged.main_process[stacks].tolist())
        if sharing.max() > 1:
            return f"{sharing.max():,} processes" if len(stacks) == 1 else "several"
        if len(numbers) > 1:
            return "several"
        number = numbers.pop()
        return "ended" if number < 0 else target_name(self._selection.trace.snapshot_of(number))


def _with_note(title: str, note: str) -> str:
    first, arrow, rest = title.partition(" ← ")
    return f"{first}{note}{arrow}{rest}"


def _stacks_of(key: GroupKey | int) -> I64:
    return key.members if isinstance(key, GroupKey) else np.array([key])


def stack_rows(selection: ViewSelection) -> TableRows:
    """Returns a row per stack, keyed by its index, or per group, keyed by a ``GroupKey``."""
    sorting = selection.settings.sorting
    columns = figure_columns(selection)
    if sorting == Sorting("verdict"):
        ranks, weights = suspect_ranks(selection.snapshot), columns["change"][0]
        grouping = grouped(selection, _by_weight(selection), ranks, weights, MOST_ROWS)
    else:
        stacks, is_down = _sorted_stacks(selection, columns), sorting.descending
        values = columns[sorting.column][0] if sorting.column in ADDED else None
        grouping = with_one_old_row(selection, stacks, values, MOST_ROWS, descending=is_down)
    order = grouping.order[:MOST_ROWS]
    cells = StackCells(selection, columns, grouping)
    why = "" if order else selection.why_empty
    without: tuple[str, ...] = ("change",) if selection.change is None else _NOT_CHANGES
    if selection.snapshot.merged is None:
        without += ("process",)
    if selection.snapshot.blocks is None:
        without += ("age",)
    return TableRows(order, cells.cell, sorting.column, sorting.descending, why, without)


def _sorted_stacks(selection: ViewSelection, columns: Figures) -> I64:
    rows, sorting, labels = selection.stacks, selection.settings.sorting, selection.names.labels
    if sorting.column == "name":
        places = np.empty(len(labels.texts), np.int64)
        places[sorted(range(len(places)), key=labels.texts.__getitem__)] = np.arange(len(places))
        order = rows[np.argsort(places[labels.numbers[rows]], kind="stable")]
        return order[::-1] if sorting.descending else order
    rows = _by_weight(selection)
    if sorting.column == "verdict":
        values = -suspect_ranks(selection.snapshot)[rows]
    else:
        values = columns[sorting.column][0][rows]
    # Equal values keep the order by change, or by size.
    return rows[np.argsort(-values if sorting.descending else values, kind="stable")]


def _by_weight(selection: ViewSelection) -> I64:
    rows, change = selection.stacks, selection.change
    return rows if change is None else rows[np.argsort(-change[rows], kind="stable")]


def _choose_stack(key: Hashable, settings: Settings) -> int | Settings:
    if isinstance(key, TypeKey):
        return replace(settings, view=OBJECTS)
    if isinstance(key, GroupKey):
        return replace(settings, expanded=settings.expanded ^ {key.lead})
    assert isinstance(key, int)
    return key


STACKS: Final = View(
    "Stacks", "1", lambda _source: lambda one: with_growing_types(one, stack_rows(one)),
    lambda: Table(STACK_COLUMNS), Sorting("verdict"), _choose_stack, "Details", shows_stack=True,
    others="leaks suspects call stacks",
)  # fmt: skip


def verdict_text(details: SelectedStack, snapshot: Snapshot, group: GroupKey | None = None) -> Text:
    """Returns a stack's verdict, with the rate of its suspect or selected ``group``."""
    judgement = details.judgement
    if group is not None and details.suspect is not None:
        judgement = replace(details.suspect.judgement, rate_bytes_per_min=float(group.rate))
    if judgement is None:
        return Text("")
    style = tableview.VERDICT_STYLES.get(judgement.verdict, "bold")
    if details.suspect is None:
        return Text(tableview.verdict_word(judgement.verdict), style)
    about = about_of(snapshot.sample_bytes)
    return Text(headline(judgement, snapshot.now_ns, about=about), style)


def verdict_reasons(details: SelectedStack) -> list[str]:
    """Returns the sentences that explain a verdict; empty before the first verdict."""
    suspect = details.suspect
    return _explanation(details) if suspect is None else list(sentences(suspect))


def verdict_lines(details: SelectedStack, width: int, group: GroupKey | None = None) -> list[str]:
    """Returns the verdict's evidence and the holders, wrapped; none before the first verdict."""
    told = _explanation(details)
    if told and group is not None and not group.is_one:
        told[0] = f"(1 of {len(group.members):,}) {told[0]}"
    return [line for each in told for line in wrapped(each, width)[:_REASON_LINES]]


def _explanation(details: SelectedStack) -> list[str]:
    if details.judgement is None:
        return []
    held = () if details.holders is None else retained_by_message(details.holders, details.time_s)
    return [details.judgement.evidence, *held]


MOST_BLOCKS: Final = 2_000
_OF_RECORDINGS: Final = " only the ten largest blocks are recorded"
# Orders that cover all blocks. Other columns sort the largest blocks only.
_ORDERS: Final = {("age", True): BlockOrder.AGE, ("age", False): BlockOrder.YOUTH}
_FREED: Final = -1  # Size and age of a block that was freed; its row stays until rows may move


def block_columns(
    labels: Labels | None = None, names: Mapping[int, str] = MappingProxyType({}), search: str = ""
) -> Columns[BlockStat]:
    """Returns the view's columns. ``names``: those of threads."""
    known = {} if labels is None else labels

    def name(block: BlockStat) -> Cell:
        return "" if labels is None else name_cell(labels.shown(block.stack), search)

    def age(age_ns: int) -> str:
        return "" if age_ns == _FREED else format_duration(age_ns / NS_PER_S)

    def thread(tid: int) -> str:
        return clean(f"{tid} {names.get(tid, '[ended]')}") if tid else ""

    def size(size_bytes: int) -> str:
        return "freed" if size_bytes == _FREED else format_size(size_bytes)

    return (
        Column("bytes", "size", 10, attrgetter("size_bytes"), size),
        Column("age", "age", 9, attrgetter("age_ns"), age),
        Column("address", "address", 14, attrgetter("address"), hex, left=True, from_width=76),
        Column("thread", "thread", 18, attrgetter("tid"), thread, left=True, from_width=100),
        Column(
            "name", "allocated in", 0, lambda one: known.get(one.stack, ""), draw=name,
            descending=False,
        ),
    )  # fmt: skip


def block_rows(selection: ViewSelection) -> TableRows:
    """Returns a row per block, keyed by address, stack and a number: forks have equal ones."""
    snapshot, settings = selection.snapshot, selection.settings
    copies: Counter[tuple[int, int]] = Counter()
    known: dict[Any, BlockStat] = {}
    for block in _blocks(selection):
        copies[block.address, block.stack] += 1
        known[block.address, block.stack, copies[block.address, block.stack]] = block
    return sorted_rows(
        known, block_columns(selection.names.labels, snapshot.thread_names, settings.search),
        settings.sorting, find=lambda key: known.get(key) or BlockStat(
            key[0], _FREED, _FREED, key[1], 0
        ),
        empty=selection.why_empty,
        footer=[] if snapshot.blocks is not None else [lambda _: _OF_RECORDINGS],
    )  # fmt: skip


def _blocks(selection: ViewSelection) -> list[BlockStat]:
    snapshot, settings = selection.snapshot, selection.settings
    order = settings.sorting.column, settings.sorting.descending
    if snapshot.blocks is None:
        chosen = set(selection.stacks.tolist())
        found = [block for block in snapshot.top_blocks.largest if block.stack in chosen]
        by_age = sorted(found, key=lambda block: block.age_ns, reverse=order[1])
        return by_age if order[0] == "age" else found
    left = replace(snapshot, blocks=selection.unlimited_blocks())
    by = _ORDERS.get(order, BlockOrder.SIZE)
    return list(list_blocks(left, MOST_BLOCKS, by, settings.all_limits).largest)


BLOCKS: Final = View(
    "Blocks", "2", lambda _source: block_rows, lambda: Table(block_columns()), Sorting("bytes"),
    lambda key, _settings: int(key[1]), "Details", shows_stack=True,
)  # fmt: skip


_UNKNOWN: Final = "unknown"
_AT_ONCE: Final = 4096  # Stacks that are looked at for one picture; the next one goes on


def class_columns(about: str = "", whole: int = 1, search: str = "") -> Columns[TypeSum]:
    """Returns the view's columns. ``about``: the mark of estimates; ``whole``: all bytes."""

    def name_of(name: str) -> Cell:
        if not name:
            return Text(_UNKNOWN, "dim")
        return name_cell(clean(name), search) if search else Text(clean(name))

    size = size_with(about)
    return (
        Column("bytes", "live", 11, lambda row: row.size_bytes, size),
        Column("share", "share", 7, lambda t: t.size_bytes / whole, format_percent, sorts=False),
        Column("growth", "growth/min", 12, lambda row: row.growth_bytes_per_min, growth_cell),
        Column("leaking", "leaking", 11, lambda row: row.leaking_bytes, or_blank(size)),
        Column(
            "count", "blocks", 9, attrgetter("count"), lambda n: about + tableview.short_count(n)
        ),
        Column(
            "stacks", "stacks", 7, lambda t: len(t.stacks), tableview.short_count, from_width=84
        ),
        Column("name", "type", 0, lambda row: row.name or "", name_of, descending=False),
    )


def type_rows(_source: TraceSource) -> Callable[[ViewSelection], TableRows]:
    """Returns a function that makes a row per type, whose key is its heaviest stack."""
    types = BlockTypes()

    def rows(selection: ViewSelection) -> TableRows:
        snapshot, figures, settings = selection.snapshot, selection.figures, selection.settings
        live = figures.live_bytes, figures.live_count
        sums = types.sums(snapshot, selection.namer, *live, _AT_ONCE)
        selection.names.pending += types.left
        if settings.search:
            matches = Search(settings.search).matches
            sums = [row for row in sums if matches(row.name or _UNKNOWN)]
        about, whole = about_of(snapshot.sample_bytes), max(int(figures.live_bytes.sum()), 1)
        shown = class_columns(about, whole, settings.search)
        return sorted_rows(
            {row.stacks[0]: row for row in sums}, shown, settings.sorting, MOST_ROWS,
            empty="" if sums else selection.why_empty,
        )  # fmt: skip

    return rows


TYPES: Final = View(
    "Types", "Y", type_rows, lambda: Table(class_columns()), Sorting("bytes"),
    lambda key, _settings: key, "Details",
)  # fmt: skip
