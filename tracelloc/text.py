"""Text for terminals: names from the target are hostile until proven printable."""

from __future__ import annotations

import re
import sys
import threading
from typing import Final

PATIENCE_S: Final = 1.0
"""How long something may take before it is said that it does."""

LONGEST_TEXT: Final = 64 << 10
"""Characters of a readable name; a name that would be longer is left as it is."""

# C0 and C1 controls, surrogates, line separators, and what turns the writing direction.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(name: str) -> str:
    """The name with every character that could steer a terminal written as an escape."""
    return _UNSAFE.sub(lambda match: _escape(match[0]), name)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Progress:
    """Says on standard error what takes longer than a moment, whatever holds it up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._due = self._ended = self._shown = False
        self._timer = threading.Timer(PATIENCE_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def note(self, text: str) -> None:
        """What is being done now; shown once all together has taken a second."""
        with self._lock:
            self._text = text
            if self._due:
                self._show()

    def end(self) -> None:
        """Nothing more is to come."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._shown and sys.stderr.isatty():
                print(file=sys.stderr)

    def _expire(self) -> None:
        with self._lock:
            self._due = True
            if self._text and not self._ended:
                self._show()

    def _show(self) -> None:
        self._shown = True
        if sys.stderr.isatty():
            print(f"\rtracelloc: {self._text}…\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(f"tracelloc: {self._text}…", file=sys.stderr, flush=True)
