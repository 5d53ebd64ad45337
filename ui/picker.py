"""The screen for choosing a process to trace."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input, Static
from textual.worker import get_current_worker

from tracelloc.model.process import ProcessInfo, matching_processes
from tracelloc.show.tables import Column, Columns
from tracelloc.text import format_duration, format_size, plural, signed_size
from tracelloc.ui import tableview
from tracelloc.ui.keyfooter import KeyFooter
from tracelloc.ui.lineview import LIST_KEYS, bindings

_COLUMNS: Final[Columns[Any]] = (
    Column("pid", "pid", 7, sorts=False),
    Column("user", "user", 10, left=True, from_width=118, sorts=False),
    Column("age", "age", 8, from_width=90, sorts=False),
    Column("resident", "resident", 9, sorts=False),
    Column("growth", "growth/min", 12, sorts=False),
    Column("command", "command", 0, sorts=False),
    Column("word", "traceable", 9, left=True, sorts=False),
    Column("state", "malloc / problem", 26, left=True, from_width=98, sorts=False),
)
ResultT = TypeVar("ResultT")
Found = TypeVar("Found")


def process_rows(infos: Sequence[ProcessInfo], *, searching: bool) -> tableview.TableRows:
    """Returns the table of processes; a row's key is the PID."""
    by_pid = {info.pid: info for info in infos}

    def cell(key: Hashable, column: str) -> tableview.Cell:
        info = by_pid[cast(int, key)]
        growth = info.growth_bytes_per_min
        if column == "growth" and growth:
            return tableview.growth_cell(growth)
        text = {
            "pid": str(info.pid), "user": info.user, "age": format_duration(info.age_s),
            "resident": format_size(info.rss_bytes), "command": info.arguments,
            "growth": f"{signed_size(growth)} {tableview.arrow(growth)}",
            "word": "…" if not info.known else "no" if info.trouble else "yes",
            "state": _state(info),
        }[column]  # fmt: skip
        if column == "command" and not info.trouble:
            return tableview.CommandCell(tableview.clean(text))
        return Text(tableview.clean(text), "dim") if info.trouble else text

    empty = "No process matches: Esc clears the search." if searching else "Looking …"
    return tableview.TableRows(list(by_pid), cell, "growth", empty=empty)


def _state(info: ProcessInfo) -> str:
    known = info.allocator or "" if info.trouble is None else info.trouble.value
    return known if info.known else "…"


class RefreshedScreen(Screen[ResultT], Generic[Found, ResultT]):
    """A screen whose content is read at intervals, in a thread of its own."""

    def __init__(self, refresh: Callable[[], Found], refresh_s: float) -> None:
        """``refresh_s``: seconds between reads; 0: read only once, for screenshots."""
        super().__init__()
        self._look, self._refresh_s = refresh, refresh_s
        self._looking = False

    def show(self, found: Found) -> None:
        raise NotImplementedError

    def say(self, where: str, text: str) -> None:
        shown = tableview.crop(text, max(self.size.width - 2, 0))
        self.query_one(f"#{where}", Static).update(shown)

    def on_mount(self) -> None:
        self._look_again()
        if self._refresh_s:
            self.set_interval(self._refresh_s, self._look_again)

    def _look_again(self) -> None:
        if not self._looking:
            self._looking = True
            self._look_now()

    @work(thread=True, group="picker")
    def _look_now(self) -> None:
        worker = get_current_worker()
        try:
            found = self._look()
        finally:
            self._looking = False
        if not worker.is_cancelled:
            self.app.call_from_thread(self.show, found)


class PickerScreen(RefreshedScreen[list[ProcessInfo], int | None]):
    """Lists processes; the result is the chosen PID, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("picker"),
        *(
            Binding(key, f"list({each.action!r})", show=False, priority=True, tooltip=each.tooltip)
            for each in LIST_KEYS
            for key in each.key.split(",")
            if len(key) > 1 and key != "enter"  # letters are typed into the search
        ),
    ]

    def __init__(
        self, refresh: Callable[[], list[ProcessInfo]], *, refresh_s: float = 1.0, note: str = ""
    ) -> None:
        """``refresh``: lists processes, in its own thread; ``note``: why it is asked again."""
        super().__init__(refresh, refresh_s)
        self._note = note
        self._infos: list[ProcessInfo] = []

    def compose(self) -> ComposeResult:
        yield Static("tracelloc: which process?", id="title", markup=False)
        yield Input(placeholder="type to search", id="typed", select_on_focus=False)
        rows = tableview.Table(_COLUMNS, id="list")
        rows.can_focus = False
        yield rows
        yield Static(id="note", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def show(self, found: list[ProcessInfo]) -> None:
        self._infos = found
        self._filter()
        # At once, but not for each process that starts now: a machine may start many.
        if self._refresh_s and any(not one.known and one.age_s > self._refresh_s for one in found):
            self._look_again()

    @on(Input.Changed)
    def _filter(self) -> None:
        text = self.query_one(Input).value
        shown = matching_processes(self._infos, text)
        rows = process_rows(shown, searching=bool(text and self._infos))
        self.query_one(tableview.Table).show(rows, at_once=True)
        self._say_all()
        count = plural(len(self._infos), "process")
        note = f"   ({self._note})" if self._note else ""
        title = f"tracelloc: which process?   {len(shown)} of {count}{tableview.crop(note, 200)}"
        self.say("title", title)

    @property
    def current(self) -> ProcessInfo | None:
        pid = self.query_one(tableview.Table).key
        return next((info for info in self._infos if info.pid == pid), None)

    @on(tableview.Table.Moved)
    def _say_all(self) -> None:
        text = ""
        if (info := self.current) is not None:
            state = _state(info)
            state = state if info.trouble is None else f"cannot be traced ({state})"
            text = f"{state}: {info.arguments}"
        self.say("note", text)

    async def action_list(self, action: str) -> None:
        await self.query_one(tableview.Table).run_action(action)

    @on(tableview.Table.Chosen)
    def action_pick(self) -> None:
        if (info := self.current) is not None and info.trouble is None:
            self.dismiss(info.pid)
        elif info is not None:
            self.app.bell()  # the note says why

    def action_back(self) -> None:
        if (search := self.query_one(Input)).value:
            search.value = ""
        else:
            self.dismiss(None)
