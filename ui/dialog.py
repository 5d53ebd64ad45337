"""What dialogs have in common: a box in the middle, Esc closes."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A box over the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", tooltip="Close, changing nothing", id="dialog.close"),
    ]

    def action_close(self) -> None:
        """Goes back."""
        self.dismiss(None)
