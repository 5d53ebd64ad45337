"""Names from the target are hostile until proven printable."""

from __future__ import annotations

import re
from typing import Final

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
