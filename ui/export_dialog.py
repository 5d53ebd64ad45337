"""Writes the stacks that are on the screen to a file, in a thread of its own."""

from __future__ import annotations

import re
import time
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label
from textual.worker import get_current_worker

from tracelloc.command.outputs import Output
from tracelloc.errors import TracellocError
from tracelloc.export import EXPORTERS
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.ui.cells import clean
from tracelloc.ui.dialogs import Dialog
from tracelloc.ui.table import Column, Rows, Table
from tracelloc.units import format_size
from tracelloc.views.naming import Namer

_PROGRESS_S: Final = 0.2
_NAMES_S: Final = 0.5
"""How long names are waited for at a time."""


class CancelledError(Exception):
    """The user has left the dialog: nothing is to be written."""


class ExportDialog(Dialog[None]):
    """A path, the formats, and what became of it."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, snapshot: Snapshot, namer: Namer) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._namer = namer
        self._working = False

    def compose(self) -> ComposeResult:
        """The box."""
        with Vertical(classes="box") as box:
            box.border_title = "Export: the suffix names the format"
            yield Input(self._suggestion(), id="path", select_on_focus=False)
            yield Table([Column("name", "", 0, right=False)], id="formats")
            yield Label("", id="result", markup=False)
            yield Label("Enter writes, Tab and arrows choose a format, Esc cancels", classes="note")

    def _suggestion(self) -> str:
        command = re.sub(r"[^\w.-]+", "-", self._snapshot.target.command) or "heap"
        moment = time.strftime("%H%M%S", time.localtime(self._snapshot.time_s))
        first = next(iter(EXPORTERS))
        return f"{command}-{self._snapshot.target.pid}-{moment}{first}"

    def on_mount(self) -> None:
        """Fills the list."""

        def cell(suffix: Hashable, _column: str) -> str:
            return f"{suffix:<17} {EXPORTERS[str(suffix)].name}"

        self.query_one(Table).show(Rows(list(EXPORTERS), cell))

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
            output = Output.by_suffix(str(path)).at(target.pid, self._snapshot.time_s)
            output.check()
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
    def _write(self, output: Output) -> None:
        worker = get_current_worker()

        def pieces() -> Iterator[bytes]:
            stats = self._snapshot.top_stacks(freed=output.needs_freed)
            indices = [stat.index for stat in stats]
            while not self._namer.prepare(self._snapshot, indices, _NAMES_S):
                if worker.is_cancelled:
                    raise CancelledError
                self._tell(f"reading symbols, {self._namer.waiting:,} addresses left")
            written, said_s = 0, time.monotonic()
            for piece in output.exporter(self._snapshot, self._namer):
                if worker.is_cancelled:
                    raise CancelledError
                written += len(piece)
                if time.monotonic() - said_s > _PROGRESS_S:
                    said_s = time.monotonic()
                    self._tell(f"writing, {format_size(written)}")
                yield piece

        try:
            output.write(pieces())
        except CancelledError:
            return
        except TracellocError as error:
            self._tell(f"error: {error}", done=True)
        else:
            size = format_size(output.path.stat().st_size) if output.path.is_file() else ""
            self._tell(f"wrote {output.path.absolute()} {size}", done=True)

    def _tell(self, text: str, *, done: bool = False) -> None:
        def say() -> None:
            self._say(text)
            if done:
                self._working = False

        self.app.call_later(say)
