"""Ways of attaching, by the names that users choose them by; ``attach`` does it."""

from __future__ import annotations

from enum import Enum


class Method(Enum):
    """How probes are attached."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"

    @property
    def has_links(self) -> bool:
        """Whether a descriptor holds many probes."""
        return self is not Method.PERF
