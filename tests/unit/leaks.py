"""Ten minutes of a made-up program of known truth, judged as a real one is, with names.

Stacks by index: ``LEAK`` keeps one in twenty of its blocks for ever, ``CACHE`` replaces
the oldest, ``SESSIONS`` are the callers of ``session_new``, each of which leaks a little.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tests.corpus.replay import START_NS, events_of, looks, stacks_of
from tests.corpus.streams import Stream, churn, every, first_in_first_out, leak, poisson, some_leak
from tests.snapshots import snapshot_of
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.table import LiveTable
from tracelloc.model.figures import History
from tracelloc.model.process import Overhead, Target
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.verdicts import Findings
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namer
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S

END_S = 400.0
HANDLERS = 12
LEAK, CACHE = 1, 2
SESSIONS = list(range(3, 3 + HANDLERS))
LEAK_BYTES_PER_MIN = 20 * 0.05 * 100 * 60
# A block of 2,000 bytes each 30 s, by each handler.
SESSION_BYTES_PER_MIN = HANDLERS * 2000 * 60 / 30.0


@dataclass(frozen=True)
class Watched:
    """What was found out at one moment, and names for it."""

    table: LiveTable
    findings: Findings
    namer: Namer
    time_s: float

    def snapshot(self, top: int = 10) -> Snapshot:
        return snapshot_of(
            self.table,
            START_NS + int(self.time_s * NS_PER_S),
            SnapshotRequest(top),
            history=History(START_NS),
            target=Target(42, "server"),
            started_ns=START_NS,
            overhead=Overhead(10.0, None, ()),
            rss_bytes=64 << 20,
            findings=self.findings,
        )


@cache
def watched(end_s: float = END_S, name: str = "record_request") -> Watched:
    """The program after so many seconds. ``name``: of the function that leaks."""
    random = np.random.default_rng(7)
    busy = churn(random, poisson(random, 20, 0, end_s), 0.5, 100)
    sites = {
        f"{name}/serve": some_leak(random, busy, 0.05),
        "cache_lookup/serve": first_in_first_out(random, every(0.5, 0, end_s), 40, 4096),
    }
    for number in range(HANDLERS):
        births = every(30.0, 2.0 * number, end_s)
        sites[f"session_new/handle_{number:02}"] = leak(random, births, 2000)
    return judged(sites, end_s)


def judged(sites: dict[str, Stream], end_s: float) -> Watched:
    """Any program, with its sites' functions as names."""
    events, stacks = events_of(list(sites.values()), end_s), stacks_of(list(sites))
    *_, (time_s, table, findings) = looks(events, stacks, end_s)
    names: dict[int, str | None] = {0x401000: "main"}
    for index, site in enumerate(sites, 1):
        names.update(zip(stacks.frames(index) or (), site.split("/"), strict=False))
    return Watched(table, findings, Namer(FakeSymbolizer(names), Filters()), time_s)
