"""Reports of ``tracelloc holders``, ``leaks`` and leak checks, as text and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tracelloc.dataclass import dataclass, field
from tracelloc.model.blocks import BlockHolders, BlockSum, HeapCoverage, TopHolders
from tracelloc.model.frames import Frame
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack, LostGroup, LostMemory, Shape
from tracelloc.model.process import Target
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.blockholders import (
    blocks_text,
    holders_facts,
    keeper_facts,
    keeper_text,
    missing_lines,
    path_text,
    top_keeper_text,
)
from tracelloc.show.presentation.blocktypes import class_text
from tracelloc.show.presentation.calltree import shown_lines
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.report.heap import readable_contents
from tracelloc.show.tables import (
    Column,
    headline,
    json_line,
    json_of,
    row_line,
    sum_columns,
    table_lines,
)
from tracelloc.text import format_size, format_time, plural, printable

_NO_ROOT: Final = "no root leads to them: moved during the search, or lost (tracelloc leaks)"
_HOLDERS_MISSING: Final = ("holders may be missing: {}",) * 3
_LOST_MISSING: Final = (
    "there may be more: {}, and each address in the rest counts as a pointer",
    "there may be more: {}, and what they point to counts as in use",
    "{}: what only they point to counts as lost",
)


def top_holder_lines(target: Target, found: TopHolders) -> Iterator[str]:
    """Yields lines on the roots that retain most of a heap, the last one empty."""
    text = f"{blocks_text(found.heap.in_use)} in use"
    if found.shared.count:
        text += f", {format_size(found.shared.size_bytes)} of them kept by several roots"
    yield headline(found.heap.time_s, target, text)
    yield from _missing_holders(found.heap)
    rows = [(keeper.retained, top_keeper_text(keeper)) for keeper in found.keepers]
    if found.other_count:
        rows.append((found.others, f"{found.other_count:,} more"))
    if found.heap.unreached.count:
        rows.append((found.heap.unreached, _no_root(found.heap)))
    title = "kept by: so much would be freed with it, unless other roots are named"
    yield from table_lines(sum_columns(title), rows)
    yield ""


def holder_lines_of(target: Target, what: str, found: BlockHolders) -> Iterator[str]:
    """Yields lines on the holders of some blocks, the last one empty. ``what``: the blocks."""
    text = f"{printable(what)}: {blocks_text(found.blocks)}"
    if found.retained.count > found.blocks.count:
        text += f", which keep {blocks_text(found.retained)}"
    yield headline(found.heap.time_s, target, text)
    yield from _missing_holders(found.heap)
    reached = found.blocks.count - found.unreached.count
    for keeper in found.keepers:
        yield keeper_text(keeper, BlockSum(reached))
    if not found.keepers and reached:
        yield "no single root keeps most of these"
    rows = [
        (path.blocks, f"{format_size(path.retained.size_bytes):>10}  {path_text(path)}")
        for path in found.paths
    ]
    columns = sum_columns("root keeps  pointed to by")
    if rows:
        yield from table_lines(columns, rows, more=found.more_paths)
    if found.unreached.count:
        yield row_line(columns, (found.unreached, _no_root(found.heap)))
    yield ""


def _no_root(heap: HeapCoverage) -> str:
    """Says that no root leads to blocks: they may be lost if nothing was left out of the search."""
    is_whole = not any(_missing_holders(heap))
    return _NO_ROOT if is_whole else "no root that could be searched leads to them"


def _missing_holders(heap: HeapCoverage) -> Iterator[str]:
    gaps = heap.coverage, heap.notes, heap.pointers_left_out, heap.swapped_bytes
    return missing_lines(_HOLDERS_MISSING, *gaps)


def top_holders_json(target: Target, found: TopHolders) -> str:
    """Returns the roots that retain most of a heap, as one line of JSON."""
    names = {"heap": None, "keepers": None, "other_count": "more"}
    holders = [keeper_facts(one) for one in found.keepers]
    return _json(target, found.heap, {"holders": holders, **json_of(found, names)})


def holders_json(target: Target, what: str, found: BlockHolders) -> str:
    """Returns the holders of some blocks, as one line of JSON."""
    return _json(target, found.heap, {"what": what, **holders_facts(found, "is_sample")})


def _json(target: Target, heap: HeapCoverage, more: dict[str, Any]) -> str:
    return json_line(heap.time_s, target, {**json_of(heap, {"time_s": None}), **more})


def describe(group: LostGroup) -> str:
    """Formats lost blocks, escaped: ``20 × list of 50 nodes up to 56 bytes``."""
    least, most = group.least_nodes, group.most_nodes
    size = f"up to {group.usable_bytes:,} bytes"
    if group.shape is Shape.BLOCK:
        text, nodes = f"block {size}", group.structures
    else:
        count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        text = f"{group.shape.value} of {count} nodes {size}"
        nodes = group.structures * most if least == most else 0
    if group.structures > 1 or group.shape is not Shape.BLOCK:
        text = f"{group.structures:,} × {text}"
    others = group.blocks.count - nodes
    if nodes and others > 0:
        text += f", with {plural(others, 'other block')}"
    return f"{text}: {class_text(group.class_name)}" if group.class_name else text


def leak_lines(target: Target, found: LostMemory, top: int) -> Iterator[str]:
    """Yields lines on the lost blocks of a heap, the last one empty. ``top``: groups to list."""
    lost = f"{blocks_text(found.lost)} lost," if found.lost.count else "nothing lost"
    yield headline(found.time_s, target, f"{lost} of {blocks_text(found.in_use)} in use")
    gaps = found.coverage, found.notes, found.pointers_left_out, found.swapped_bytes
    yield from missing_lines(_LOST_MISSING, *gaps)
    if found.known.count:
        yield f"{blocks_text(found.known)} of them were reported before"
    if found.suppressed.count:
        yield f"{blocks_text(found.suppressed)} of them are suppressed"
    yield from _group_lines(found.groups, top, "lost: nothing points to it")
    if found.probably_lost.count:
        yield f"{blocks_text(found.probably_lost)} more probably lost"
    about = "probably lost: only unwritten memory points to it"
    yield from _group_lines(found.probable, top, about)
    yield ""


def _group_lines(groups: Sequence[LostGroup], top: int, title: str) -> Iterator[str]:
    rows = [
        (group.blocks, f"{group.example:#x}", group.contents, describe(group))
        for group in groups[:top]
    ]
    if rest := groups[top:]:
        others = sum((group.blocks for group in rest), BlockSum())
        rows.append((others, "", b"", plural(len(rest), "more group")))
    example: Column[Any] = Column("example", "the first one at", 18, lambda row: row[1])
    columns = sum_columns(title, example)
    if rows:
        yield from table_lines(columns, rows, below=lambda row: readable_contents(row[2], 24))


def leaks_json(target: Target, found: LostMemory) -> str:
    """Returns the lost blocks of a heap, all groups, as one line of JSON."""
    return json_line(found.time_s, target, json_of(found, {"time_s": None, "class_name": "class"}))


_MISSING: Final = (
    "", "there may be more leaks: {}", "{}: blocks that only they point to count as leaked",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedLeak:
    """Leaked blocks of one call stack, with the stack's names."""

    leak: LeakedStack
    stack: NamedStack

    @property
    def frame(self) -> Frame | None:
        """The innermost shown frame with a line, or else the innermost; None: no stack."""
        shown = [part.frame for part in self.stack.parts() if part.frame is not None]
        with_line = (frame for frame in shown if frame.file is not None and frame.line is not None)
        return next(with_line, shown[0] if shown else None)

    @property
    def sentence(self) -> str:
        """The leak as a line, safe to print: ``40 bytes in 2 blocks leaked, allocated in f``."""
        direct, indirect = self.leak.direct, self.leak.indirect
        if not direct.count:
            text = f"{_amount(indirect)} leaked, to which only leaked blocks point"
        elif indirect.count:
            text = f"{_amount(direct)} leaked, and {_amount(indirect)} to which only these point"
        else:
            text = f"{_amount(direct)} leaked"
        frame = self.frame
        return f"{text}, allocated in {printable(frame_name(frame))}" if frame else text


