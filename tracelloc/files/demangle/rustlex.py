"""The letters of Rust's v0 symbol names: numbers, identifiers, literals, and the bounds.

Source of the format: see tracelloc.files.demangle.rustv0, which has the grammar.
"""

from __future__ import annotations

import re
from typing import Final

from tracelloc.text import LONGEST_TEXT

_DEEPEST: Final = 120
"""Levels of nesting. Each takes up to four frames of Python's stack."""

_MOST_STEPS: Final = 50_000

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASE62: Final = {digit: value for value, digit in enumerate(_DIGITS)}

_ESCAPES: Final = {"\0": "\\0", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"}

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,5}")
HEX: Final = re.compile(r"([0-9a-f]*)_")
_NUMBER62: Final = re.compile(r"([0-9A-Za-z]{0,12})_")


class UnreadableError(Exception):
    """The name does not follow the grammar, or asks for too much."""


class Cursor:
    """Where a reader stands in a name, and what it has written."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self.silent = 0
        self.length = 0
        self.steps = 0
        self.depth = 0
        self.lifetimes = 0

    def write(self, text: str) -> None:
        """What is silent is not written, and counts for nothing."""
        if self.silent:
            return
        self.out.append(text)
        self.length += len(text)
        if self.length > LONGEST_TEXT:
            raise UnreadableError

    def next(self) -> str:
        """The next letter."""
        if self.at >= len(self.text):
            raise UnreadableError
        self.at += 1
        return self.text[self.at - 1]

    def eat(self, tag: str) -> bool:
        """Whether this letter stands here; it is passed if so."""
        if self.text.startswith(tag, self.at):
            self.at += 1
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> str:
        """Passes what the pattern finds here; its last group, or all of it."""
        found = pattern.match(self.text, self.at)
        if found is None:
            raise UnreadableError
        self.at = found.end()
        return found[found.re.groups]

    def number62(self) -> int:
        """``_`` is 0, ``0_`` is 1 and so on."""
        value = 0
        digits = self.match(_NUMBER62)
        for digit in digits:
            value = value * 62 + _BASE62[digit]
        value += 1 if digits else 0
        if value >> 64:
            raise UnreadableError
        return value

    def optional62(self, tag: str) -> int:
        """0 without the tag, else one more than the number behind it."""
        return self.number62() + 1 if self.eat(tag) else 0

    def identifier(self) -> str:
        """A name with its length in front, decoded."""
        encoded = self.eat("u")
        length = int(self.match(_DECIMAL))
        self.eat("_")
        start, self.at = self.at, self.at + length
        if self.at > len(self.text):
            raise UnreadableError
        name = self.text[start : self.at]
        return unicode(name) if encoded else name

    def enter(self) -> None:
        """Counts a rule that may hold others; its end lowers ``depth`` again."""
        self.depth += 1
        self.steps += 1
        if self.depth > _DEEPEST or self.steps > _MOST_STEPS:
            raise UnreadableError

    def go_back(self) -> int | None:
        """Moves to what a back reference names; where to return to. None: nothing to write."""
        tag = self.at - 1
        target = self.number62()
        if target >= tag:
            raise UnreadableError
        if self.silent:
            return None
        back, self.at = self.at, target
        return back


def integer(digits: str) -> str:
    """Hexadecimal digits as a decimal number; as they are above 64 bits."""
    digits = digits.lstrip("0") or "0"
    return "0x" + digits if len(digits) > 16 else str(int(digits, 16))


def boolean(digits: str) -> str:
    """``false`` or ``true``."""
    if digits not in ("0", "1"):
        raise UnreadableError
    return "true" if digits == "1" else "false"


def character(digits: str) -> str:
    """The character with this code."""
    digits = digits.lstrip("0") or "0"
    code = int(digits, 16) if len(digits) <= 6 else -1
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        raise UnreadableError
    return chr(code)


def quoted(text: str, quote: str) -> str:
    r"""A Rust literal: what can't be printed is written ``\u{1b}``."""
    escapes = _ESCAPES | {quote: "\\" + quote}
    inner = "".join(
        escapes.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}") for c in text
    )
    return quote + inner + quote


def unicode(name: str) -> str:
    """Punycode (RFC 3492) with ``_`` for the hyphen."""
    basic, _, rest = name.rpartition("_")
    try:
        text = f"{basic}-{rest}".encode() if basic else rest.encode()
        decoded = text.decode("punycode") if len(name) <= 512 else ""
    except (UnicodeError, ValueError, OverflowError):
        decoded = ""
    if (
        not re.fullmatch("[a-z0-9]+", rest)
        or not decoded
        or any("\ud800" <= c <= "\udfff" for c in decoded)
    ):
        raise UnreadableError
    return decoded
