"""The main screen: header, plot, tabs, and the active view below them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingsMap, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ContentSwitcher

from tracelloc.show.analysis.differences import ALL
from tracelloc.show.presentation.symboladvice import generated_advice
from tracelloc.show.tables import Column
from tracelloc.ui import frames
from tracelloc.ui.functions import FUNCTIONS
from tracelloc.ui.groups import GroupKey
from tracelloc.ui.header import HeaderLines, TabLine, notes_of
from tracelloc.ui.keyfooter import KeyFooter, SearchableScreen, SearchLine
from tracelloc.ui.lineview import OTHER_WORDS, FreelySized, LineView, bindings
from tracelloc.ui.objectview import TypeKey, type_words
from tracelloc.ui.picture import Picture
from tracelloc.ui.player import LIVE_ONLY, PLAYER_KEYS
from tracelloc.ui.plot import curves_of
from tracelloc.ui.processview import PROCESSES
from tracelloc.ui.spanplot import SpanPlot
from tracelloc.ui.stackviews import verdict_lines, verdict_text
from tracelloc.ui.state import OLD_S, State
from tracelloc.ui.tableview import Table, no_rows
from tracelloc.ui.tree import TREE
from tracelloc.ui.view import Settings, Span, TraceFacts, View

LIVE_KEYS: Final = bindings("live")


def view_keys(views: Iterable[View[Any]]) -> list[Binding]:
    """Returns the keys that show each view."""
    OTHER_WORDS.update({f"view('{view.name}')": view.others for view in views})
    return [
        Binding(v.key, f"view('{v.name}')", v.title, show=False, tooltip=f"Show {v.title}")
        for v in views
    ]


NARROW: int = 100  # Width below which the header has three lines and the plot fewer
FLAT: int = 16  # Height below which there is no plot; there is none below `SLIM` columns either
SLIM: int = 60
# Height below which the stack of the cursor's row only gets lines that the table leaves empty.
LOW: int = 32
TALL: int = 50  # Height from which the plot and the stack of the cursor's row get more lines
# Lines for that stack, whatever the table needs; from `TALL`; below which it is not shown.
_PANE, _TALL_PANE, _LEAST_PANE = 9, 16, 5
_EMPTY: int = 2  # Lines for why a table has no rows
_SOURCE_LINES: int = 9  # Most source lines below it
TINY: int = 9
_KEYS: frozenset[str] = frozenset(binding.key for binding in LIVE_KEYS)


_FRAMING: int = 2  # Lines of a pane for its border and its columns' names


# What Esc resets, one after another, with the values that leave nothing out.
_OPEN: dict[str, Any] = {
    "verdicts": (), "difference": None, "limits": ALL, "span": None, "baseline": None,
}  # fmt: skip


# The settings of expanded rows.
_EXPANDED: Final = attrgetter("shows_ended", "expanded", "function")


class Views(ContentSwitcher, FreelySized):
    """The widgets of all views; only the active one is shown."""


class Middle(Vertical):
    """The active view, and below it the stack of the cursor's row."""

    async def on_resize(self) -> None:
        await self.run_action("screen.refit")


