"""Outstanding blocks by size and by age, as bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from tracelloc.snapshots.spread import Bin, SizeCount
from tracelloc.snapshots.waste import Waste
from tracelloc.ui.cells import bar, percent, right, span
from tracelloc.ui.lines import LineView, Piece
from tracelloc.units import NS_PER_S, format_size


@dataclass(frozen=True, slots=True)
class BarRow:
    """One bar: what lies from ``low`` to ``high``."""

    label: str
    low: int
    high: int | None
    count: int
    size_bytes: int
    waste: Waste | None = None
    """What the allocator gives beyond these bytes; None: not looked for."""


class BarsView(LineView):
    """Rows of label, bytes, blocks, share and bar."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "measure", "Bytes/blocks", tooltip="Draw bars by bytes or by blocks"),
    ]
    header_lines = 1
    label_title = ""
    label_width = 18
    waste_from_width = 76
    """Where the columns of waste are shown, if there is any to be shown."""

    class Chosen(Message):
        """The user wants to see only blocks of this bar; both limits are included."""

        def __init__(self, view: BarsView, low: int, high: int | None) -> None:
            super().__init__()
            self.view = view
            self.low = low
            self.high = high

        @property
        def control(self) -> BarsView:
            """The view that sent it."""
            return self.view

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.by_bytes = True
        self._rows: list[BarRow | str] = []
        self._total = (0, 0)
        self._highest = (0, 0)
        self._knows_waste = False

    def show_rows(self, rows: Sequence[BarRow | str]) -> None:
        """Replaces the rows; a string is a heading. Shares are of the first section."""
        key = self._key()
        self._rows = list(rows)
        first: list[BarRow] = []
        for row in rows:
            if isinstance(row, str):
                break
            first.append(row)
        bars = [row for row in rows if isinstance(row, BarRow)]
        self._total = (sum(r.size_bytes for r in first), sum(r.count for r in first))
        self._highest = (
            max((r.size_bytes for r in bars), default=0),
            max((r.count for r in bars), default=0),
        )
        self._knows_waste = any(row.waste is not None for row in bars)
        for at, row in enumerate(self._rows):
            if isinstance(row, BarRow) and (row.low, row.high) == key:
                self.cursor = at
                break
        self.rows_changed()

    def _key(self) -> tuple[int, int | None] | None:
        row = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        return (row.low, row.high) if isinstance(row, BarRow) else None

    def row_count(self) -> int:
        """Bars and headings."""
        return len(self._rows)

    def empty_text(self) -> str:
        """Nothing to count."""
        return " No block is outstanding within the limits."

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """The titles; those of what bars are drawn by are marked."""
        size, count = ("bytes ▼", "blocks") if self.by_bytes else ("bytes", "blocks ▼")
        title = f"{self.label_title:>{self.label_width}} {size:>10} {count:>11} {'share':>7}"
        if self._knows_waste and width >= self.waste_from_width:
            title += f" {'wasted':>10} {'of it':>7}"
        yield title, "lines--header"

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """One bar, or a heading."""
        shown = self._rows[row]
        if isinstance(shown, str):
            yield f" {shown}", "lines--header"
            return
        which = 0 if self.by_bytes else 1
        value = (shown.size_bytes, shown.count)[which]
        figures = (
            f"{right(shown.label, self.label_width)} {format_size(shown.size_bytes):>10} "
            f"{shown.count:>11,} {percent(value / max(self._total[which], 1)):>7} "
        )
        if self._knows_waste and width >= self.waste_from_width:
            figures += _wasted(shown)
        yield figures, None if shown.count else "lines--dim"
        room = width - len(figures) - 1
        if room > 0:
            yield bar(value / max(self._highest[which], 1), room), "lines--bar"

    def chosen(self) -> None:
        """Tells which bar it was."""
        row = self._rows[self.cursor]
        if isinstance(row, BarRow):
            self.post_message(self.Chosen(self, row.low, row.high))

    def action_measure(self) -> None:
        """The other measure."""
        self.by_bytes = not self.by_bytes
        self.refresh()


def _wasted(row: BarRow) -> str:
    """Bytes, and their share of the usable ones; ``?`` where no block's is known."""
    waste = row.waste
    if waste is None or not row.count:
        return " " * 19
    if not waste.usable_bytes and waste.unknown_count:
        return f"{'?':>10} {'':>7} "
    return f"{format_size(waste.waste_bytes):>10} {percent(waste.share):>7} "


class SizesView(BarsView):
    """By powers of two, then by the exact sizes that hold most, then what is wasted in all."""

    label_title = "size"

    def show(
        self, bins: Sequence[Bin], frequent: Sequence[SizeCount] = (), waste: str | None = None
    ) -> None:
        """Takes what ``spread.size_bins`` and ``spread.frequent_sizes`` give, and a sentence."""
        rows: list[BarRow | str] = [
            BarRow(_sizes(b.low, b.high), b.low, b.high, b.count, b.size_bytes, b.waste)
            for b in bins
        ]
        if frequent:
            rows.append("exact sizes that hold most")
            rows += [
                BarRow(f"{s.size:,} B", s.size, s.size, s.count, s.size_bytes, s.waste)
                for s in frequent
            ]
        if waste is not None and rows:
            rows.append(waste)
        self.show_rows(rows)


def _sizes(low: int, high: int | None) -> str:
    if high is None or low == high:
        return f"{low} B"
    if low < 1024:
        return f"{low} - {high} B"
    # The limits are powers of two: whole numbers of their unit.
    return f"{_whole(low)} - {_whole(high + 1)}"


def _whole(size: int) -> str:
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB")):
        if size >= 1 << power:
            return f"{size >> power} {unit}"
    return f"{size >> 10} KiB"


class AgesView(BarsView):
    """By age, the youngest first."""

    label_title = "age"

    def show(self, bins: Sequence[Bin]) -> None:
        """Takes what ``spread.age_bins`` gives."""
        self.show_rows(
            [
                BarRow(
                    _ages(b.low, b.high),
                    b.low,
                    None if b.high is None else b.high - 1,
                    b.count,
                    b.size_bytes,
                )
                for b in bins
            ]
        )


def _ages(low_ns: int, high_ns: int | None) -> str:
    if high_ns is None:
        return f"over {_time(low_ns)}"
    return f"{_time(low_ns)} - {_time(high_ns)}"


def _time(age_ns: int) -> str:
    """Limits of bins are whole numbers of one unit."""
    seconds = age_ns // NS_PER_S
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s" if seconds < 60 else span(seconds)
