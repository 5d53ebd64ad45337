"""The difference of two profiles as text: the stacks that grew and those that shrank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tracelloc.show.presentation.calltree import shown_frames
from tracelloc.show.presentation.facts import where
from tracelloc.show.presentation.profile import FigureUnit, Metric, Profile, Sample
from tracelloc.text import NS_PER_S, format_duration, plural, printable

_RED: Final = "\x1b[31m"
_GREEN: Final = "\x1b[32m"
_PLAIN: Final = "\x1b[0m"


def diff_report(
    before: Profile,
    after: Profile,
    found: Profile,
    metric: Metric,
    top: int,
    *,
    coloured: bool = False,
) -> Iterator[str]:
    """Yields the lines, the last one empty; ``found`` is the difference of the other two."""
    figure = metric.unit.format
    seconds = round(found.elapsed_ns / NS_PER_S)
    apart = f", {format_duration(seconds)} apart" if seconds else ""
    per_minute = " per minute" if metric.unit is FigureUnit.RATE else ""
    yield (
        f"==> {_name(before)} to {_name(after)}{apart}: "
        f"{_signed(found.total(metric), metric)} {metric.noun}{per_minute} "
        f"({figure(before.total(metric))} to {figure(after.total(metric))})"
    )
    ordered = sorted(found.samples, key=lambda s: (-abs(s.weight(metric)), s.stat.index))
    for word, sign, colour in (("more", 1, _RED), ("less", -1, _GREEN)):
        chosen = [sample for sample in ordered if sample.weight(metric) * sign > 0]
        total = _signed(sum(sample.weight(metric) for sample in chosen), metric)
        shown = chosen[:top]
        yield f"==> {len(shown)} of {plural(len(chosen), 'stack')} with {word}, {total} in all:"
        for number, sample in enumerate(shown):
            yield from _entry(number, sample, metric, colour if coloured else "")
    same = sum(1 for sample in found.samples if sample.weight(metric) == 0)
    yield f"==> {plural(same, 'stack')} unchanged"
    for note in found.notes:
        yield f"==> {printable(note)}"
    yield ""


def _name(profile: Profile) -> str:
    pid = f" ({profile.target.pid})" if profile.target.pid else ""
    return f"{printable(profile.target.command)}{pid}"


def _entry(number: int, sample: Sample, metric: Metric, colour: str) -> Iterator[str]:
    figure = metric.unit.format
    change = _signed(sample.weight(metric), metric)
    if colour:
        change = f"{colour}{change}{_PLAIN}"
    was = metric.value_of(sample.before) if sample.before is not None else 0
    blocks = ""
    if metric is Metric.BYTES and sample.stat.live_count:
        blocks = f" in {sample.stat.live_count:+,} allocations"
    yield (f"  {number:>4}: {change}{blocks} ({figure(was)} to {figure(sample.after(metric))})")
    for name, frame in shown_frames(sample.stack):
        yield f"        {printable(name)}{where(frame)}"
    if not sample.stack.frames:
        yield "        [no call stack]"


def _signed(value: int, metric: Metric) -> str:
    return f"{'+' if value > 0 else ''}{metric.unit.format(value)}"
