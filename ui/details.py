"""The screen of one stack: figures, history, frames, source, histograms."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Static

from tracelloc.model.frames import Frame
from tracelloc.show.filters.rules import Rule
from tracelloc.show.presentation.calltree import listed_function
from tracelloc.show.presentation.symboladvice import generated_advice
from tracelloc.snapshots.snapshot import Snapshot, StackStat
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_percent,
    format_size,
    signed_size,
)
from tracelloc.ui import frames
from tracelloc.ui.histogramviews import age_label, bar_rows, histogram_columns, size_label
from tracelloc.ui.keyfooter import KeyFooter
from tracelloc.ui.lineview import bindings
from tracelloc.ui.picture import Picture, SelectedStack
from tracelloc.ui.plot import Curve
from tracelloc.ui.spanplot import SpanPlot
from tracelloc.ui.stackviews import verdict_reasons, verdict_text
from tracelloc.ui.tableview import Table, arrow, crop
from tracelloc.ui.view import Sorting

if TYPE_CHECKING:
    from tracelloc.ui.state import State

_REASON_LINES: Final = 2
_SOURCE_LINES: Final = 5


class DetailScreen(Screen[None]):
    """The screen of one stack, opened by Enter on its row."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("details")]
    AUTO_FOCUS = "#frames"

    def __init__(self, state: State, stack: int) -> None:
        super().__init__()
        self.state = state
        self.stack = stack
        self.details: SelectedStack | None = None
        self._lines: list[frames.FrameLine] = []
        self._everything = False
        self._advice: list[str | None] = []  # Advice on missing names and lines
        self._rules: list[Rule] = []
        self._measure = Sorting("bytes")  # The figure that bars show

    def compose(self) -> ComposeResult:
        yield Static("", id="title", markup=False)
        yield SpanPlot(id="history")
        yield Table(frames.FRAME_COLUMNS, id="frames")
        source = Static("", id="source", markup=False)
        source.border_title = "source"
        yield source
        with Horizontal(id="histograms"):
            yield Table(histogram_columns("size"), id="detail-sizes")
            yield Table(histogram_columns("age"), id="detail-ages")
        yield KeyFooter()

    def on_mount(self) -> None:
        if self.state.picture is not None:
            self.show(self.state.picture)

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < 100, "narrow")
        self.set_class(height < 32, "low")
        self.set_class(height < 22, "short")
        self.set_class(height < 16 or width < 60, "flat")
        self.set_class(self.state.player is not None, "recorded")

    def show(self, picture: Picture) -> None:
        details = picture.details
        if details is None or details.figures.stat.index != self.stack:
            return
        before = self.details
        self.details = details
        figures = details.figures
        with self.app.batch_update():
            title = _title(details, picture, self.state.condition, self.size.width)
            self.query_one("#title", Static).update(title)
            times, sizes = figures.history
            curve = Curve("live", times, sizes, "plot--heap")
            self.query_one(SpanPlot).show([curve], [], times[0], times[-1])
            self._show_bars()
            symbols = self.state.source.symbol_advice(picture.snapshot.target, details.stack)
            advice = [generated_advice(picture.snapshot.runtimes, details.stack), symbols]
            if before is None or before.stack != details.stack or advice != self._advice:
                self._advice = advice
                self._show_frames()

    def _show_bars(self) -> None:
        if self.details is not None:
            found = self.details.figures
            shown = {"sizes": (found.sizes, size_label), "ages": (found.ages, age_label)}
            for name, bins in shown.items():
                self.query_one(f"#detail-{name}", Table).show(bar_rows(*bins, self._measure))

    @on(Table.SortAsked)
    def _measure_asked(self, message: Table.SortAsked) -> None:
        self._measure = Sorting(str(message.key))
        self._show_bars()

    def _show_frames(self) -> None:
        if self.details is None:
            return
        stack, index = self.details.stack, self.details.figures.stat.index
        self._lines = frames.lines_of(stack, index, everything=self._everything)
        notes = [note for note in self._advice if note is not None]
        self.query_one("#frames", Table).show(frames.frame_rows(self._lines, *notes), at_once=True)
        self._show_source()

    @property
    def frame(self) -> Frame | None:
        key = self.query_one("#frames", Table).key
        if not isinstance(key, int) or key >= len(self._lines):
            return None
        return self._lines[key].frame

    @on(Table.Moved, "#frames")
    def _show_source(self) -> None:
        frame, picture = self.frame, self.state.picture
        assert picture is not None
        read, target = self.state.source.read_source, picture.snapshot.target
        lines, why = frames.source_of(read, target, frame, _SOURCE_LINES)
        joined = Text("\n", no_wrap=True, overflow="ellipsis").join(lines)
        text = joined if lines else Text(why, "dim")
        has_line = frame is not None and frame.file is not None and frame.line is not None
        title = f"{frame.file}:{frame.line}" if frame is not None and has_line else "source"
        widget = self.query_one("#source", Static)
        widget.border_title = Text(crop(title, max(10, self.size.width - 4)))
        widget.update(text)

    # --- keys ---

    def action_everything(self) -> None:
        self._everything = not self._everything
        self._show_frames()

    def action_add(self, collapse: bool) -> None:
        frame = self.frame
        rule = None if frame is None else frames.rule_for(frame, collapse=collapse)
        if rule is None:
            self.app.notify("No name to make a rule from", timeout=2)
            return
        self._rules.append(rule)
        self.state.change_filters(lambda filters: filters.add(rule))
        what = f"{rule.action.value}: {crop(rule.label or rule.pattern, 60)}"
        self.app.notify(f"{what} (u undo, W save)", timeout=3, markup=False)

    def action_undo(self) -> None:
        if self._rules:
            rule = self._rules.pop()
            self.state.change_filters(lambda filters: filters.remove(rule))

    def action_save(self) -> None:
        if not self._rules:
            self.app.notify("No rules to save (H hide, z collapse)", timeout=2)
            return
        self.state.save_rules(self._rules)
        self._rules.clear()

    @on(Table.Chosen, "#frames")
    def action_edit(self) -> None:
        if (frame := self._frame_with_file()) is not None:
            frames.open_editor(self.app, frame.file or "", frame.line or 1)

    def action_list_source(self) -> None:
        if (frame := self._frame_with_file()) is not None:
            self.state.open_source(listed_function(frame))

    def _frame_with_file(self) -> Frame | None:
        frame = self.frame
        if frame is not None and frame.file is not None:
            return frame
        self.app.notify("No source for this frame", timeout=2)
        return None


