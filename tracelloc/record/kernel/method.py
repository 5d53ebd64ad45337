"""Attach methods, by the names that users choose; ``attach`` implements them."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Method(Enum):
    """A way to attach probes."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"

    @property
    def title(self) -> str:
        """The name in reports."""
        return _TITLES[self]

    @property
    def has_links(self) -> bool:
        """Whether a descriptor holds many probes."""
        return self is not Method.PERF


_TITLES: Final = {
    Method.SESSION: "uprobe sessions",
    Method.MULTI: "uprobe_multi links",
    Method.PERF: "perf events",
}
