"""The text report: what leaks, the largest blocks, the stacks that hold most, what was missed."""

from __future__ import annotations

from collections.abc import Iterator, Set

from tracelloc.abi import Counter
from tracelloc.capture.overhead import Overhead
from tracelloc.heap.ranges import Mappings
from tracelloc.heap.stacks import NO_STACK
from tracelloc.report.sections import parts_of
from tracelloc.snapshots.blocks import BlockSelection, BlockStat
from tracelloc.snapshots.losses import Losses
from tracelloc.snapshots.marks import SinceMark, since_mark
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.text import printable
from tracelloc.units import (
    NS_PER_S,
    about_of,
    format_age,
    format_duration,
    format_size,
    plural,
)
from tracelloc.views.memory import memory_lines
from tracelloc.views.naming import NamedStack, Namer
from tracelloc.views.suspects import (
    headline,
    name_suspects,
    nobody_line,
    sentences,
    stacks_to_name,
    summary_line,
    suppressed_line,
    suspects_of,
)

_LOSS_TEXTS = {
    Counter.SKIPPED_RUNS: ("fork or exec unseen", "forks or execs unseen"),
    Counter.LOST_MAPPINGS: ("mapping or its end lost", "mappings or their ends lost"),
    Counter.LOST_STACKS: ("stack lost", "stacks lost"),
    Counter.LOST_MISSES: ("stack cut short", "stacks cut short"),
    Counter.STACK_TABLE_FULL: ("stack beyond the stack table", "stacks beyond the stack table"),
    Counter.UNPAIRED_RETURNS: ("unpaired return", "unpaired returns"),
    Counter.ABANDONED_CALLS: ("abandoned call", "abandoned calls"),
    Counter.SAMPLE_TABLE_FULL: ("sample lost", "samples lost"),
    Counter.LOST_PAIRS: ("short-lived allocation uncounted", "short-lived allocations uncounted"),
    Counter.UNREADABLE_RESULTS: ("unreadable result", "unreadable results"),
}
_MOST_DEAR = 4
"""Names of dear probes in a line."""


def text_report(
    snapshot: Snapshot,
    namer: Namer,
    top: int,
    min_age_ns: int | None = None,
    mark: Snapshot | None = None,
    *,
    show: Set[str] = frozenset(),
) -> Iterator[str]:
    """The report's lines, the last one empty.

    ``mark``: also what has come since; ``show``: more sections, by name
    (``sections.SECTIONS``).
    """
    parts = parts_of(snapshot, top, show)
    since = since_mark(snapshot, mark, top)
    indices = snapshot.shown_stacks(top) | stacks_to_name(suspects_of(snapshot, top))
    if since is not None:
        indices |= {changed.stack for changed in since.top}
    indices |= {stack for part in parts.values() for stack in part.stacks}
    namer.prepare(snapshot, indices, namer.patience_s)
    blocks = snapshot.top_blocks
    about, sampled = "", ""
    if snapshot.sample_bytes is not None:
        about, sampled = "~", f" (sampled, one in {format_size(snapshot.sample_bytes)})"
    yield from _suspects(snapshot, namer, top, about)
    yield (
        f"==> {len(blocks.largest)} top allocations out of {about}{blocks.count} "
        f"for a total of {about}{format_size(blocks.size_bytes)}{sampled}"
    )
    yield from _blocks(snapshot, namer, blocks)
    if snapshot.old_blocks is not None and min_age_ns is not None:
        old = snapshot.old_blocks
        yield (
            f"==> {len(old.largest)} top allocations older than "
            f"{format_duration(min_age_ns / NS_PER_S)} out of {about}{old.count} "
            f"for a total of {about}{format_size(old.size_bytes)}{sampled}"
        )
        yield from _blocks(snapshot, namer, old)
    yield from _allocators(snapshot, namer, top, about)
    if since is not None:
        yield from _since(snapshot, since, namer, about)
    for part in parts.values():
        yield from part.lines(lambda stack: _stack(namer.stack(snapshot, stack), stack))
    for line in (
        nobody_line(snapshot),
        suppressed_line(snapshot),
        *memory_lines(snapshot),
    ):
        if line is not None:
            yield f"==> {line}"
    if snapshot.target.exec_count:
        programs = plural(snapshot.target.exec_count, "other program")
        yield f"==> {programs} begun (exec), now {printable(snapshot.target.command)}"
    if snapshot.mappings is not None:
        yield from _mappings(snapshot, snapshot.mappings, namer, top)
    yield f"==> {overhead_line(snapshot.overhead)}"
    yield f"==> {losses_line(snapshot)}"
    yield ""


