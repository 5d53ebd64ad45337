"""Takes all events in order, from the ring and the overflow map, and call stacks.

While the ring of events is full, the probes store what happens to each address in a hash
map instead. ``probes/spill.h`` describes how the two are combined without losing or
reordering events; this module is user space's part.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.events import (
    EVENT_DTYPE,
    EVENT_PARITY_BIT,
    EVENT_SIZE_BITS,
    NO_PAIRS,
    PAIR_DTYPE,
    PAIR_KEY_FIELDS,
    PAIR_SUMS_FIELDS,
    EventBatch,
    EventKind,
    Events,
    SentStacks,
    joined_events,
)
from tracelloc.model.figures import Mask
from tracelloc.record import abi
from tracelloc.record.abi import SpillFlag
from tracelloc.record.kernel.bpfmaps import Columns, GracePeriod, HashMap, pick
from tracelloc.record.kernel.records import load_acquire, sort_events, store_release
from tracelloc.record.kernel.ring import EventRing, StackRing

# What happened to one address.
ENTRY_DTYPE: Final = np.dtype([*abi.SPILL_KEY_FIELDS, *abi.SPILLED_FIELDS])
_PARITY_SHIFT: Final = np.uint64(EVENT_PARITY_BIT)


class Spill:
    """The probes' overflow maps: ``spill``, of events, and ``pairs``, of sums."""

    def __init__(self, spill_fd: int, pairs_fd: int) -> None:
        """``spill_fd``, ``pairs_fd``: descriptors of the maps. Raises OSError."""
        self.entries = HashMap(spill_fd, abi.SPILL_KEY_FIELDS, abi.SPILLED_FIELDS)
        self.pairs = HashMap(pairs_fd, PAIR_KEY_FIELDS, PAIR_SUMS_FIELDS)
        self.grace = GracePeriod()


class Drain:
    """Takes events out of the ring and, when it was full, out of the overflow map."""

    def __init__(self, ring: EventRing, control: npt.NDArray[Any], spill: Spill | None) -> None:
        """``control`` is the shared ``struct control``. Without ``spill``, overflow is lost."""
        self._ring, self._spill = ring, spill
        self._control, self._epoch = control, control["epoch"]
        self.overflows = 0  # How often the ring was found to have overflowed

    def take_batch(self) -> EventBatch:
        """Takes all available events, from the ring and the overflow map. Raises OSError."""
        events = self._ring.take_events()
        ring_share = len(events) / self._ring.room
        parity = int(self._epoch[0]) % abi.PARITIES
        if self._spill is None or not self._control["full"][0][parity]:
            return EventBatch(events, NO_PAIRS, ring_share, overflowed=False)
        self.overflows += 1
        events, pairs = self._take_epoch(self._spill, parity, events)
        return EventBatch(events, pairs, 1.0, overflowed=True)

    def close(self) -> None:
        if self._spill is not None:
            self._spill.grace.close()

    def _take_epoch(self, spill: Spill, parity: int, events: Events) -> tuple[Events, Columns]:
        """Ends an epoch: returns all events since ``events``, these first, and its pairs."""
        # Programs that read the new epoch see what was written to `full` before.
        store_release(self._epoch, load_acquire(self._epoch) + 1)
        spill.grace.wait()
        seen = [events, *self._ring_up_to(spill, self._ring.produced)]
        every = joined_events(seen)
        ours = (every["size_tag"] >> _PARITY_SHIFT) & np.uint64(1) == parity
        old, new = pick(every, ours), pick(every, ~ours)
        later = [new]

        def chosen(keys: Columns) -> Mask:
            mask: Mask = keys["parity"] == parity
            return mask

        entries: list[Columns] = []
        for found in spill.entries.take_entries(chosen):
            entries.append(_merged(*found, ENTRY_DTYPE))
            # Prevents the ring from filling up meanwhile, if possible.
            later.append(self._ring.take_events())
        pairs = [_merged(*found, PAIR_DTYPE) for found in spill.pairs.take_entries(chosen)]
        self._control["full"][0][parity] = 0
        told = late_events(np.concatenate([np.empty(0, ENTRY_DTYPE), *entries]))
        return joined_events([old, told, *later]), np.concatenate([NO_PAIRS, *pairs])

    def _ring_up_to(self, spill: Spill, position: int) -> list[Events]:
        """Takes all records up to a position of the ring; waits for those still being written."""
        events = [self._ring.take_events()]
        if self._ring.consumed < position:
            # Programs of the new epoch were writing. When they have ended, their records are done.
            spill.grace.wait()
            events.append(self._ring.take_events())
        return events


