"""What the log shows beside figures: what was said, and what pictures cost."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from tracelloc.ui.view import View

_COSTS: Final = 32


class Journal:
    """Written by the thread that draws; the refresher's reads copies of it."""

    def __init__(self, warnings: Iterable[str] = ()) -> None:
        self.messages = [f"warning: {warning}" for warning in warnings]
        self.costs: dict[str, deque[tuple[float, float]]] = {}
        """Seconds that the latest pictures of each view took to be worked out, and drawn."""

    def say(self, text: str) -> None:
        """Notes a message and when it came."""
        self.messages.append(f"{time.strftime('%H:%M:%S')} {text}")

    def note_cost(self, view: View[Any], work_s: float, drawing_s: float) -> None:
        """Notes what a picture took."""
        self.costs.setdefault(view.name, deque(maxlen=_COSTS)).append((work_s, drawing_s))
