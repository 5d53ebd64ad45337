"""The list of processes to choose one from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static
from textual.worker import get_current_worker

from tracelloc.target.processes import ProcessInfo, ProcessScan, matching
from tracelloc.ui.cells import crop, fit, right, signed_size, trend
from tracelloc.ui.lines import LIST_KEYS, LineView, Piece
from tracelloc.units import format_size, plural

_WIDE = 100
"""Cells from which on there is room for users and allocators."""
_NARROW = 76
"""And below this there is room for a word only: the line below has the rest."""
_REFRESH_S = 1.0


class ProcessList(LineView[Sequence[ProcessInfo]], can_focus=False):
    """One row per process."""

    header_lines = 1

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self._infos: list[ProcessInfo] = []
        self._moved = False
        self.searching = False

    def show(self, content: Sequence[ProcessInfo], *, at_once: bool = False) -> None:
        """Replaces the list. Once it was moved, the cursor stays on its process."""
        pid = self._infos[self.cursor].pid if self._moved and self._infos else None
        self._infos = list(content)
        self.cursor = next((row for row, info in enumerate(self._infos) if info.pid == pid), 0)
        if pid is None:
            self._moved = False
        self.rows_changed()
        self.show_cursor()
        super().moved()

    def moved(self) -> None:
        """From now on the cursor belongs to the process."""
        self._moved = True
        super().moved()

    @property
    def key(self) -> ProcessInfo | None:
        """The process under the cursor."""
        return self._infos[self.cursor] if self.cursor < len(self._infos) else None

    def row_count(self) -> int:
        """Processes."""
        return len(self._infos)

    def empty_text(self) -> str:
        """Nothing to show."""
        return " No process matches: Esc clears the search." if self.searching else " Looking …"

    def fixed(self, line: int, width: int) -> Iterable[Piece]:
        """The titles."""
        user = f" {'user':<10}" if width >= _WIDE else ""
        title = f"{'pid':>8}{user} {'resident':>9} {'growth/min ▼':>14}  "
        yield title + fit("command", self._command_width(width)), "lines--header"
        yield "  trace" if width < _NARROW else "  can it be traced", "lines--header"

    def _used(self, width: int) -> int:
        """Cells of the other columns."""
        return 8 + (11 if width >= _WIDE else 0) + 10 + 15 + 2

    def _command_width(self, width: int) -> int:
        room = width - self._used(width)
        return max(8, room - 7 if width < _NARROW else room * 6 // 10)

    def row(self, row: int, width: int) -> Iterable[Piece]:
        """A process."""
        info = self._infos[row]
        dim = "lines--dim" if info.trouble else None
        yield f"{info.pid:>8}", dim
        if width >= _WIDE:
            yield " " + fit(info.user, 10), dim
        growth = info.growth_bytes_per_min
        grown = right(f"{signed_size(growth)} {trend(growth)}", 14)
        style = "lines--grown" if growth > 0 else "lines--shrunk" if growth < 0 else dim
        yield f" {format_size(info.rss_bytes):>9} ", dim
        yield grown, style
        command = self._command_width(width)
        yield "  " + fit(info.arguments, command), dim
        room = max(width - self._used(width) - command - 2, 0)
        yield "  " + fit(_word(info) if width < _NARROW else _state(info), room), dim


def _state(info: ProcessInfo) -> str:
    if not info.known:
        return "…"
    if info.trouble is not None:
        return f"no: {info.trouble.value}"
    return info.allocator or ""


def _word(info: ProcessInfo) -> str:
    return "…" if not info.known else "no" if info.trouble else "yes"


class PickerScreen(Screen[int | None]):
    """Its result is the PID of what was chosen, None if nothing was.

    ``refresh_s`` of 0: one look only, for pictures.
    """

    DEFAULT_CSS = """
    PickerScreen {
        & #picker-title { height: 1; text-style: bold; padding: 0 1; }
        & #picker-search { border: none; height: 1; padding: 0 1; }
        & #picker-list { height: 1fr; }
        & #picker-note { height: 1; padding: 0 1; color: $text-muted; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Clear/quit", tooltip="Clear the search, then leave"),
        *(
            Binding(key, f"list('{action}', {step})", text, show=False, priority=True)
            for keys, action, step, text in LIST_KEYS
            for key in keys.split(",")
            if len(key) > 1  # letters are typed into the search
        ),
        Binding("enter", "pick", "Trace", priority=True, tooltip="Trace the process"),
    ]

    def __init__(
        self,
        refresh: Callable[[], list[ProcessInfo]] | None = None,
        *,
        refresh_s: float = _REFRESH_S,
        note: str = "",
    ) -> None:
        """``refresh`` is called on a thread of its own; ``note`` says why one is back here."""
        super().__init__()
        self._look = refresh or ProcessScan().refresh
        self._refresh_s = refresh_s
        self._note = note
        self._infos: list[ProcessInfo] = []
        self._looking = False

    def compose(self) -> ComposeResult:
        """Title, search, list, note, keys."""
        yield Static("tracelloc: which process?", id="picker-title", markup=False)
        yield Input(placeholder="type to search", id="picker-search", select_on_focus=False)
        yield ProcessList(id="picker-list")
        yield Static(id="picker-note", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Looks now, and again and again."""
        self.query_one(Input).focus()
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
            infos = self._look()
        finally:
            self._looking = False
        if not worker.is_cancelled:
            self.app.call_from_thread(self.show, infos)

    def show(self, infos: list[ProcessInfo]) -> None:
        """Takes a new list."""
        self._infos = infos
        self._filter()

    def _filter(self) -> None:
        text = self.query_one(Input).value
        shown = matching(self._infos, text)
        rows = self.query_one(ProcessList)
        rows.searching = bool(text and self._infos)
        rows.show(shown)
        count = plural(len(self._infos), "process").replace("processs", "processes")
        note = f"   ({self._note})" if self._note else ""
        title = f"tracelloc: which process?   {len(shown)} of {count}{crop(note, 200)}"
        self.query_one("#picker-title", Static).update(title)

    def on_input_changed(self) -> None:
        """Searches while typing."""
        self._filter()

    @on(ProcessList.Moved)
    def _say_all(self) -> None:
        """Of the process under the cursor."""
        info, note = self.query_one(ProcessList).key, self.query_one("#picker-note", Static)
        if info is not None:
            note.update(crop(f"{_state(info)}: {info.arguments}", max(self.size.width - 2, 0)))

    def action_list(self, what: str, step: int) -> None:
        """Moves in the list while the search has the keys."""
        getattr(self.query_one(ProcessList), f"action_{what}")(step)

    @on(ProcessList.Chosen)
    def action_pick(self) -> None:
        """Chooses the process under the cursor."""
        info = self.query_one(ProcessList).key
        if info is not None:
            self._choose(info)

    def _choose(self, info: ProcessInfo) -> None:
        if info.trouble is None:
            self.dismiss(info.pid)
            return
        self.app.bell()  # the line below says why

    def action_back(self) -> None:
        """Clears the search; if there is none, leaves."""
        search = self.query_one(Input)
        if search.value:
            search.value = ""
        else:
            self.dismiss(None)
