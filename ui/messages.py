"""What the refresher's thread tells the screen."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from tracelloc.ui.picture import Picture


@dataclass
class PictureReady(Message):
    """Something new to draw."""

    picture: Picture

    def can_replace(self, message: Message) -> bool:
        """Only the newest counts."""
        return isinstance(message, PictureReady)


@dataclass
class Failed(Message):
    """No more pictures come."""

    failure: BaseException