def _allocators(snapshot: Snapshot, namer: Namer, top: int, about: str) -> Iterator[str]:
    """The section of the stacks that hold most."""
    stacks = snapshot.top_stacks(top)
    yield f"==> {len(stacks)} top allocators out of {snapshot.live_stacks}:"
    for number, stat in enumerate(stacks):
        yield (
            f"  {number:>4}: {about}{format_size(stat.live_bytes)} in "
            f"{about}{plural(stat.live_count, 'allocation')}"
        )
        yield from _stack(namer.stack(snapshot, stat.index), stat.index)


def _since(snapshot: Snapshot, since: SinceMark, namer: Namer, about: str) -> Iterator[str]:
    """The section of what has come since the mark."""
    yield (
        f"==> since the mark {format_age(since.elapsed_ns)} ago: "
        f"{about}{_more(since.live_bytes)} in {about}{since.live_count:+} allocations, "
        f"{len(since.top)} top growers out of {since.growing}:"
    )
    for number, changed in enumerate(since.top):
        yield (
            f"  {number:>4}: {about}{_more(changed.live_bytes)} in "
            f"{about}{changed.live_count:+} allocations"
        )
        yield from _stack(namer.stack(snapshot, changed.stack), changed.stack)


def _more(size_bytes: int) -> str:
    return f"{'+' if size_bytes >= 0 else ''}{format_size(size_bytes)}"


def _suspects(snapshot: Snapshot, namer: Namer, top: int, about: str) -> Iterator[str]:
    """The section of leak suspects, if there are any."""
    findings = snapshot.findings
    if findings is None or not findings.suspects:
        return
    found = name_suspects(snapshot, namer, findings.suspects[:top])
    yield f"==> {summary_line(findings.suspects, len(found), findings.suspects_left_out)}"
    for number, named in enumerate(found):
        yield f"  {number:>4}: {headline(named.judgement, snapshot.now_ns, about=about)}"
        for sentence in sentences(named):
            yield f"      {sentence}"
        yield from _stack(named.stack, named.suspect.stack)


def _mappings(snapshot: Snapshot, mappings: Mappings, namer: Namer, top: int) -> Iterator[str]:
    shown = mappings.stacks[:top]
    yield (
        f"==> {len(shown)} top mappings' stacks out of {len(mappings.stacks)}: "
        f"{plural(mappings.count, 'mapping')} for a total of {format_size(mappings.size_bytes)}"
    )
    for number, held in enumerate(shown):
        yield (
            f"  {number:>4}: {format_size(held.size_bytes)} in {plural(held.count, 'mapping')}, "
            f"the oldest {format_age(snapshot.now_ns - held.oldest_ns)} old"
        )
        yield from _stack(namer.stack(snapshot, held.stack), held.stack)


def overhead_line(overhead: Overhead) -> str:
    """What tracing costs the target, and which probes cost more than they could."""
    parts = [f"{overhead.events_per_s:.0f} events/s"]
    if overhead.probe_share is not None:
        parts.append(f"probes take about {overhead.probe_share:.1%} of the target's CPU time")
    if overhead.dear_probes:
        shown = [printable(name) for name in overhead.dear_probes[:_MOST_DEAR]]
        more = len(overhead.dear_probes) - len(shown)
        if more:
            shown.append(f"and {more} more")
        parts.append(f"dear probes: {', '.join(shown)}")
    return ", ".join(parts)


