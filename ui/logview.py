"""The log: what is attached, what was counted, what was said."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median

from rich.text import Text

from tracelloc.report.text import losses_line, overhead_line
from tracelloc.target.found import unseen_lines
from tracelloc.text import printable
from tracelloc.ui.figures import clock, short_count
from tracelloc.ui.picture import Picture
from tracelloc.ui.settings import View
from tracelloc.ui.source import Facts
from tracelloc.units import format_size, plural
from tracelloc.views.memory import memory_lines

Costs = Mapping[View, Collection[tuple[float, float]]]
"""Per view, seconds that pictures took to be worked out, and drawn."""


def log_lines(picture: Picture, facts: Facts, messages: Sequence[str], costs: Costs) -> Text:
    """All lines: the standing figures, then messages, the oldest first."""
    return Text("\n".join(_lines(picture, facts, messages, costs)))


def _lines(picture: Picture, facts: Facts, messages: Sequence[str], costs: Costs) -> Iterator[str]:
    snapshot = picture.snapshot
    totals = snapshot.totals
    yield f"target     {printable(snapshot.target.command)} (pid {snapshot.target.pid})"
    yield f"attached   {clock(snapshot.elapsed_ns)} ago, by {facts.method}"
    fill = f"{picture.header.ring_share:.0%} full at most"
    yield f"buffer     {format_size(facts.buffer_bytes)}, {fill}"
    if snapshot.sample_bytes is not None:
        distance = format_size(snapshot.sample_bytes)
        yield f"sampled    one in {distance}: figures with ~ are estimates"
    for function in facts.functions:
        yield f"traced     {printable(function)}"
    for line in unseen_lines(snapshot.allocators):
        yield f"unseen     {line}"
    for path, method in snapshot.stack_methods.items():
        yield f"stacks     through {printable(path)}: {method}"
    for line in memory_lines(snapshot):
        yield f"memory     {line}"
    yield f"cost       {overhead_line(snapshot.overhead)}"
    yield f"missed     {losses_line(snapshot)}"
    for cause, count in snapshot.losses.by_cause.items():
        if count:
            yield f"           {cause.replace('_', ' ')}: {count:,}"
    yield (
        f"seen       {snapshot.events:,} events, {plural(len(snapshot.stacks) - 1, 'stack')}, "
        f"{short_count(float(totals.allocated_count.sum()))} allocations, "
        f"{short_count(float(totals.freed_count.sum()))} frees"
    )
    yield f"           {snapshot.broken_stacks:,} stacks end in code without frame pointers"
    for view, pairs in costs.items():
        worked, drawn = (1000 * median(column) for column in zip(*pairs, strict=True))
        most = 1000 * max(map(sum, pairs))
        yield (
            f"{'screen':<11}{view.value}: {worked:.1f} ms worked out aside, "
            f"{drawn:.1f} ms drawn, {most:.1f} ms at most"
        )
    yield ""
    for message in messages:
        yield printable(message)
