"""What was said before: a leak has to hold for a while, and may be taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tracelloc.heap.cohorts import I64
from tracelloc.text import NS_PER_S
from tracelloc.verdict.judgement import CODE_OF, Sites, Verdict

_HOLD_NS: Final = 9 * NS_PER_S
"""A leak has to hold on two looks so far apart."""
_LAPSE_NS: Final = 60 * NS_PER_S
"""Leaks in bursts look uneven now and then, for so long at most."""
_LEAKING: Final = CODE_OF[Verdict.LEAKING]
_GROWING: Final = CODE_OF[Verdict.GROWING]


class Memory:
    """Of some sites, by number."""

    def __init__(self) -> None:
        # Since when it looks like a leak (0: it does not), when it last did, whether it was
        # called one, and since when it leaked then.
        self._looks_since_ns = np.zeros(64, np.int64)
        self._looked_ns = np.zeros(64, np.int64)
        self._called = np.zeros(64, np.bool_)
        self._onset_s = np.zeros(64)
        self.taken_back = np.zeros(64, np.int64)
        """How often each site was called leaking and then no longer."""

    def grow(self, count: int) -> None:
        """Makes room for this many sites; at least doubles."""
        room = len(self._called)
        if count <= room:
            return
        more = max(count, 2 * room) - room
        for name in ("_looks_since_ns", "_looked_ns", "_called", "_onset_s", "taken_back"):
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.zeros(more, column.dtype)))

    def settle(self, sites: Sites, numbers: I64, now_ns: int) -> Sites:
        """What looks like a leak for the first time is only growing; what was called one
        stays one over a lapse, while it goes on growing.
        """
        looks = sites.code == _LEAKING
        since = self._looks_since_ns[numbers]
        since[~looks] = 0
        since[looks & (since == 0)] = now_ns
        self._looked_ns[numbers[looks]] = now_ns
        grows = (sites.code == _GROWING) & (sites.confidence > 0) & ~sites.replaces_old
        lapse = self._called[numbers] & grows & (now_ns - self._looked_ns[numbers] <= _LAPSE_NS)
        called = lapse | (looks & (now_ns - since >= _HOLD_NS))
        self.taken_back[numbers] += self._called[numbers] & ~called
        # An onset is known best when it was not long ago.
        fresh = called & ~self._called[numbers]
        self._onset_s[numbers[fresh]] = sites.since_s[fresh]
        since_s = np.where(called, self._onset_s[numbers], sites.since_s)
        self._looks_since_ns[numbers], self._called[numbers] = since, called
        code = np.where(called, _LEAKING, np.where(looks, _GROWING, sites.code))
        return replace(sites, code=code.astype(np.uint8), since_s=since_s)
