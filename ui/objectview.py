"""The view of a Python program's objects by type, and the rows of types that grow."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from rich.text import Text

from tracelloc.model.objects import ObjectFindings, TypeSuspect
from tracelloc.model.verdicts import Verdict
from tracelloc.show.presentation import objects
from tracelloc.show.tables import Column, Columns, count_with
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_duration, format_percent, format_size, plural
from tracelloc.ui import tableview
from tracelloc.ui.view import Sorting, View, ViewSelection

_MOST_ROWS: Final = 5000
_NO_VERDICTS: Final[Mapping[str, Verdict]] = {}


def type_columns(
    minutes: float = 1.0, verdicts: Mapping[str, Verdict] = _NO_VERDICTS
) -> Columns[objects.TypeGrowth]:
    """Returns the view's columns. ``minutes``: between censuses; ``verdicts``: by type."""

    def growth(change: int) -> Text:
        return tableview.growth_cell(round(change / minutes))

    def pace(change: int) -> Text:
        per_min = round(change / minutes)
        return Text(f"{tableview.short_count(per_min)} {tableview.arrow(per_min)}")

    def verdict(name: str) -> tableview.Cell:
        return tableview.verdict_cell(verdicts[name]) if name in verdicts else ""

    return (
        Column("growth", "growth/min", 12, lambda row: row.bytes_change, growth),
        Column("bytes", "bytes", 10, lambda row: row.now.size_bytes, format_size),
        Column("count", "objects", 11, lambda row: row.now.count, count_with("")),
        Column("pace", "objects/min", 12, lambda row: row.count_change, pace, from_width=76),
        Column(
            "verdict", "verdict", 9, lambda row: row.now.name, verdict,
            left=True, from_width=90, sorts=False,
        ),
        Column("name", "type", 0, lambda row: row.now.name, tableview.clean, descending=False),
    )  # fmt: skip


class TypeKey(NamedTuple):
    """Key of a type's row."""

    name: str


def with_growing_types(selection: ViewSelection, rows: tableview.TableRows) -> tableview.TableRows:
    """Puts growing types above the stacks unless these are filtered, or a line on when."""
    settings = selection.settings
    types = {TypeKey(each.name): each for each in objects.type_suspects(selection.snapshot)}
    is_narrowed = settings.narrows_stacks or not settings.all_limits.is_open
    if is_narrowed or settings.sorting != Sorting("verdict"):
        return rows
    if not types:
        line = objects.counting_line(selection.snapshot)
        if line is None or not len(rows.order):
            return rows
        return replace(rows, order=[tableview.Heading(line), *rows.order], first=1)

    def cell(key: Hashable, column: str) -> tableview.Cell:
        if isinstance(key, TypeKey):
            return _cell(types[key], column) if key in types else ""
        return rows.cells(key, column)

    return replace(rows, order=[*types, *rows.order], cells=cell)


def _cell(suspect: TypeSuspect, column: str) -> tableview.Cell:
    if column == "growth":
        return tableview.growth_cell(round(suspect.bytes_per_min), suspect.verdict)
    if column == "verdict":
        return tableview.verdict_cell(suspect.verdict)
    if column == "bytes":
        return format_size(suspect.size_bytes)
    if column == "name":
        return tableview.TitleCell(tableview.clean(objects.type_title(suspect)))
    return f"{suspect.count:,}" if column == "count" else ""


def type_words(key: Hashable | None, snapshot: Snapshot) -> tuple[str, str]:
    """Returns the (title, sentences) of a growing type's row."""
    for each in objects.type_suspects(snapshot):
        if key == TypeKey(each.name):
            words = "; ".join(objects.type_sentences(each))
            return objects.type_headline(each, snapshot), words
    return "stack of the selected row", ""


def object_rows(selection: ViewSelection) -> tableview.TableRows:
    """Returns one row per type; its key is the type's name."""
    snapshot, settings = selection.snapshot, selection.settings
    found = snapshot.objects
    if found is None or found.now is None or found.first is None:
        return tableview.no_rows(_why_empty(snapshot))
    minutes = max(found.now.time_s - found.first.time_s, 1e-9) / 60
    verdicts = {each.name: each.verdict for each in found.suspects}
    search = settings.search.lower()
    growths = objects.growths(found.now, found.first)
    rows = {TypeKey(row.now.name): row for row in growths if search in row.now.name.lower()}
    return tableview.sorted_rows(
        rows, type_columns(minutes, verdicts), settings.sorting, _MOST_ROWS,
        empty="no type matches the search (Esc shows all)",
        text=lambda key: list(_lines(found, snapshot, key)),
    )  # fmt: skip


def _why_empty(snapshot: Snapshot) -> str:
    if snapshot.merged is not None:
        return "objects are shown per process: choose a single one (9)"
    if snapshot.objects is not None and snapshot.objects.trouble:
        return f"{objects.NOT_COUNTED}: {snapshot.objects.trouble}"
    if not any(runtime.counts_objects for runtime in snapshot.runtimes):
        return "not a Python program: no objects to count"
    return "objects are being counted… (not with --no-search)"


def _lines(found: ObjectFindings, snapshot: Snapshot, key: Hashable | None) -> Iterator[str]:
    name = key.name if isinstance(key, TypeKey) else ""
    assert found.now is not None
    assert found.first is not None
    since = format_duration(found.now.time_s - found.first.time_s)
    ago = format_duration(max(0.0, snapshot.time_s - found.now.time_s))
    total = f"{plural(found.now.count, 'object')} of {plural(len(found.now.types), 'type')}"
    yield f"{total}, counted {ago} ago; changes in {since}"
    for each in found.suspects:
        part = next((part for part in each.parts if part.name == name), None)
        if each.name == name:
            yield tableview.clean(f"{name}: {objects.type_headline(each, snapshot)}")
        elif part is not None:
            yield tableview.clean(f"{name}: grows with {each.name}, whose objects keep it")
    holders = found.holders.get(name)
    if holders is None:
        if name:
            yield "their holders are searched once a type grows (now: tracelloc objects --holders)"
        return
    for holder in holders.holders:
        share = format_percent(holder.count / max(holders.sample_count, 1), 0)
        if share != "0 %":
            yield tableview.clean(f"{share} of new objects ← {objects.holder_text(holder)}")


OBJECTS: Final = View(
    "Objects", "O", lambda _source: object_rows, lambda: tableview.Table(type_columns()),
    Sorting("growth"), exists=lambda source: source.has_python,
)  # fmt: skip
