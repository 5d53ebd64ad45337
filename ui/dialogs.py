"""The dialogs for quitting, limits, filters, times and export; Esc closes each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label
from textual.worker import get_current_worker

from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.analysis.differences import Limits
from tracelloc.show.export import EXPORTERS, exporter_for
from tracelloc.show.export.outputfile import OutputFile
from tracelloc.show.filters.rules import Rule
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.recording.joined import parse_time
from tracelloc.show.tables import Column
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import (
    NS_PER_S,
    format_duration,
    format_size,
    format_time,
    parse_duration,
    parse_size,
    plural,
)
from tracelloc.ui.lineview import bindings
from tracelloc.ui.tableview import Table, TableRows, clean

if TYPE_CHECKING:
    from tracelloc.ui.state import State


T = TypeVar("T")
_PROGRESS_S: Final = 0.2
_NAMES_S: Final = 0.5  # Time to wait for names before the export checks whether it was cancelled


class Dialog(ModalScreen[T]):
    """A box in the middle of the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close", tooltip="Close without changes", id="dialog.close")
    ]


class QuitDialog(Dialog[str]):
    """Asks whether to discard the traced data; the result is the user's choice."""

    QUIT: ClassVar[str] = "quit"
    EXPORT: ClassVar[str] = "export"
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        ("q,enter", f"dismiss('{QUIT}')", "Quit"),
        ("e", f"dismiss('{EXPORT}')", "Export"),
    ]

    def __init__(self, elapsed_ns: int) -> None:
        super().__init__()
        self._elapsed_s = round(elapsed_ns / NS_PER_S)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Quit?"
            yield Label(f"{format_duration(self._elapsed_s)} of tracing have not been exported.")
            yield Label("q quit · e export first · Esc continue tracing", classes="note")


_FIELDS: Final = (
    ("min_age_ns", "minimum age", "5m"), ("max_age_ns", "maximum age", "1h"),
    ("min_size_bytes", "minimum size", "4k"), ("max_size_bytes", "maximum size", "1MiB"),
)  # fmt: skip


class LimitsDialog(Dialog[Limits]):
    """Asks for limits of size and age; an empty input means no limit."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Limits: only blocks within"
            for name, title, example in _FIELDS:
                with Horizontal(classes="row"):
                    yield Label(title)
                    yield Input(self._text(name), placeholder=f"e.g. {example}", id=name)
            yield Label("", id="wrong", classes="wrong", markup=False)
            yield Label("Enter apply · Tab next · Esc cancel", classes="note")

    def _text(self, name: str) -> str:
        value = getattr(self._limits, name)
        if not value:
            return ""
        if not name.endswith("_ns"):
            return str(value)
        text = format_duration(value / NS_PER_S)
        return text if parse_duration(text) == value / NS_PER_S else f"{value / NS_PER_S:.9g} s"

    @on(Input.Submitted)
    def apply(self) -> None:
        found: dict[str, int | None] = {}
        for name, _, _ in _FIELDS:
            text = self.query_one(f"#{name}", Input).value.strip()
            lowest = 0 if name.startswith("min") else None
            try:
                if not text:
                    found[name] = lowest
                elif name.endswith("_ns"):
                    found[name] = round(parse_duration(text) * NS_PER_S)
                else:
                    found[name] = parse_size(text)
            except ValueError as error:
                self.query_one("#wrong", Label).update(str(error))
                return
        self.dismiss(replace(self._limits, **found))  # type: ignore[arg-type]


class FilterDialog(Dialog[None]):
    """Lists the filter groups and the added rules, to switch and delete them."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("filters")]

    def __init__(
        self, state: State, groups: Mapping[str, bool], added: Sequence[Rule],
        effects: Mapping[str, tuple[int, str]],
    ) -> None:  # fmt: skip
        """``effects``: by group the number of frames that it hides now, and what these are."""
        super().__init__()
        self._effects = effects
        self.state = state
        self._groups = dict(groups)
        self._added = list(added)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Filters: frames to hide or collapse"
            yield Table([Column("name", "")], id="groups")
            yield Label(
                "Enter/Space switch · n all · Delete an added rule · W save rules\n"
                "H or z on a frame of a stack adds a rule · Esc close",
                classes="note",
                markup=False,
            )

    def on_mount(self) -> None:
        self._redraw()

    def _redraw(self) -> None:
        found: dict[Hashable, str] = {}
        for name, is_on in self._groups.items():
            count, what = self._effects.get(name, (0, ""))
            effect = f"{plural(count, 'frame'):>10}  {clean(what)}"
            found[name] = f"[{'x' if is_on else ' '}] {clean(name):<10} {effect}"
        for number, rule in enumerate(self._added):
            found[number] = f"    {rule.action.value} {clean(rule.pattern)}"
        rows = TableRows(list(found), lambda key, _column: found[key])
        self.query_one(Table).show(rows, at_once=True)

    @on(Table.Chosen)
    def action_switch_group(self) -> None:
        key = self.query_one(Table).key
        if isinstance(key, str):
            self._switch(key, not self._groups[key])
            self._redraw()

    def _switch(self, name: str, enabled: bool) -> None:
        self._groups[name] = enabled
        self.state.change_filters(lambda filters: filters.set_group(name, enabled))

    def action_all(self) -> None:
        enabled = not all(self._groups.values())
        for name in self._groups:
            self._switch(name, enabled)
        self._redraw()

    def action_drop(self) -> None:
        key = self.query_one(Table).key
        if isinstance(key, int):
            rule = self._added.pop(key)
            self.state.change_filters(lambda filters: filters.remove(rule))
            self._redraw()

    def action_save(self) -> None:
        if self._added:
            self.state.save_rules(self._added)


