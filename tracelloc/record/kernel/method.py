"""Attach methods, by the names that users choose; ``attach`` implements them."""

from enum import Enum
from typing import Final


class Method(Enum):
    """A way to attach probes. The value is the name that users choose."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"

    @property
    def title(self) -> str:
        return _TITLES[self]

    @property
    def has_links(self) -> bool:
        """Whether one descriptor (a link) holds many probes; otherwise one each."""
        return self is not Method.PERF


_TITLES: Final = {
    Method.SESSION: "uprobe sessions",
    Method.MULTI: "uprobe_multi links",
    Method.PERF: "perf events",
}