def _title(details: SelectedStack, picture: Picture, condition: str, width: int) -> Text:
    """Returns the title lines, cut to the screen's width; only the reasons are wrapped."""
    figures, stat = details.figures, details.figures.stat
    about = about_of(picture.snapshot.sample_bytes)
    # Short peaks while the ring was full are unknown, and so are those of a sum of processes.
    snapshot = picture.snapshot
    least = "at least " if snapshot.losses.overflows or snapshot.merged is not None else ""
    growth = details.growth
    name = Text(f" {crop(picture.labels.shown(stat.index), width - 2)}", "bold")
    if condition:
        name.append(f"  {condition} ", "bold reverse")
    style = "bold red" if growth > 0 else "green" if growth < 0 else ""
    noun = "block" if stat.live_count == 1 else "blocks"
    held = Text.assemble(
        f" {about}{format_size(stat.live_bytes)} in {about}{stat.live_count:,} {noun}   ",
        (f"{signed_size(growth)}/min {arrow(growth)}   ", style),
        f"peak {least}{format_size(figures.peak_bytes)}",
    )
    every, freed = stat.allocated_count, stat.allocated_count - stat.live_count
    ratio = f" ({format_percent(freed / every)})" if every else ""
    life = f" allocated {every:,}   freed {freed:,}{ratio}   "
    if picture.line is None:
        # Figures of individual blocks are not recorded.
        life += f"mean age {_age(figures.mean_age_ns)}   oldest {_age(figures.oldest_age_ns)}   "
    life += f"newest {_age(figures.last_age_ns)}"
    lines = [name, held, Text(life)]
    if (work := _work(stat, picture.snapshot, about)) is not None:
        lines.append(Text(work))
    threads = [f"{crop(t.name or '[ended]', 16)} ({t.tid})" for t in figures.threads[:4] if t.tid]
    if threads:
        more = len(figures.threads) - len(threads)
        lines.append(Text(f" threads {', '.join(threads)}{f' and {more} more' if more else ''}"))
    if details.judgement is not None:
        lines.insert(1, Text(" ") + verdict_text(details, picture.snapshot))
    for line in lines:
        line.truncate(max(1, width), overflow="ellipsis")
    if details.judgement is not None:
        most = _REASON_LINES + (details.holders is not None)
        why = textwrap.wrap("; ".join(verdict_reasons(details)), max(20, width - 2))[:most]
        lines[2:2] = [Text(f" {part}", "dim") for part in why]
    return Text("\n").join(lines)


def _work(stat: StackStat, snapshot: Snapshot, about: str) -> str | None:
    peak, words = snapshot.peak, []
    if peak is not None:
        share = format_percent(stat.peak_bytes / max(peak.size_bytes, 1))
        words.append(f"at heap peak: {about}{format_size(stat.peak_bytes)} ({share})")
    counts = {"temporary": stat.temporary_count, "freed by other threads": stat.remote_count}
    for what, count in counts.items():
        if count:
            share = format_percent(count / stat.allocated_count)
            words.append(f"{what} {about}{count:,} ({share})")
    return f" {'   '.join(words)}" if words else None


def _age(age_ns: int | None) -> str:
    return "-" if age_ns is None else format_duration(age_ns / NS_PER_S)