class TimeDialog(Dialog[float]):
    """Asks for a time in a recording; the result is in seconds since 1970."""

    def __init__(self, first_s: float, last_s: float) -> None:
        super().__init__()
        self._recorded = first_s, last_s

    def compose(self) -> ComposeResult:
        first, last = map(format_time, self._recorded)
        with Vertical(classes="box") as box:
            box.border_title = "Go to a time"
            yield Label(f"recorded from {first} to {last}")
            yield Input(placeholder="e.g. 03:15, 03:15:30, +90m, -5m", id="time")
            yield Label("", id="wrong", classes="wrong", markup=False)
            yield Label("Enter go · Esc cancel", classes="note")

    @on(Input.Submitted)
    def _take(self, message: Input.Submitted) -> None:
        try:
            self.dismiss(parse_time(message.value.strip(), *self._recorded))
        except UsageError as error:
            self.query_one("#wrong", Label).update(f"{error}")


# File formats on offer; HTML comes first, since it needs no other program.
_FORMATS: Final = sorted(EXPORTERS, key=lambda suffix: suffix != ".html")


class ExportCancelledError(Exception):
    """The user left the dialog, so no file is written."""


class ExportDialog(Dialog[None]):
    """Asks for a path and a format, writes the file in its own thread, and shows the result."""

    def __init__(self, snapshot: Snapshot, namer: Namer) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._namer = namer
        self._working = False
        self._existing: Path | None = None  # The file that Enter would overwrite

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "Export: the suffix chooses the format"
            yield Input(self._suggestion(), id="path", select_on_focus=False)
            yield Table([Column("name", "")], id="formats")
            yield Label("", id="result", markup=False)
            yield Label("Enter write · Tab, arrows choose a format · Esc cancel", classes="note")

    def _suggestion(self) -> str:
        command = re.sub(r"[^\w.-]+", "-", self._snapshot.target.command) or "heap"
        moment = time.strftime("%H%M%S", time.localtime(self._snapshot.time_s))
        return f"{command}-{self._snapshot.target.pid}-{moment}{_FORMATS[0]}"

    def on_mount(self) -> None:
        def cell(suffix: Hashable, _column: str) -> str:
            return f"{suffix:<17} {EXPORTERS[str(suffix)].title}"

        self.query_one(Table).show(TableRows(_FORMATS, cell))

    @on(Table.Moved)
    def _format_chosen(self, message: Table.Moved) -> None:
        suffix = str(message.key)
        line = self.query_one("#path", Input)
        for known in sorted(EXPORTERS, key=len, reverse=True):
            if line.value.endswith(known):
                line.value = line.value.removesuffix(known) + suffix
                return
        line.value += suffix

    @on(Input.Submitted)
    @on(Table.Chosen)
    def _start(self) -> None:
        if self._working:
            return
        try:
            path = Path(self.query_one("#path", Input).value).expanduser()
            target = self._snapshot.target
            output = OutputFile(path, exporter_for(str(path)))
            output = output.at(target.pid, self._snapshot.time_s)
            output.check()
            if output.path.is_file() and output.path != self._existing:
                self._existing = output.path
                self._say(f"{output.path.name} exists: Enter overwrites it")
                return
        except (TracellocError, RuntimeError, ValueError) as error:
            self._say(f"error: {error}")
            return
        self._working = True
        self._say("writing…")
        self._write(output)

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#result", Label).update(clean(text))

    @work(thread=True, exclusive=True)
    def _write(self, output: OutputFile) -> None:
        from tracelloc.show.presentation.combined import profile_of  # noqa: PLC0415 - the first screen does without it

        worker = get_current_worker()

        def pieces() -> Iterator[bytes]:
            stats = self._snapshot.top_stacks(freed=output.needs_freed)
            indices = [stat.index for stat in stats]
            while not self._namer.prepare(self._snapshot, indices, _NAMES_S):
                if worker.is_cancelled:
                    raise ExportCancelledError
                self._tell(f"reading symbols, {self._namer.symbols.waiting:,} addresses left")
            written, said_s = 0, time.monotonic()
            profile = profile_of(self._snapshot, self._namer, freed=output.needs_freed)
            for piece in output.content(profile):
                if worker.is_cancelled:
                    raise ExportCancelledError
                written += len(piece)
                if time.monotonic() - said_s > _PROGRESS_S:
                    said_s = time.monotonic()
                    self._tell(f"writing, {format_size(written)}")
                yield piece

        try:
            output.write(pieces())
        except ExportCancelledError:
            return
        except TracellocError as error:
            self._tell(f"error: {error}", done=True)
        else:
            size = format_size(output.path.stat().st_size) if output.path.is_file() else ""
            self.app.call_later(self._leave, f"wrote {output.path.absolute()} {size}")

    def _leave(self, text: str) -> None:
        self.app.notify(clean(text), markup=False)
        if self.is_current:
            self.dismiss()

    def _tell(self, text: str, *, done: bool = False) -> None:
        def say() -> None:
            self._say(text)
            if done:
                self._working = False

        self.app.call_later(say)
