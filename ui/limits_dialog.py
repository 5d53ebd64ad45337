"""Asks which ages and sizes of blocks count."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Label

from tracelloc.snapshots.analysis import Limits
from tracelloc.ui.dialog import Dialog
from tracelloc.units import NS_PER_S, format_duration, parse_duration, parse_size

_FIELDS: Final = (
    ("min_age_ns", "at least this old", "5m"),
    ("max_age_ns", "at most this old", "1h"),
    ("min_size_bytes", "at least this large", "4k"),
    ("max_size_bytes", "at most this large", "1MiB"),
)


class LimitsDialog(Dialog[Limits]):
    """Four lines; an empty one is no limit."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits

    def compose(self) -> ComposeResult:
        """The box."""
        with Vertical(classes="box") as box:
            box.border_title = "Only blocks that are"
            for name, title, example in _FIELDS:
                with Horizontal(classes="row"):
                    yield Label(title)
                    yield Input(self._text(name), placeholder=f"e.g. {example}", id=name)
            yield Label("", id="wrong", classes="wrong", markup=False)
            yield Label("Enter applies, Tab goes on, Esc changes nothing", classes="note")

    def _text(self, name: str) -> str:
        value = getattr(self._limits, name)
        if not value:
            return ""
        return format_duration(value / NS_PER_S) if name.endswith("_ns") else str(value)

    @on(Input.Submitted)
    def apply(self) -> None:
        """Takes over what was typed, or says what is wrong with it."""
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
