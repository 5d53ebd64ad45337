"""Where on a function its probe sits.

The price of a probe is set by the instruction under it, so this is a decision of its
own, between discovery and attachment. For now every probe sits on the entry, which is
right for every function on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelloc.allocators import AllocatorFunction


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """One probe: which program at which byte of which file."""

    open_path: str
    offset: int
    """In the file, in bytes."""
    program: str
    is_return: bool
    """The program runs when the function returns to its caller."""
    label: str
    """For messages: ``malloc in libc.so.6``."""


def place(functions: Iterable[AllocatorFunction]) -> list[ProbePoint]:
    """The probes for these functions, in the order in which they are to be attached.

    Returns come first: a thread that is caught between the two attachments must not
    be seen to enter a call whose return would go unseen.
    """
    returns, entries = [], []
    for function in functions:
        label = f"{function.names[0]} in {function.module.path.rsplit('/', 1)[-1]}"
        path, program = function.module.open_path, function.kind.return_program
        if program is not None:
            returns.append(ProbePoint(path, function.offset, program, True, label))
        entry = function.kind.entry_program
        entries.append(ProbePoint(path, function.offset, entry, False, label))
    return returns + entries
