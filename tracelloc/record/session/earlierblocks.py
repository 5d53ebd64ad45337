"""Adds the blocks from before tracing to the heap of a process.

The heap is walked (``record.heapwalk``) while the probes report. A block that was in use when the
walk saw it, and of which no event came from the beginning of the walk until now, was allocated
before tracing and is live. Every other block either is in the table, or has been freed. A walk
misreads what a call of malloc or free is about to change, for as long as its thread waits for a
processor. So two walks in a row must agree, and every thread must have run between them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError, UnsupportedError
from tracelloc.heap.heap import Heap
from tracelloc.model.blocks import EarlierBlocks, EarlierKind
from tracelloc.model.frames import RuntimeFrame, RuntimeFrames
from tracelloc.model.stacks import StackFlag
from tracelloc.record.facets.facet import LARGE_HEAP_BYTES
from tracelloc.record.heapwalk.arenas import NO_ENTRIES, NotWalkableError, WalkedHeap
from tracelloc.record.heapwalk.chunks import find_common
from tracelloc.record.heapwalk.classes import BlockKind, BlockKinds, ClassNames, ClassTally
from tracelloc.record.heapwalk.pieces import PieceReader
from tracelloc.record.heapwalk.ranges import BlockRanges
from tracelloc.record.heapwalk.walk import walk_heap
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.memory import U64, RemoteMemory
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceContext
from tracelloc.record.session.tracee import Tracee
from tracelloc.record.tasks.memorybudget import return_freed_memory
from tracelloc.text import format_size

EARLIER_BLOCKS: Final = "reading the heap from before tracing"
_RUNTIME: Final = "before tracing"
_ROOT: Final = RuntimeFrame("allocated before tracing", runtime=_RUNTIME)
_MOST_TRIES: Final = 3
_AT_ONCE: Final = 1 << 16  # Blocks added at a time while events wait: some 10 ms
_MOST_WALKS: Final = 4  # Walks until two agree. In a large heap that many threads use, none may.
_PATIENCE_S: Final = 10.0  # How long threads are waited for that get no processor
_PAUSE_S: Final = 0.005
_LONG_CALL_NS: Final = 1_000_000  # Processor time that hardly any call takes
_MASK: Final = (1 << 64) - 1
_BYTES_A_BLOCK: Final = 8  # Memory for each: 2 to 4 in the table, the rest only meanwhile


@dataclass(slots=True)
class _HeapReading:
    """A walk of the heap, and the earlier walk that must agree, if there was one."""

    heap: WalkedHeap
    kinds: BlockKinds
    before: WalkedHeap | None = None

    def agreed(self, *, forget: bool = False) -> Iterator[tuple[BlockRanges, U64]]:
        """Yields (blocks that both walks found, addresses that one did); ``forget``: drops them."""
        low = 0
        for some in BlockRanges.some_in_use(self.heap, forget=forget):
            if self.before is None or not len(some.starts):
                yield some, NO_ENTRIES
                continue
            high = int(some.starts[-1])
            before = BlockRanges.in_use_between(self.before, low, high).starts
            in_before, in_both = _common(some.starts, before), _common(before, some.starts)
            low = high + 8
            if forget:
                self.before.drop_below(low)
            differing = np.concatenate([some.starts[~in_before], before[~in_both]])
            yield some if in_before.all() else some.select(in_before), differing
        if self.before is not None:
            rest = BlockRanges.in_use_between(self.before, low, native().address_end)
            yield rest.select(slice(0)), rest.starts


def _common(values: U64, others: U64) -> npt.NDArray[np.bool_]:
    found = np.empty(len(values), np.bool_)
    find_common(values, others, found.view(np.uint8))
    return found


class EarlierBlockReader:
    """Reads the blocks that a process had before tracing, once."""

    def __init__(
        self,
        process: Process,
        heap: Heap,
        frames: RuntimeFrames,
        lock: threading.RLock,
        drain: Callable[[], None],
        *,
        is_current: Callable[[], bool],
        note_added: Callable[[int], None],
        note_read: Callable[[int], None],
        capture: CaptureConfig,
        memory_bytes: int | None,
    ) -> None:
        """``lock`` guards the heap. ``drain``, with the lock held, applies all past events.

        ``note_added`` is called with the bytes of blocks that were added, with the lock held,
        ``note_read`` with the bytes of memory that were read.
        ``is_current``: whether the process still has this heap, and its probes are in place.
        ``capture``: has limits of size. ``memory_bytes``: most memory to use; None: unlimited.
        """
        self._process, self._heap, self._frames = process, heap, frames
        self._lock, self._drain, self._is_current = lock, drain, is_current
        self._note_added, self._note_read = note_added, note_read
        self._memory_bytes = memory_bytes
        # Usable sizes of blocks that count
        most = _MASK if capture.max_block_bytes is None else capture.max_block_bytes
        self._limits = capture.min_block_bytes, most

    def read(self) -> EarlierBlocks | None:
        """Adds the earlier blocks to the heap; None if the process has another heap by now.

        Raises UnsupportedError if it can't be walked; OSError, TargetError, PrivilegeError.
        """
        table = self._heap.table
        try:
            for _ in range(_MOST_TRIES):
                with self._lock:
                    self._drain()
                    table.watch_addresses(watch=True)
                found = self._walk_until_agreed()
                if self._touched() is not None:
                    return self._add(found)
        finally:
            with self._lock:
                table.watch_addresses(watch=False)
        raise UnsupportedError("its events overflow the ring")

    def _touched(self) -> int | None:
        """Returns the number of addresses in events since the walk began; None if unknown."""
        with self._lock:
            self._drain()
            return self._heap.table.watched_count

    def _walk_until_agreed(self) -> _HeapReading:
        running = self._running()
        found = self._walk()
        for _ in range(1, _MOST_WALKS):
            running |= self._running()
            if not running and self._touched() == 0:
                found.before = None
                break
            self._await_progress(running)
            running = self._running()
            before, found = found.heap, self._walk()
            found.before = before
            if all(self._are_touched(differing) for _, differing in found.agreed()):
                break
        return found

    def _are_touched(self, addresses: U64) -> bool:
        """Whether events were about all these addresses since the first walk began."""
        if not len(addresses):
            return True
        with self._lock:
            self._drain()
            return bool(self._heap.table.are_watched(addresses).all())

    def _running(self) -> dict[int, int]:
        threads = [Process(each, self._process.root) for each in self._process.thread_ids()]
        return {each.pid: each.run_ns() for each in threads if _is_awake(each)}

    def _await_progress(self, running: dict[int, int]) -> None:
        """Waits until the calls that running threads may be inside have certainly ended."""
        deadline_s = time.monotonic() + _PATIENCE_S
        left = [Process(pid, self._process.root) for pid in running]
        while left and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_S)
            left = [t for t in left if _is_awake(t) and t.run_ns() - running[t.pid] < _LONG_CALL_NS]

    def _walk(self) -> _HeapReading:
        process = Process(self._process.thread_id, self._process.root)
        reader = PieceReader(RemoteMemory(process), self._note_read)
        tally = ClassTally(reader.regions(), keeps_blocks=True)
        heap = walk_heap(reader, tally)
        need = _BYTES_A_BLOCK * heap.entry_count
        if self._memory_bytes is not None and need > self._memory_bytes:
            what = f"{heap.entry_count:,} blocks would take {format_size(need)}"
            raise UnsupportedError(f"{what} (--max-memory)")
        return _HeapReading(heap, BlockKinds(tally, ClassNames(reader)))

    def _add(self, found: _HeapReading) -> EarlierBlocks | None:
        heap, stacks = self._heap, list[int]()
        sums = np.zeros((2, 0))
        for blocks, _ in found.agreed(forget=True):
            if self._limits != (0, _MASK):
                sizes, (least, most) = blocks.usable_bytes(), map(np.uint64, self._limits)
                blocks = blocks.select((sizes >= least) & (sizes <= most))  # noqa: PLW2901
            all_numbers, all_sizes = found.kinds.numbers(blocks), blocks.usable_bytes()
            with self._lock:
                stacks += [self._stack(kind) for kind in found.kinds.kinds[len(stacks) :]]
            sums = np.pad(sums, ((0, 0), (0, len(stacks) - sums.shape[1])))
            indices = np.array(stacks, np.uint32)
            for at in range(0, len(all_sizes), _AT_ONCE):
                some = slice(at, at + _AT_ONCE)
                sizes, numbers = all_sizes[some], all_numbers[some]
                with self._lock:
                    if not self._is_current():
                        return None
                    self._drain()
                    added = heap.add_earlier(blocks.starts[some], sizes, indices[numbers])
                    # With the lock still held: no point of a series has these blocks twice.
                    self._note_added(int(sizes[added].sum()))
                for row, weights in enumerate((None, sizes[added].astype(np.float64))):
                    sums[row] += np.bincount(numbers[added], weights, len(stacks))
        with self._lock:
            if not self._is_current():
                return None
            self._drain()
            heap.table.explain_frees()
        kinds = [
            EarlierKind(
                each, one.class_name, one.least_bytes, one.most_bytes, int(count), int(size)
            )
            for one, each, count, size in zip(
                found.kinds.kinds, stacks, *sums.tolist(), strict=True
            )
            if count
        ]
        kinds.sort(key=lambda kind: (-kind.size_bytes, kind.most_bytes))
        return EarlierBlocks(tuple(kinds), found.heap.coverage, tuple(found.heap.notes))

    def _stack(self, kind: BlockKind) -> int:
        is_one = kind.least_bytes == kind.most_bytes
        size = f"{kind.most_bytes:,} B" if is_one else f"up to {format_size(kind.most_bytes)}"
        name = [f"class {kind.class_name}"] if kind.class_name else []
        lines = [RuntimeFrame(text, runtime=_RUNTIME) for text in (f"blocks of {size}", *name)]
        frames = tuple(self._frames.address(line) for line in (*lines, _ROOT))
        words = np.array(frames, np.uint64).tobytes()
        stack_id = int.from_bytes(blake2b(words, digest_size=8).digest(), "little")
        return self._heap.stacks.add(stack_id, frames, StackFlag.EARLIER)


def _is_awake(thread: Process) -> bool:
    try:
        return thread.state() in "RD"
    except TargetError:  # it has ended
        return False


def why_not(error: UnsupportedError) -> str:
    """Returns a line for users: why blocks from before tracing are missing."""
    reason = error.message if isinstance(error, NotWalkableError) else str(error)
    return f"memory from before tracing is not in the figures: {reason}"


_WALKS: Final = 2  # How often a heap is read, most often
_PROGRESS_S: Final = 5.0  # From one line about progress to the next
_TURN_S: Final = 60.0  # How long another large heap is waited for


class ReadProgress:
    """Says every five seconds how much of a heap has been read."""

    def __init__(
        self,
        pid: int,
        expected_bytes: int,
        say: Callable[[str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``expected_bytes``: what will have been read in the end, nearly."""
        self._pid, self._expected_bytes, self._say = pid, max(expected_bytes, 1), say
        self._now_s = now_s
        self._began_s = self._said_s = now_s()
        self._read_bytes = 0

    def note(self, read_bytes: int) -> None:
        """Adds bytes that have been read."""
        self._read_bytes += read_bytes
        now_s = self._now_s()
        if now_s - self._said_s >= _PROGRESS_S:
            self._said_s = now_s
            share = f"{min(100 * self._read_bytes // self._expected_bytes, 99)} %"
            what = f"reading the heap of process {self._pid}: {share}"
            self._say(f"{what}, {now_s - self._began_s:.0f} s")