class LiveScreen(SearchableScreen[None]):
    """The main screen: changes settings and draws pictures, computes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [*LIVE_KEYS]
    AUTO_FOCUS = "#views LineView"
    # Headings of the help, each with the first words of its keys' descriptions.
    KEY_GROUPS: ClassVar[dict[str, tuple[str, ...]]] = {
        "Time": ("Go ", "Play ", "Choose two"),
        "Find": ("Search", "Show only", "Rules that", "Switch all filters", "Show blocks"),
        "Sort": ("Sort", "Reverse"),
        "Compare": ("Set a mark", "Show what", "Freeze"),
        "Views": ("Show ", "Invert", "All processes", "Ended"),
        "Leave": ("Quit", "Choose", "Write", "Copy", "One step", "All keys"),
    }

    def __init__(self, state: State, facts: TraceFacts) -> None:
        super().__init__()
        self.state = state
        self._facts = facts
        self.picture: Picture | None = None
        for key in _KEYS:
            self._bindings.key_to_bindings.pop(key, None)
        keys = BindingsMap(live_keys(state))
        self._bindings = BindingsMap.merge([self._bindings, keys])

    def compose(self) -> ComposeResult:
        yield HeaderLines(self._facts, id="header")
        yield SpanPlot(id="plot")
        yield TabLine(self.state.views, id="tabs")
        with Middle(id="middle"):
            with Views(initial=self.state.views[0].name, id="views"):
                for view in self.state.views:
                    widget = view.widget()
                    widget.id = view.name
                    if view.enter_action:
                        widget.name_enter(view.enter_action)
                    yield widget
            pane = Table(frames.FRAME_COLUMNS, id="pane")
            pane.can_focus = pane.row_cursor = False
            pane.low = 0
            pane.border_title = "stack of the selected row"
            yield pane
        yield SearchLine(placeholder="regex for names, files, modules (Esc clear)")
        yield KeyFooter()

    def on_mount(self) -> None:
        self.set_interval(1.0, self._show_age)

    def _show_age(self) -> None:
        is_old = self.state.age_s >= OLD_S
        if self.picture is not None and (is_old or self.has_class("old")):
            self.set_class(is_old, "old")
            self.query_one(HeaderLines).show(self.picture, self.state.condition)

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        self.set_class(width < NARROW, "narrow")
        self.set_class(height < FLAT or width < SLIM, "flat")
        self.set_class(height >= TALL and width >= NARROW, "tall")
        self.set_class(height < TINY, "tiny")

    # --- pictures ---

    @property
    def settings(self) -> Settings:
        return self.state.settings

    def show(self, picture: Picture) -> None:
        before = self.picture
        self.picture = picture
        with self.app.batch_update():
            self.set_class(picture.header.alert is not None, "alert")
            self.query_one(HeaderLines).show(picture, self.state.condition)
            self._show_plot(picture)
            notes = notes_of(picture)
            self.set_class(bool(notes), "noted")
            self.query_one(TabLine).show(self.settings.view, notes)
            if picture.settings.view is self.settings.view:
                same = before is not None and _order_of(before) == _order_of(picture)
                self.view.show(picture.content, at_once=not same)
            # If the rows have moved, a picture with the new row's details follows.
            stack = self._stack_under_cursor(self.settings.view)
            if not self.is_current or stack in (None, picture.settings.selected):
                self._show_pane(picture)
        self.state.show_together(picture)

    def _show_plot(self, picture: Picture) -> None:
        snapshot, line, settings = picture.snapshot, picture.line, picture.settings
        flags = [(mark.name, mark.now_ns) for mark in settings.marks]
        if settings.baseline is not None:
            flags.append(("b", settings.baseline.now_ns))
        if settings.span is not None:
            flags += zip("[]", settings.span, strict=True)
        series, end_ns = snapshot.series, snapshot.now_ns
        start_ns = end_ns - snapshot.elapsed_ns
        if line is not None:
            root = line.newest.root
            series, start_ns, end_ns = line.points(snapshot), root.started_ns, root.now_ns
            if not line.is_at_end:
                flags.append((line.clock(snapshot.now_ns), snapshot.now_ns))
        if series is not None:
            plot = self.query_one(SpanPlot)
            plot.clock = None if line is None else line.clock
            plot.show(curves_of(series, snapshot), flags, start_ns, end_ns)

    @property
    def view(self) -> LineView[Any]:
        return self.query_one(f"#{self.settings.view.name}", LineView)

    def _show_pane(self, picture: Picture) -> None:
        pane, details = self.query_one("#pane", Table), picture.details
        room, wanted = self._pane_room(), _PANE
        if details is None:
            pane.border_title, words = type_words(self.view.key, picture.snapshot)
            rows = no_rows(words)
        else:
            group = self.view.key if isinstance(self.view.key, GroupKey) else None
            verdict = verdict_text(details, picture.snapshot, group)
            # The colours of a title are those of its style sheet, not of the terminal.
            style = str(verdict.style).replace("red", "$text-error")
            style = style.replace("yellow", "$text-warning")
            pane.border_title = Content.styled(verdict.plain or "stack of the selected row", style)
            lines = frames.lines_of(details.stack, details.figures.stat.index, everything=False)
            notes: list[str | Text] = [*verdict_lines(details, max(self.size.width - 2, 20), group)]
            left = room - _FRAMING - len(lines) - len(notes)
            notes += self._pane_notes(lines, picture, min(left, _SOURCE_LINES))
            rows, wanted = frames.frame_rows(lines, *notes), len(lines) + len(notes) + _FRAMING
        pane.show(rows, at_once=True)
        self.set_class(room < _LEAST_PANE, "crowded")
        pane.set_height(max(min(room, wanted), _LEAST_PANE))

    def _pane_room(self) -> int:
        """Lines for the pane: what the table leaves empty, or its least height."""
        width, height = self.size
        least = 0 if height < LOW or width < NARROW else _TALL_PANE if height >= TALL else _PANE
        middle = self.query_one(Middle)
        rows = max(self.view.row_count(), _EMPTY)
        return max(least, middle.size.height - rows - 1)

    def action_refit(self) -> None:
        if self.picture is not None:
            self._show_pane(self.picture)

    def _pane_notes(
        self, lines: list[frames.FrameLine], picture: Picture, room: int
    ) -> Sequence[str | Text]:
        assert picture.details is not None
        source, target = self.state.source, picture.snapshot.target
        frame = lines[frames.first_line(lines)].frame if lines else None
        found, _ = frames.source_of(source.read_source, target, frame, room)
        if found:
            return found
        stack = picture.details.stack
        advice = generated_advice(picture.snapshot.runtimes, stack)
        advice = advice or source.symbol_advice(target, stack)
        return [] if advice is None else [advice]

    # --- views ---

    def action_view(self, name: str) -> None:
        self._go_to(next(view for view in self.state.views if view.name == name), self.settings)

    def _go_to(self, view: View[Any], settings: Settings) -> None:
        self.query_one(ContentSwitcher).current = view.name
        self.set_class(not view.shows_stack, "other")
        self.query_one(TabLine).show(view, "")
        settings = replace(settings, view=view, selected=self._stack_under_cursor(view))
        self.state.replace_settings(settings)
        self.set_focus(self.view)

    def action_choose_span(self, begin_ns: int = 0, end_ns: int = 0) -> None:
        player, span = self.state.player, Span(begin_ns, end_ns)
        if end_ns and player is None:
            self.state.change(span=span)
        elif end_ns and player is not None:
            player.compare(span)
        self.set_focus(self.view)

    def action_go_to(self, time_ns: int) -> None:
        if self.state.player is not None:
            self.state.player.go_to_ns(time_ns)

    def on_screen_resume(self) -> None:
        if self.state.picture is not None and self.picture is not self.state.picture:
            self.show(self.state.picture)
        self._select_stack()

    @on(LineView.Moved)
    def _row_changed(self, message: LineView.Moved) -> None:
        # Rows also move behind another screen, whose stack stays selected.
        if message.view is self.view and self.is_current:
            self._select_stack()

    def _select_stack(self) -> None:
        self.state.change(selected=self._stack_under_cursor(self.settings.view))

    def _stack_under_cursor(self, view: View[Any]) -> Any:
        if not view.shows_stack:
            return None
        key = self.query_one(f"#{view.name}", LineView).key
        if isinstance(key, GroupKey):
            return key.stack
        return None if key is None or isinstance(key, TypeKey) else view.choose(key, self.settings)

    @on(LineView.Chosen)
    def _row_chosen(self, message: LineView.Chosen) -> None:
        found = self.settings.view.choose(message.key, self.settings)
        if isinstance(found, Settings):
            # Expanding rows does not leave the view.
            opens = _EXPANDED(found) != _EXPANDED(self.settings)
            view = self.settings.view if opens else self.state.views[0]
            self._go_to(view if found.view is self.settings.view else found.view, found)
        elif found is not None:
            self.state.open_details(found)

    # --- order ---

    def _columns(self) -> list[Column[Any]]:
        if not isinstance(self.view, Table):
            return []
        hidden = self.view.without
        return [each for each in self.view.columns if each.sorts and each.key not in hidden]

    @on(Table.SortAsked)
    def _title_clicked(self, message: Table.SortAsked) -> None:
        self.action_sort_by(str(message.key))

    def action_sort(self) -> None:
        keys = [column.key for column in self._columns() if column.key != "peak"]
        at = keys.index(now) if (now := self.settings.sorting.column) in keys else -1
        self.action_sort_by(keys[(at + 1) % len(keys)] if keys else "")

    def action_sort_by(self, name: str) -> None:
        if all(column.key != name for column in self._columns()):
            self._go_to(self.state.views[0], self.settings)
        for column in self._columns():
            if column.key == name:
                self.state.sort(column)

    def action_reverse(self) -> None:
        self.action_sort_by(self.settings.sorting.column)

    # --- search ---

    @on(SearchLine.Changed)
    def _search_changed(self, message: SearchLine.Changed) -> None:
        self.state.change(search=message.value)

    def action_back(self) -> None:
        """Resets one thing: search, verdicts, difference, limits, baseline, then the tab."""
        settings = self.settings
        narrowed = [name for name, all_ in _OPEN.items() if getattr(settings, name) != all_]
        if self.clear_search():
            return
        if narrowed:
            self.state.change(**{narrowed[0]: _OPEN[narrowed[0]]})
        elif settings.function is not None and settings.view is FUNCTIONS:
            self.state.change(function=None)
        elif settings.view is not self.state.views[0]:
            self._go_to(self.state.views[0], settings)
        else:
            self.app.notify("q quit, ? all keys", timeout=2)

    # --- what the state does ---

    def action_freeze(self) -> None:
        self.state.toggle_freeze()
        if self.picture is not None:
            self.query_one(HeaderLines).show(self.picture, self.state.condition)

    def action_list_source(self) -> None:
        self.state.list_source(self.view.key)

    def action_invert(self) -> None:
        self.state.change(inverted=not self.settings.inverted)
        if not self.settings.view.follows_metric:
            self._go_to(TREE, self.settings)

    def action_together(self) -> None:
        self._go_to(self.settings.view, self.state.next_processes())

    def action_ended(self) -> None:
        if PROCESSES in self.state.views:
            shows_ended = not self.settings.shows_ended
            self._go_to(PROCESSES, replace(self.settings, shows_ended=shows_ended))

    def action_metric(self) -> None:
        if self.settings.view.follows_metric:
            self.state.next_metric()
        else:
            self._go_to(TREE, self.settings)


def live_keys(state: State) -> list[Binding]:
    """Returns the main screen's keys that apply to its source."""
    keys = [*view_keys(state.views)]
    if state.player is None:
        return [*LIVE_KEYS, *keys]
    return [*PLAYER_KEYS, *(key for key in LIVE_KEYS if key.key not in LIVE_ONLY), *keys]


def _order_of(picture: Picture) -> tuple[Settings, int | None]:
    """Returns the settings, and the recording's snapshot, whose change reorders rows at once."""
    moment = None if picture.line is None else picture.line.index
    return replace(picture.settings, selected=None, marks=()), moment
