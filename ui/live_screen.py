"""The live view: header, plot, tabs, and below them whichever view is on top."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Input, Static

from tracelloc.ui.columns import BLOCK_COLUMNS, STACK_COLUMNS, block_rows, stack_rows
from tracelloc.ui.flame import FlameView
from tracelloc.ui.header import HeaderLines
from tracelloc.ui.histograms import AgesView, BarsView, SizesView
from tracelloc.ui.keys import LIVE_KEYS
from tracelloc.ui.logview import log_lines
from tracelloc.ui.nodesview import NodesView
from tracelloc.ui.notes import notes_of, why_empty
from tracelloc.ui.picture import Picture
from tracelloc.ui.plot import Flag, Plot, curves_of
from tracelloc.ui.settings import TREES, Settings, View
from tracelloc.ui.source import Facts
from tracelloc.ui.stackpane import FRAME_COLUMNS, frame_rows, lines_of
from tracelloc.ui.state import State
from tracelloc.ui.table import Column, Rows, Table
from tracelloc.ui.tabline import TabLine
from tracelloc.ui.threads import ThreadsView
from tracelloc.ui.tree import TreeView
from tracelloc.ui.verdicts import verdict_line
from tracelloc.units import about_of

NARROW: int = 100
"""Below so many columns the header takes three lines and the plot fewer."""
FLAT: int = 16
"""Below so many lines, or ``SLIM`` columns, there is no plot."""
SLIM: int = 60
LOW: int = 32
"""Below so many lines the stack of the row has no room."""
TINY: int = 9


class LiveScreen(Screen[None]):
    """See the module. It changes settings and draws pictures, and works nothing out."""

    BINDINGS: ClassVar[list[BindingType]] = LIVE_KEYS
    AUTO_FOCUS = "#stacks"

    def __init__(self, state: State, facts: Facts, say: Callable[[], list[str]]) -> None:
        """``say``: messages for the log, oldest first."""
        super().__init__()
        self.state = state
        self._facts = facts
        self._messages = say
        self.picture: Picture | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield HeaderLines(self._facts, id="header")
        yield Plot(id="plot")
        yield TabLine(id="tabs")
        with ContentSwitcher(initial=View.STACKS.value, id="views"):
            yield Table(STACK_COLUMNS, id=View.STACKS.value)
            yield Table(BLOCK_COLUMNS, id=View.BLOCKS.value)
            yield FlameView(id=View.FLAME.value)
            yield TreeView(id=View.TREE.value)
            yield SizesView(id=View.SIZES.value)
            yield AgesView(id=View.AGES.value)
            yield ThreadsView(id=View.THREADS.value)
            with VerticalScroll(id=View.LOG.value):
                yield Static(id="log-lines", markup=False)
        pane = Table(FRAME_COLUMNS, id="pane")
        pane.can_focus = False
        pane.border_title = "stack of the selected row"
        yield pane
        yield Input(placeholder="regex in names, files, modules; Esc clears", id="search")
        yield Footer(show_command_palette=False, compact=True)

    def on_resize(self, event: events.Resize) -> None:
        """What there is room for."""
        width, height = event.size
        self.set_class(width < NARROW, "narrow")
        self.set_class(height < FLAT or width < SLIM, "flat")
        self.set_class(height < LOW, "low")
        self.set_class(height < TINY, "tiny")

    # --- pictures ---

    @property
    def settings(self) -> Settings:
        """What is asked for at the moment."""
        return self.state.settings

    def show(self, picture: Picture) -> None:
        """Draws a picture. Its views are those of the tab it was made for."""
        before = self.picture
        self.picture = picture
        snapshot = picture.snapshot
        with self.app.batch_update():
            self.query_one(HeaderLines).show(picture, self.state.condition)
            if snapshot.series is not None:
                start_ns = snapshot.now_ns - snapshot.elapsed_ns
                flags = [Flag(mark.name, mark.now_ns) for mark in picture.settings.marks]
                if picture.settings.baseline is not None:
                    flags.append(Flag("b", picture.settings.baseline.now_ns))
                curves = curves_of(snapshot.series)
                self.query_one(Plot).show(curves, flags, start_ns, snapshot.now_ns)
            self.query_one(TabLine).show(self.settings.view, notes_of(picture))
            if picture.settings.view is self.settings.view:
                same = before is not None and _order_of(before) == _order_of(picture)
                self._show_view(picture, at_once=not same)
            self._show_pane(picture)

    def _show_view(self, picture: Picture, *, at_once: bool) -> None:
        view = picture.settings.view
        widget = self.query_one(f"#{view.value}")
        if isinstance(widget, Table):
            rows = stack_rows if view is View.STACKS else block_rows
            widget.show(rows(picture, why_empty(picture)), at_once=at_once)
        elif isinstance(widget, FlameView | TreeView):
            if picture.nodes is not None:
                widget.show(picture.nodes, inverted=picture.settings.inverted, at_once=at_once)
                widget.search(picture.settings.search or None)
        elif isinstance(widget, SizesView):
            widget.show(picture.sizes.bins, picture.sizes.frequent, picture.sizes.waste)
        elif isinstance(widget, AgesView):
            widget.show(picture.ages)
        elif isinstance(widget, ThreadsView):
            about = about_of(picture.snapshot.sample_bytes)
            activity = picture.snapshot.threads
            widget.show(picture.threads, activity, about=about, at_once=at_once)
        elif view is View.LOG:
            lines = log_lines(picture, self._facts, self._messages(), self.state.costs)
            self.query_one("#log-lines", Static).update(lines)

    def _show_pane(self, picture: Picture) -> None:
        pane = self.query_one("#pane", Table)
        details = picture.details
        if details is None:
            pane.show(Rows((), lambda _key, _column: ""), at_once=True)
            return
        pane.border_title = verdict_line(details, picture) or "stack of the selected row"
        lines = lines_of(details.stack, details.index, everything=False)
        pane.show(frame_rows(lines), at_once=True)

    # --- views ---

    def action_view(self, name: str) -> None:
        """Puts a tab on top."""
        view = View(name)
        self.query_one(ContentSwitcher).current = name
        self.set_class(view not in (View.STACKS, View.BLOCKS), "other")
        self.set_focus(self.query_one(f"#{name}"))
        self.query_one(TabLine).show(view, "")
        selected = self._selected_stack(self.query_one(f"#{name}"))
        self.state.change(view=view, selected=selected)

    @on(TabLine.Chosen)
    def _tab_chosen(self, message: TabLine.Chosen) -> None:
        self.action_view(message.view.value)

    def _selected_stack(self, widget: Widget) -> int | None:
        if not isinstance(widget, Table):
            return None
        return self._stack_of(widget, widget.cursor_key)

    def on_screen_resume(self) -> None:
        """Shows what has come meanwhile."""
        if self.state.picture is not None and self.picture is not self.state.picture:
            self.show(self.state.picture)
        if self.settings.view in (View.STACKS, View.BLOCKS):
            widget = self.query_one(f"#{self.settings.view.value}")
            self.state.change(selected=self._selected_stack(widget))

    def _stack_of(self, table: Table, key: object) -> int | None:
        if not isinstance(key, int):
            return None
        if table.id == View.STACKS.value:
            return key
        block = None if self.picture is None else self.picture.blocks_by_address.get(key)
        return None if block is None else block.stack

    @on(Table.Moved)
    def _row_changed(self, message: Table.Moved) -> None:
        # Behind another screen rows go on moving; that screen's stack stays selected.
        if message.table.id == self.settings.view.value and self.is_current:
            self.state.change(selected=self._stack_of(message.table, message.key))

    @on(Table.Opened)
    def _row_opened(self, message: Table.Opened) -> None:
        stack = self._stack_of(message.table, message.key)
        if stack is not None:
            self.state.open_details(stack)

    @on(NodesView.Opened)
    def _node_opened(self, message: NodesView.Opened) -> None:
        self.state.open_details(message.stack)

    @on(BarsView.Chosen)
    def _bar_chosen(self, message: BarsView.Chosen) -> None:
        limits = self.settings.limits
        if isinstance(message.view, SizesView):
            limits = replace(limits, min_size_bytes=message.low, max_size_bytes=message.high)
        else:
            limits = replace(limits, min_age_ns=message.low, max_age_ns=message.high)
        self.state.change(limits=limits)
        self.action_view(View.STACKS.value)

    @on(ThreadsView.Chosen)
    def _thread_chosen(self, message: ThreadsView.Chosen) -> None:
        self.state.change(limits=replace(self.settings.limits, tid=message.tid))
        self.action_view(View.STACKS.value)

    # --- order ---

    def _columns(self) -> tuple[Column, ...]:
        return BLOCK_COLUMNS if self.settings.view is View.BLOCKS else STACK_COLUMNS

    @on(Table.SortAsked)
    def _title_clicked(self, message: Table.SortAsked) -> None:
        self.state.sort(message.column)

    def action_sort(self) -> None:
        """By the next column."""
        keys = [column.key for column in self._columns() if column.sorts]
        now = self.state.sorting.column
        self.state.sort(keys[(keys.index(now) + 1) % len(keys)])

    def action_sort_by(self, column: str) -> None:
        """By this column, or what is its like in the view."""
        if self.settings.view is View.BLOCKS:
            column = {"age": "age"}.get(column, "size")
        elif self.settings.view is not View.STACKS:
            self.action_view(View.STACKS.value)
        self.state.sort(column)

    def action_verdicts(self) -> None:
        """Only stacks that are judged so."""
        self.state.next_verdicts()

    def action_reverse(self) -> None:
        """The other way round."""
        self.state.sort(self.state.sorting.column)

    # --- search ---

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Where one types, a slash is a slash."""
        if action == "search":
            return not isinstance(self.focused, Input)
        return super().check_action(action, parameters)

    def action_search(self) -> None:
        """Opens the line to type into."""
        line = self.query_one("#search", Input)
        # At once, not when styles are next worked out: keys may already be on their way.
        line.display = True
        self.set_focus(line)

    @on(Input.Changed, "#search")
    def _search_changed(self, message: Input.Changed) -> None:
        self.state.change(search=message.value)

    @on(Input.Submitted, "#search")
    def _search_done(self) -> None:
        self._close_search()

    def _close_search(self) -> None:
        line = self.query_one("#search", Input)
        if not line.value:
            line.display = False
        self.set_focus(self.query_one(f"#{self.settings.view.value}"))

    def action_back(self) -> None:
        """One step back: search, verdicts, difference, limits, baseline, then the first tab."""
        line = self.query_one("#search", Input)
        settings = self.settings
        if line.display:
            line.value = ""
            self._close_search()
        elif settings.verdicts:
            self.state.change(verdicts=())
        elif settings.difference is not None:
            self.state.change(difference=None)
        elif not settings.limits.is_open:
            self.state.lift_limits()
        elif settings.baseline is not None:
            self.state.change(baseline=None)
        elif settings.view is not View.STACKS:
            self.action_view(View.STACKS.value)
        else:
            self.app.notify("q quits, ? shows all keys", timeout=2)

    # --- what the state does ---

    def action_baseline(self) -> None:
        """Sets it, or lifts it."""
        self.state.toggle_baseline()

    def action_mark(self) -> None:
        """Notes this moment."""
        self.state.set_mark()

    def action_difference(self) -> None:
        """The next thing to compare."""
        self.state.next_difference()

    def action_pause(self) -> None:
        """Freezes the screen, or goes on."""
        self.state.toggle_pause()
        if self.picture is not None:
            self.query_one(HeaderLines).show(self.picture, self.state.condition)

    def action_invert(self) -> None:
        """Flame and tree the other way round."""
        self.state.change(inverted=not self.settings.inverted)
        if self.settings.view not in TREES:
            self.action_view(View.TREE.value)

    def action_metric(self) -> None:
        """Flame and tree by the next metric."""
        if self.settings.view in TREES:
            self.state.next_metric()
        else:
            self.action_view(View.TREE.value)

    def action_noise(self) -> None:
        """Filters off, or on again."""
        self.state.toggle_filters()

    def action_threads(self) -> None:
        """Merges threads, or shows the first one's."""
        self.state.toggle_threads()

    def action_thread(self, step: int) -> None:
        """Another thread's."""
        self.state.step_thread(step)

    def action_copy(self) -> None:
        """The stack of the row, to the clipboard."""
        self.state.copy_stack(None if self.picture is None else self.picture.details)

    def action_leave(self) -> None:
        """Ends the screen."""
        self.state.leave()

    def action_processes(self) -> None:
        """Ends the screen, and asks for another process."""
        self.state.leave(to_picker=True)

    def action_limits(self) -> None:
        """Asks for them."""
        self.state.ask_limits()

    def action_filters(self) -> None:
        """Shows them."""
        self.state.show_filters()

    def action_export(self) -> None:
        """Asks where to."""
        self.state.ask_export()

    def action_help(self) -> None:
        """Shows all keys."""
        self.state.show_help()


def _order_of(picture: Picture) -> Settings:
    """What, if it changes, is to reorder rows at once: the user has asked for it."""
    return replace(picture.settings, selected=None, marks=())