def joined_leaks(leaks: Iterable[NamedLeak]) -> list[NamedLeak]:
    """Joins the leaks of call stacks with the same functions and lines; most bytes first."""
    found: dict[tuple[object, ...], NamedLeak] = {}
    for one in leaks:
        lines = tuple((frame_name(frame), frame.file, frame.line) for frame in one.stack.frames)
        # What a program lost comes before what it lost with that.
        key = (one.leak.part, bool(one.leak.direct.count), *lines)
        known = found.get(key)
        found[key] = one if known is None else NamedLeak(known.leak + one.leak, known.stack)
    return sorted(
        found.values(),
        key=lambda one: (not one.leak.direct.count, -one.leak.blocks.size_bytes, one.leak.stack),
    )


@dataclass(frozen=True, slots=True)
class LeakReport:
    """The result of a leak check, with names."""

    target: Target
    found: ExitLeaks  # The result of the search at the end
    leaks: Sequence[NamedLeak]  # Leaks by call stack, most bytes first
    suppressed: BlockSum = field(default_factory=BlockSum)  # Leaked blocks that suppressions hide
    time_s: float | None = None  # When the process was checked; None: at its end


def leak_report_lines(report: LeakReport, top: int) -> Iterator[str]:
    """Yields the lines of a leak check's report. ``top``: call stacks to list."""
    who = f"{printable(report.target.command)} ({report.target.pid})"
    if report.found.problem:
        yield f"==> {who}: not checked for leaks: {printable(report.found.problem)}"
        return
    total = sum((one.leak.blocks for one in report.leaks), BlockSum())
    lost = f"leaked {_amount(total)}" if report.leaks else "no leaks"
    when = "its end" if report.time_s is None else format_time(report.time_s)
    yield f"==> {who}: {lost}, of {_amount(report.found.in_use)} in use at {when}"
    for one in report.leaks[:top]:
        yield f"{one.sentence}:"
        yield from shown_lines(one.stack, 4)
    if rest := report.leaks[top:]:
        others = sum((one.leak.blocks for one in rest), BlockSum())
        yield f"{_amount(others)} of {plural(len(rest), 'more call stack')} leaked"
    if report.suppressed.count:
        yield f"{_amount(report.suppressed)} suppressed"
    gaps = report.found.pointers_left_out, report.found.swapped_bytes
    yield from missing_lines(_MISSING, 1.0, (), *gaps)


def _amount(blocks: BlockSum) -> str:
    size = blocks.size_bytes
    text = plural(size, "byte") if size < 1024 else format_size(size)
    return f"{text} in {plural(blocks.count, 'block')}"