class StackDrain:
    """Takes stacks out of their ring and, when it was full, out of the overflow map."""

    def __init__(
        self, ring: StackRing, control: npt.NDArray[Any], map_fd: int | None, max_frames: int
    ) -> None:
        """``control`` is the shared ``struct control``; ``map_fd`` is of ``kept_stacks``."""
        self._ring = ring
        self._control = control
        value = [*abi.STACK_HEAD_FIELDS, ("frames", "<u8", (max_frames + 1,))]
        self._kept = None if map_fd is None else HashMap(map_fd, [("id", "<u8")], value)

    def take_stacks(self) -> list[tuple[int, SentStacks]]:
        """Takes all available stacks: (memory image, its call stacks). Raises OSError."""
        sent = self._ring.take_stacks()
        if self._kept is None or not self._control["kept_stacks"][0]:
            return sent
        # Before the map is read: later stacks set it again.
        self._control["kept_stacks"][0] = 0
        for _, kept in self._kept.take_entries(lambda keys: np.ones(len(keys), np.bool_)):
            depths = kept["n_frames"].astype(np.int64)
            used = np.arange(kept["frames"].shape[1]) < depths[:, np.newaxis]
            columns = kept["stack_id"].copy(), kept["flags"].copy(), depths
            stacks = SentStacks(*columns, kept["frames"][used])
            for image in np.unique(kept["image"]).tolist():
                sent.append((image, stacks.select(kept["image"] == image)))
        return sent


def late_events(entries: Columns) -> Events:
    """Turns overflow-map entries (ENTRY_DTYPE) into events in a correct order.

    Each address has one entry, so only two orders matter: that of the address's own events, and
    that a thread's takings and restores stay in the thread's order. A restore here undoes an
    earlier taking, so it comes first. All but the last of a thread's takings are
    known to have succeeded: they are plain frees.
    """
    flags = entries["flags"]
    taken = flags & SpillFlag.TAKEN != 0
    inner = flags & SpillFlag.INNER != 0
    freed = (flags & SpillFlag.FREED != 0) & ~taken
    born = pick(entries, flags & SpillFlag.BORN != 0)
    born = pick(born, np.argsort(born["time_ns"], kind="stable"))
    restored = pick(entries, flags & SpillFlag.RESTORED != 0)
    takings = pick(entries, taken)
    takings = pick(takings, np.lexsort((takings["stack_id"], takings["size"])))
    thread = takings["size"]
    last = np.append(thread[1:] != thread[:-1], True)[: len(thread)]
    births = _events(born, EventKind.LATE_ALLOC, born["tid"])
    births["size_tag"] |= born["size"]
    births["stack_id"] = born["stack_id"]
    return joined_events([
        _events(pick(entries, freed & ~inner), EventKind.FREE),
        _events(pick(entries, freed & inner), EventKind.INNER_FREE),
        births,
        _events(restored, EventKind.RESTORE, restored["tid"]),
        _events(pick(takings, ~last), EventKind.FREE),
        _events(pick(takings, last), EventKind.REALLOC_FREE, thread[last]),
    ])  # fmt: skip


def _events(entries: Columns, kind: EventKind, tid: Columns | None = None) -> Events:
    """Returns records of one kind. Frees have no thread, since they are not in its order."""
    events = np.zeros(len(entries), EVENT_DTYPE)
    for name in ("address", "image", "time_ns"):
        events[name] = entries[name]
    if tid is not None:
        events["tid"] = tid
    events["size_tag"] = kind << EVENT_SIZE_BITS
    return events


def by_image(batch: EventBatch) -> Iterator[tuple[int, Events]]:
    """Splits a batch: yields (memory image, its events in order), by image number."""
    events = batch.events
    if not len(events):
        return
    if batch.image is not None:
        yield batch.image, events
        return
    ordered = np.empty_like(events)
    shares = sort_events(events.view(np.uint8), ordered.view(np.uint8))
    if len(shares) == 1:
        ordered = events
    start = 0
    for image, count in shares:
        yield image, ordered[start : start + count]
        start += count


def _merged(keys: Columns, values: Columns, dtype: np.dtype[Any]) -> Columns:
    """Returns records of keys and values side by side."""
    size = keys.itemsize
    rows = np.empty((len(keys), dtype.itemsize), np.uint8)
    rows[:, :size] = keys.view(np.uint8).reshape(len(keys), size)
    rows[:, size:] = values.view(np.uint8).reshape(len(keys), -1)
    return rows.view(dtype).ravel()
