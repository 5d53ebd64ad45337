"""The types of arguments on the command line: text to value, or a sentence what is wrong.

Functions for argparse's ``type``; they raise ``argparse.ArgumentTypeError``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from tracelloc.heap.temporary import MOST_BETWEEN, Soon
from tracelloc.units import NS_PER_S, parse_duration, parse_size

_MOST_FRAMES: Final = 512
_MOST_ENTRIES: Final = 1 << 24


def argument_type(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Lets argparse show our own sentence instead of the type's name."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


duration_type: Final = argument_type(parse_duration)
size_type: Final = argument_type(parse_size)


def _integer(text: str, lowest: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < lowest or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {lowest}")
    return int(text)


def frames_type(text: str) -> int:
    """How many frames of a stack are kept."""
    frames = _integer(text, 2)
    if frames > _MOST_FRAMES:
        raise argparse.ArgumentTypeError(f"more than {_MOST_FRAMES} frames can't be kept")
    return frames


def entries_type(text: str) -> int:
    """How many entries a map of the probes has."""
    entries = _integer(text, 0)
    if entries > _MOST_ENTRIES:
        raise argparse.ArgumentTypeError(f"more than {_MOST_ENTRIES} entries can't be kept")
    return entries


def soon_type(text: str) -> Soon:
    """How soon a temporary allocation is freed: so many others come between, or a time."""
    if not text.isdigit():
        return Soon(life_ns=round(duration_type(text) * NS_PER_S))
    between = _integer(text, 0)
    if between > MOST_BETWEEN:
        raise argparse.ArgumentTypeError(f"no more than {MOST_BETWEEN} can come between")
    return Soon(between)


def names_type(text: str) -> frozenset[str]:
    """Names of commands, separated by commas."""
    names = frozenset(name.strip() for name in text.split(","))
    if "" in names:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names such as nginx,php-fpm")
    return names


def positive_type(text: str) -> int:
    """A whole number of at least 1."""
    return _integer(text, 1)


pid_type: Final = positive_type
"""A process id."""


def count_type(text: str) -> int:
    """A whole number of at least 0."""
    return _integer(text, 0)