def losses_line(snapshot: Snapshot) -> str:
    """What was missed, in one line: the three standing figures, then whatever else isn't 0."""
    losses = snapshot.losses
    parts = [
        f"lost {plural(losses.events, 'event')}",
        f"{plural(losses.oddities.unmatched_frees, 'free')} of earlier allocations",
        f"{plural(snapshot.truncated_stacks, 'truncated stack')}",
    ]
    if snapshot.broken_stacks:
        parts.append(plural(snapshot.broken_stacks, "broken stack"))
    if snapshot.partial_stacks:
        parts.append(plural(snapshot.partial_stacks, "partial stack"))
    parts.extend(_rare_losses(losses))
    if losses.overflows:
        parts.append(_overflows(losses))
    if snapshot.count_bounds is not None:
        least, most = snapshot.count_bounds
        parts.append(
            f"at least {least} and at most {most} allocations are outstanding, bytes unknown"
        )
    elif losses.events:
        parts.append("outstanding figures are not certain")
    return ", ".join(parts)


def _overflows(losses: Losses) -> str:
    """How it went when the reader fell behind."""
    text = (
        f"{plural(losses.overflows, 'overflow')} of the event buffer, "
        f"{plural(losses.spilled_events, 'event')} kept aside"
    )
    if losses.events:
        return f"{text} or lost"
    return f"{text}: figures are exact, peaks meanwhile unseen"


def _rare_losses(losses: Losses) -> Iterator[str]:
    for counter, (one, many) in _LOSS_TEXTS.items():
        count = losses.counters[counter]
        if count:
            yield f"{count} {one if count == 1 else many}"
    if losses.oddities.address_reuses:
        yield f"{plural(losses.oddities.address_reuses, 'unseen free')} found by address reuse"
    if losses.oddities.odd_restores:
        yield plural(losses.oddities.odd_restores, "unmatched failed realloc")


def _blocks(snapshot: Snapshot, namer: Namer, blocks: BlockSelection) -> Iterator[str]:
    for block in blocks.largest:
        yield _block(block)
        yield from _stack(namer.stack(snapshot, block.stack), block.stack)


def _block(block: BlockStat) -> str:
    return (
        f"    0x{block.address:016x}: {format_size(block.size_bytes)} "
        f"({format_age(block.age_ns)} old)"
    )


def _stack(stack: NamedStack, index: int) -> Iterator[str]:
    if not stack.frames:
        reason = "could not be taken" if index == NO_STACK else "was lost"
        yield f"        [the call stack {reason}]"
        return
    for part in stack.parts():
        if part.frame is None:
            yield f"         ({part.count} filtered out)"
            continue
        if part.label is None:
            text = format_frame(part.frame)
        else:
            text = f"[{printable(part.label)}] ({plural(part.count, 'frame')})"
        # What stands for missing frames has no address.
        address = f"0x{part.frame.address:016x}: " if part.frame.address else ""
        yield f"        {address}{text}"


def format_frame(frame: Frame) -> str:
    """``name+0x32/0x76 in FILE (file:line)``; ``???`` without a name, the reason without a file.

    Functions that were inlined have no offset: ``name [inlined] in FILE (file:line)``.
    """
    if frame.symbol is not None:
        name = printable(frame.symbol)
        if frame.offset is not None:
            name += f"+0x{frame.offset:x}"
            name += f"/0x{frame.size:x}" if frame.size is not None else ""
        elif frame.inlined:
            name += " [inlined]"
    else:
        name = "???"
    if frame.module is not None:
        name += f" in {printable(frame.module)}"
    elif frame.reason is not None:
        name += f" [{frame.reason.value}]"
    if frame.file is not None:
        line = f":{frame.line}" if frame.line is not None else ""
        name += f" ({printable(frame.file)}{line})"
    return name


def traced_line(snapshot: Snapshot) -> str:
    """What has been traced so far, for progress."""
    elapsed_s = snapshot.elapsed_ns / NS_PER_S
    rate = snapshot.events / elapsed_s if elapsed_s > 0 else 0.0
    about = about_of(snapshot.sample_bytes)
    return (
        f"{format_duration(round(elapsed_s))} traced, {about}{format_size(snapshot.live_bytes)} "
        f"in {about}{snapshot.live_count} allocations from {snapshot.live_stacks} stacks, "
        f"{rate:,.0f} events/s"
    )