class FirstHeaps:
    """Reads heaps at first: adds blocks from before tracing, if wanted; accounts for memory."""

    def __init__(
        self, context: TraceContext, drain: Callable[[], None], account: Callable[[Tracee], None]
    ) -> None:
        """``drain``, called with the context's lock, applies all pending events."""
        self._config, self._supervisor = context.config, context.supervisor
        self._lock, self._turn = context.lock, context.facets.large_heap
        self._drain, self._account = drain, account
        # Processes whose blocks from before tracing are still being read
        self._reading: set[int] = set()
        self._is_stopped = False

    def begin(self, tracee: Tracee) -> threading.Thread:
        """Reads a process's heap as it is now, on a new thread, which is returned."""

        def read(size_bytes: int) -> None:
            pid = tracee.process.pid
            if self._config.can_count_earlier:
                self._reading.add(pid)
                if size_bytes >= LARGE_HEAP_BYTES:
                    self._supervisor.say(
                        f"reading the heap of process {pid}, {format_size(size_bytes)}: a later "
                        "report has what was allocated before tracing"
                    )
                progress = ReadProgress(pid, _WALKS * size_bytes, self._supervisor.say)
                add = partial(self._add_earlier, tracee, progress.note)
                self._supervisor.run(EARLIER_BLOCKS, pid, add, gives_up=False)
                self._reading.discard(pid)
                return_freed_memory()
            self._account(tracee)

        def read_in_turn() -> None:
            size_bytes = tracee.process.rss_bytes() or 0
            has_turn = size_bytes >= LARGE_HEAP_BYTES and self._turn.acquire(timeout=_TURN_S)
            try:
                read(size_bytes)
            finally:
                if has_turn:
                    self._turn.release()

        thread = threading.Thread(target=read_in_turn, name="heap", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Ends reading, as tracing has stopped and sources may be closed. Call with the lock."""
        self._is_stopped = True
        if self._reading:
            early = "tracing ended before the heap had been read"
            self._supervisor.say(why_not(UnsupportedError(early)))

    def _add_earlier(self, tracee: Tracee, note_read: Callable[[int], None]) -> None:
        heap, budget, capture = tracee.heap, self._config.memory, self._config.capture

        def drain() -> None:
            if not self._is_stopped:
                self._drain()

        reader = EarlierBlockReader(
            tracee.process, heap, tracee.space.files.runtime_frames, self._lock, drain,
            is_current=lambda: tracee.heap is heap and not self._is_stopped,
            note_added=tracee.series.add_before,
            note_read=note_read,
            capture=capture,
            memory_bytes=None if budget is None else budget.left_bytes // 2,
        )  # fmt: skip
        try:
            found = reader.read()
        except UnsupportedError as error:
            whose = f"process {tracee.process.pid}: " if self._config.follow else ""
            self._supervisor.say(whose + why_not(error))
            return
        with self._lock:
            if found is not None and tracee.heap is heap:
                tracee.earlier = found
