"""Leaks that are put into a recording: frees of a real call site that are left out.

Site, onset and rate are drawn at random. A leaked block gets an address of its own, as the
program would not have got its memory back either.
"""

from dataclasses import dataclass

import numpy as np

from tests.corpus.real.recording import RealRecording
from tests.corpus.replay import START_NS
from tracelloc.model.events import EVENT_SIZE_BITS, EVENT_SIZE_MASK, EventKind, Events
from tracelloc.model.stacks import CUT
from tracelloc.text import NS_PER_S

LEAST_PER_MIN = 4.0
MOST_PER_MIN = 120.0  # Blocks leaked per minute, log-uniform between the two
LEAST_WATCH_S = 320.0  # Seconds that are left after the onset, at least
ALREADY = 0.25  # Share of leaks that leak already when tracing begins
# Share of leaks in all stacks that have the innermost frames in common, not in one stack.
WHOLE_FUNCTION = 0.5
SHARED_FRAMES = 2
_OWN_ADDRESSES = 0x6000_0000_0000


@dataclass(frozen=True)
class InjectedLeak:
    """What is true of the events."""

    stacks: frozenset[int]
    onset_s: float  # When the first block leaks
    rate_bytes_per_min: float
    leaked: int  # Blocks
    never_freed: bool  # Hardly any block of these stacks is freed
    bytes_of: dict[int, int]  # Bytes that each stack has leaked
    seconds: float  # From the onset to the end

    def rate_of(self, stacks: set[int]) -> float:
        """Bytes a minute that some stacks leak."""
        return sum(self.bytes_of.get(stack, 0) for stack in stacks) / self.seconds * 60


def inject(recording: RealRecording, seed: int) -> tuple[Events, InjectedLeak] | None:
    """Events with a leak; None if no site is busy enough to leak."""
    random = np.random.default_rng(seed)
    events = recording.events()
    end_s = recording.seconds
    rows, freed_at = lives(events)
    stack = events["stack_id"][rows].astype(np.int64)
    birth_s = (events["time_ns"][rows] - np.uint64(START_NS)) / NS_PER_S
    onset_s = 0.0 if random.random() < ALREADY else random.uniform(20, end_s - LEAST_WATCH_S)
    per_min = float(np.exp(random.uniform(np.log(LEAST_PER_MIN), np.log(MOST_PER_MIN))))
    whole = random.random() < WHOLE_FUNCTION
    may = (freed_at >= 0) & (birth_s >= onset_s)
    counts = np.bincount(stack[may], minlength=int(stack.max(initial=0)) + 1)
    counts[0] = 0
    # What was cut short is no site.
    cut = np.flatnonzero(recording.flags & np.uint16(CUT)) + 1
    counts[cut[cut < len(counts)]] = 0
    minutes = (end_s - onset_s) / 60
    sites = np.flatnonzero(counts >= LEAST_PER_MIN * minutes)
    if not len(sites):
        return None
    chosen = int(random.choice(sites))
    stacks = _alike(recording, chosen) if whole else {chosen}
    ours = may & np.isin(stack, sorted(stacks))
    share = min(1.0, per_min * minutes / np.count_nonzero(ours))
    leaks = np.flatnonzero(ours & (random.random(len(ours)) < share))
    if len(leaks) < LEAST_PER_MIN * minutes / 2:
        return None
    events["address"][rows[leaks]] = _OWN_ADDRESSES + 16 * np.arange(len(leaks), dtype=np.uint64)
    sizes = events["size_tag"][rows[leaks]] & np.uint64(EVENT_SIZE_MASK)
    first_s = float(birth_s[leaks].min())
    own = np.isin(stack, sorted(stacks)) & (birth_s >= first_s)
    truth = InjectedLeak(
        frozenset(np.unique(stack[leaks]).tolist()),
        first_s,
        float(sizes.sum()) / (end_s - first_s) * 60,
        len(leaks),
        len(leaks) >= 0.9 * np.count_nonzero(own),
        bytes_by_stack(stack[leaks], sizes),
        end_s - first_s,
    )
    return np.delete(events, freed_at[leaks]), truth


def real_leak(recording: RealRecording) -> InjectedLeak | None:
    """What the program was really made to leak while it was recorded; None if nothing."""
    rows = recording.leaked
    if not len(rows):
        return None
    stacks = frozenset(np.unique(recording.stack[rows]).tolist())
    first_s = recording.leaks_from_s
    own = np.isin(recording.stack, sorted(stacks)) & (recording.time_ms >= first_s * 1000)
    rate = float(recording.size[rows].sum()) / (recording.seconds - first_s) * 60
    never_freed = len(rows) >= 0.9 * np.count_nonzero(own)
    bytes_of = bytes_by_stack(recording.stack[rows], recording.size[rows])
    lasted_s = recording.seconds - first_s
    return InjectedLeak(stacks, first_s, rate, len(rows), never_freed, bytes_of, lasted_s)


def bytes_by_stack(stacks: np.ndarray, sizes: np.ndarray) -> dict[int, int]:
    """Bytes of some blocks, by the stack of each."""
    total = np.bincount(stacks.astype(np.int64), sizes.astype(np.float64))
    return {int(stack): int(total[stack]) for stack in np.unique(stacks)}


def lives(events: Events) -> tuple[np.ndarray, np.ndarray]:
    """The rows in which blocks are made, and for each the row of its free, or -1.

    Blocks that end in a realloc, and whatever a failed one restores, have -1.
    """
    kind = (events["size_tag"] >> np.uint64(EVENT_SIZE_BITS)) & np.uint64(0xF)
    order = np.argsort(events["address"], kind="stable")
    after = np.append(order[1:], order[:1])
    same = events["address"][after] == events["address"][order]
    same[-1:] = False
    made = kind[order] == EventKind.ALLOC
    freed = same & (kind[after] == EventKind.FREE)
    return order[made], np.where(freed, after, -1)[made]


def _alike(recording: RealRecording, chosen: int) -> set[int]:
    """All whole stacks with the innermost frames of one, those left out that only pass on."""
    starts = np.append(0, np.cumsum(recording.depths.astype(np.int64)))

    def innermost(row: int) -> bytes:
        frames = recording.frames[starts[row] : starts[row + 1]]
        passing = recording.in_runtime[frames]
        skipped = int(passing.argmin()) if not passing.all() else 0
        return frames[skipped : skipped + SHARED_FRAMES].tobytes()

    wanted = innermost(chosen - 1)
    rows = np.flatnonzero((recording.depths > 0) & (recording.flags & np.uint16(CUT) == 0)).tolist()
    return {row + 1 for row in rows if innermost(row) == wanted} | {chosen}
