"""The header: the target, its live bytes and growth, and the tabs."""

import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from tracelloc.model.process import RUNNING_PROCESSES, Space
from tracelloc.model.verdicts import Verdict
from tracelloc.show.analysis.differences import Limits
from tracelloc.show.presentation.alerts import tracing_cost
from tracelloc.show.presentation.objects import type_suspects
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.presentation.suspects import lost_bytes, suspects_of, unsure_growth
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    NS_PER_S,
    about_of,
    format_duration,
    format_estimate,
    format_percent,
    format_size,
    plural,
    signed_size,
)
from tracelloc.ui import tableview
from tracelloc.ui.picture import Picture
from tracelloc.ui.view import TraceFacts, View
from tracelloc.verdict.parameters import P

ALERT = "bold reverse"
_GAP = "  "
# Factor of the CPU time, processors, and share of the ring from which costs are shown.
_NOTABLE_FACTOR, _NOTABLE_CORES, _NOTABLE_RING = 1.2, 0.05, 0.5
_WORD = re.compile("[A-Za-z]{3,}")  # What the help may explain
_LEAKS = 23  # Width of the number of leaks and their rate
_SOON_S = 3600.0  # Forecasts of less than this are highlighted


class HeaderLines(Widget):
    """The widget of two header lines, or three on narrow screens, with clickable words."""

    def __init__(self, facts: TraceFacts, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._facts = facts
        self._picture: Picture | None = None
        self._state = ""

    def show(self, picture: Picture, state: str) -> None:
        self._picture, self._state = picture, state
        self.refresh()

    async def on_click(self, event: events.Click) -> None:
        lines = self.render().plain.split("\n")
        line = lines[event.y] if event.y < len(lines) else ""
        for word in _WORD.finditer(line):
            if word.start() <= event.x < word.end():
                await self.run_action(f"app.ask('show_help', {word[0]!r})")

    def render(self) -> Text:
        if self._picture is None:
            return Text(" tracelloc  …")
        return head_text(self._picture, self._facts, self._state, *self.size)


def head_text(picture: Picture, facts: TraceFacts, state: str, width: int, height: int) -> Text:
    """Returns the header's lines, each of exactly the given width."""
    lines = [_alert(picture, width)] if picture.header.alert is not None and height > 1 else []
    lines.append(_first(picture, facts, state, width))
    height -= len(lines) - 1
    parts = _figures(picture)
    rows = [parts]
    if height >= 3:
        first = next(n for n in range(len(parts), 0, -1) if n == 1 or _fits(parts[:n], width))
        rows = [parts[:first], parts[first:]]
    lines += [_justify(row, [], width) for row in rows]
    text = Text("\n").join(lines)
    text.no_wrap = True
    return text


def _alert(picture: Picture, width: int) -> Text:
    alert = picture.header.alert
    assert alert is not None
    choices = alert.sentence, alert.clause, alert.short
    words = next((text for text in choices if len(text) + 2 <= width), alert.short)
    return Text(tableview.fit(f" {words}", width), ALERT)


def _first(picture: Picture, facts: TraceFacts, state: str, width: int) -> Text:
    snapshot = picture.snapshot
    who = Text(target_name(snapshot), "bold")
    if picture.process_count > 1 and snapshot.merged is None:
        who.append(f" 1 of {picture.process_count:,} (T: all)", "not bold")
    left = [
        Text("tracelloc", "dim"), who, Text(tableview.clean(", ".join(facts.allocators)), "dim"),
        Text(f"traced {format_duration(snapshot.elapsed_ns // NS_PER_S)}"),
    ]  # fmt: skip
    if state:
        left.append(Text(f" {state} ", "bold reverse"))
    # What comes and goes is here, where it moves nothing else.
    right = [Text(f"{tableview.short_count(snapshot.overhead.events_per_s)} events/s")]
    right += _overhead(picture)
    right += _rare(picture)
    # If there is too little room, the least important parts are dropped first.
    for drop in (2, 0):
        if _length(left) + _length(right) + 3 <= width:
            break
        if drop < len(left) - 1:
            del left[drop]
    while len(right) > 1 and _length(left) + _length(right) + 3 > width:
        del right[0]
    if state and _length(left) + _length(right) + 3 > width:
        del left[-2]
    return _justify(left, right, width)


def target_name(snapshot: Snapshot) -> str:
    """Formats the shown processes: ``server (4711)``, ``all 8 processes``."""
    if snapshot.merged is not None:
        count, ended = snapshot.merged.process_count, snapshot.merged.ended_count
        if snapshot.target.number == RUNNING_PROCESSES:
            return f"{count:,} running processes"
        parts = f": {count - ended:,} running, {ended:,} ended" if ended else ""
        return f"all {count:,} processes{parts}"
    pid = snapshot.target.pid
    return tableview.clean(snapshot.target.command) + (f" ({pid})" if pid else "")


def _overhead(picture: Picture) -> list[Text]:
    cost, share = tracing_cost(picture.snapshot), picture.header.ring_share
    parts = []
    if cost is not None and cost.factor >= _NOTABLE_FACTOR and cost.cores >= _NOTABLE_CORES:
        parts.append(Text(cost.short))
    if share >= _NOTABLE_RING:
        parts.append(
            Text(f"ring {format_percent(share, 0)} full", tableview.GROWING if share > 0.8 else "")
        )
    return parts or [Text("overhead low")]


def _rare(picture: Picture) -> Iterator[Text]:
    snapshot, forecast, merged = picture.snapshot, picture.header.forecast, picture.snapshot.merged
    if merged is not None and merged.ended_count:
        unfreed = format_size(merged.ended_bytes) if merged.ended_bytes else "nothing"
        yield Text(f"{unfreed} unfreed by ended ones", "dim")
    if old := lost_bytes(snapshot)[1]:
        yield Text(
            f"{format_size(old)} lost from before tracing", tableview.VERDICT_STYLES[Verdict.LOST]
        )
    if forecast is not None:
        style = tableview.GROWING if forecast.left_s < _SOON_S else ""
        yield Text(f"{forecast.limit.what} full in {format_estimate(forecast.left_s)}", style)
    lost = snapshot.losses.events
    if snapshot.count_bounds is not None:
        least, most = snapshot.count_bounds
        yield Text(f"lost {lost:,}, {least:,} to {most:,} blocks live", tableview.GROWING)
        return
    words = [f"lost {lost:,}"] if lost else []
    if overflows := snapshot.losses.overflows:
        words.insert(0, f"{overflows:,} ring overflows")
    if partial := snapshot.partial_allocations:
        words.append(f"{partial:,} with partial stacks")
    if words:
        yield Text(", ".join(words), tableview.GROWING if lost else "")


def _figures(picture: Picture) -> list[Text]:
    """Returns figures of fixed widths: each one stays where it is."""
    figures, snapshot = picture.header, picture.snapshot
    about = about_of(snapshot.sample_bytes)
    name = "Heap" if snapshot.space is Space.HOST else "GPU"
    size = f"{about}{format_size(snapshot.live_bytes):>8}"
    heap = Text.assemble((f"{name:4} ", "dim"), (size, "bold"))
    growth = int(snapshot.growth_per_min.sum())
    style = tableview.GROWING if growth > 0 else tableview.SHRINKING if growth < 0 else ""
    blocks = f"{about}{plural(snapshot.live_count, 'block')}"
    leaks = _leaks(snapshot)
    leaks = Text.assemble(leaks, " " * (_LEAKS - leaks.cell_len))
    return [
        heap.append(f" {tableview.arrow(growth)} {signed_size(growth):>9}/min", style), leaks,
        *_objects(snapshot), _resident(picture),
        Text(f"{blocks:>13} {tableview.arrow(figures.count_growth)}"),
        Text(
            f"alloc {tableview.short_count(figures.allocations_per_s):>5}/s  "
            f"free {tableview.short_count(figures.frees_per_s):>5}/s"
        ),
        Text(f"{plural(snapshot.live_stacks, 'stack'):>9}"), *_peak(snapshot, about),
    ]  # fmt: skip


def _leaks(snapshot: Snapshot) -> Text:
    judgements = [suspect.judgement for suspect in suspects_of(snapshot)]
    types = type_suspects(snapshot)
    for verdict, words in ((Verdict.LEAKING, "leak"), (Verdict.GROWING, "growing")):
        rates = [j.rate_bytes_per_min for j in judgements if j.verdict is verdict]
        rates += [each.bytes_per_min for each in types if each.verdict is verdict]
        if verdict is Verdict.GROWING:
            rates += unsure_growth(snapshot)[1].tolist()
        if rates:
            about = about_of(snapshot.sample_bytes)
            rate = f"{about}{format_size(round(sum(rates)))}/min"
            what = plural(len(rates), words) if words == "leak" else f"{len(rates)} {words}"
            return Text(f"{what}, {rate}", tableview.VERDICT_STYLES[verdict])
    left_s = P.first_verdict_s - snapshot.elapsed_ns / NS_PER_S
    if left_s > 0 and snapshot.events:
        return Text(f"verdict in {format_duration(math.ceil(left_s))}", "dim")
    return Text("no leak so far" if snapshot.events else "no events so far", "dim")


def _objects(snapshot: Snapshot) -> list[Text]:
    census = None if snapshot.objects is None else snapshot.objects.now
    return [] if census is None else [Text(f"objects {format_size(census.block_bytes):>8}")]


def _peak(snapshot: Snapshot, about: str) -> list[Text]:
    peak = snapshot.peak
    if peak is None:
        return []
    # Short peaks while the ring was full are unknown.
    least = "at least " if snapshot.losses.overflows else ""
    ago_s = max(0, snapshot.now_ns - peak.time_ns) // NS_PER_S
    when = f"{format_duration(ago_s)} ago" if ago_s else "now"
    return [Text(f"peak {least}{about}{format_size(peak.size_bytes)} {when}")]


def _resident(picture: Picture) -> Text:
    rss_bytes, account = picture.snapshot.rss_bytes, picture.header.account
    words = "RSS" if picture.snapshot.merged is None else "total RSS"
    memory = picture.snapshot.memory
    if rss_bytes is None and memory is not None:
        words, rss_bytes = "last RSS", memory.now.rss
    text = Text("RSS ended" if rss_bytes is None else f"{words} {format_size(rss_bytes):>8}")
    if account is not None and account.traced_share is not None:
        share = account.traced_share
        traced = "all" if share >= 0.9995 else format_percent(share)
        text.append(f" ({signed_size(account.growth_bytes)}, {traced} explained)")
    return text


def _length(parts: list[Text]) -> int:
    return sum(part.cell_len for part in parts) + len(_GAP) * max(0, len(parts) - 1)


def _fits(parts: list[Text], width: int) -> bool:
    return _length(parts) + 2 <= width


def _justify(left: list[Text], right: list[Text], width: int) -> Text:
    """Aligns parts left and right; a part that does not fit is left out as a whole."""
    left = list(left)
    while len(left) > 1 and not _fits(left, width):
        left.pop()
    line = Text(" ") + Text(_GAP).join(left)
    if right:
        end = Text(_GAP).join(right)
        space = width - line.cell_len - end.cell_len - 1
        if space > 0:
            line = line + Text(" " * space) + end
    return Text(tableview.fit(line.plain, width)) if line.cell_len > width else line


class TabLine(Widget):
    """Tabs in a line, and notes on modes below. On narrow screens, the last ones are keys only."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tabs--active", "tabs--note"}

    def __init__(self, views: Sequence[View[Any]], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._views = views
        self._active = views[0]
        self._notes = ""

    def show(self, active: View[Any], notes: str) -> None:
        if (active, notes) != (self._active, self._notes):
            self._active, self._notes = active, notes
            self.refresh()

    def _labels(self, room: int) -> list[tuple[View[Any], str]]:
        full = [(view, f" {view.key} {view.title} ") for view in self._views]
        tight = [(view, label if view is self._active else label[:-1]) for view, label in full]
        bare = [(view, label if view is self._active else f" {view.key} ") for view, label in full]
        shorter = (tight[:whole] + bare[whole:] for whole in range(len(full), 0, -1))
        for labels in (full, *shorter):
            if sum(len(label) for _, label in labels) <= room:
                return labels
        return bare

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        if y:
            style = self.get_component_rich_style("tabs--note")
            note = Segment(f" {tableview.crop(self._notes, width - 1)}", style)
            return Strip([note]).adjust_cell_length(width, base)
        active = self.get_component_rich_style("tabs--active")
        labels = self._labels(width)
        parts = [Segment(label, active if view is self._active else base) for view, label in labels]
        return Strip(parts).adjust_cell_length(width, base)

    async def on_click(self, event: events.Click) -> None:
        left = 0
        for view, label in self._labels(self.size.width):
            left += len(label)
            if event.x < left:
                await self.run_action(f"screen.view({view.name!r})")
                return


def notes_of(picture: Picture) -> str:
    """Returns the notes below the tabs."""
    settings = picture.settings
    notes, peak = _limits(settings.limits), picture.snapshot.peak
    if settings.shows_peak and peak is not None:
        notes += [f"at the {part.plain}" for part in _peak(picture.snapshot, "")]
    if settings.view.follows_metric and settings.metric is not Metric.BYTES:
        notes.append(f"by {settings.metric.value} (w)")
    if settings.baseline is not None:
        notes.append("since baseline (b)")
    if settings.span is not None:
        # By the clock on the wall
        ahead_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        clocks = ((moment + ahead_ns) / NS_PER_S for moment in settings.span)
        first, last = (time.strftime("%H:%M:%S", time.localtime(each)) for each in clocks)
        notes.append(f"span {first}–{last} {format_size(picture.found_bytes)} (x)")
    if settings.difference is not None:
        now = "now" if picture.line is None else picture.line.clock(picture.snapshot.now_ns)
        notes.append(f"change {settings.difference.title(now)} (d)")
    if settings.verdicts:
        notes.append(f"only {' or '.join(map(tableview.verdict_word, settings.verdicts))} (V)")
    if settings.search:
        notes.append(f"{plural(picture.found, 'stack')} match")
    if not settings.filters_on:
        notes.append("filters off (n)")
    if picture.names_pending:
        notes.append(f"naming {picture.names_pending:,} more")
    return "  ".join(notes)


def _limits(limits: Limits) -> list[str]:
    ages = ("≥", limits.min_age_ns or None), ("≤", limits.max_age_ns)
    sizes = ("≥", limits.min_size_bytes or None), ("≤", limits.max_size_bytes)
    words = [f"age {sign} {format_duration(n / NS_PER_S)}" for sign, n in ages if n is not None]
    words += [f"size {sign} {format_size(n)}" for sign, n in sizes if n is not None]
    return words if limits.tid is None else [*words, f"thread {limits.tid}"]
