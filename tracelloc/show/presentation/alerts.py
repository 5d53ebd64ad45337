"""Alerts shown before any figure: figures that can't be right, or that miss what grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tracelloc.model.losses import Counter
from tracelloc.show.presentation.processfacts import Account
from tracelloc.show.presentation.tracing import incompleteness
from tracelloc.show.presentation.untraced import untraced_growth
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_size, plural

_MORE_THAN_SPACE: Final = 2
"""Limit of live over mapped bytes: a pool's chunks count in addition to blocks in them."""


class Alert(Protocol):
    """A message in three lengths."""

    @property
    def sentence(self) -> str:
        """Returns the whole message."""

    @property
    def clause(self) -> str:
        """Returns the essential part, in one line."""

    @property
    def short(self) -> str:
        """Returns a few words, for narrow screens."""


@dataclass(frozen=True, slots=True)
class ImplausibleSizes:
    """Implausible sizes reported for a custom allocator."""

    what: str
    short: str

    @property
    def sentence(self) -> str:
        """Returns the problem and what to do."""
        return f"{self.what}: correct size or size_bytes in the custom allocators file"

    @property
    def clause(self) -> str:
        """Returns the sentence without the advice."""
        return self.what


def implausible_sizes(snapshot: Snapshot) -> ImplausibleSizes | None:
    """Detects sizes larger than all memory, or larger in sum than mapped memory."""
    impossible = snapshot.losses.counters[Counter.IMPOSSIBLE_SIZES]
    if impossible:
        what = plural(impossible, "allocation")
        return ImplausibleSizes(
            f"{what} with sizes that cannot be (the argument is a pointer?) are left out",
            f"{what} of impossible sizes",
        )
    space = 0 if snapshot.memory is None else snapshot.memory.now.space
    if not space or snapshot.losses.events or snapshot.live_bytes <= _MORE_THAN_SPACE * space:
        return None
    live = format_size(snapshot.live_bytes)
    return ImplausibleSizes(
        f"{live} cannot be live: the process has {format_size(space)} of address space",
        f"{live} cannot be live",
    )


def alert_of(snapshot: Snapshot, found: Account | None = None) -> Alert | None:
    """Returns the alert to show first, or None. ``found``: the snapshot's account, if known."""
    return (
        incompleteness(snapshot) or implausible_sizes(snapshot) or untraced_growth(snapshot, found)
    )
