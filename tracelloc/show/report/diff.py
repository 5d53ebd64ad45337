"""Reports the difference of two profiles, or of several runs of two sides, with noise and rules.

A side's figure is the median of its runs. It is higher beyond noise if every run of the side is
higher than every run of the other. Stacks are compared for the runs with the median figures.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.show.alerts.rules import ChangeRule
from tracelloc.show.presentation.calltree import shown_frames, shown_lines
from tracelloc.show.presentation.naming import source_place
from tracelloc.show.presentation.profile import FigureUnit, Metric, Profile, Sample
from tracelloc.text import NS_PER_S, format_duration, plural, printable

_RED: Final = "\x1b[31m"
_GREEN: Final = "\x1b[32m"
_PLAIN: Final = "\x1b[0m"
_MARKDOWN_STACKS: Final = 8
_MARKDOWN_FRAMES: Final = 4


def diff_report(
    before: Profile, after: Profile, found: Profile, metric: Metric, top: int, *,
    coloured: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yields text lines, the last one empty; ``found``: the difference of both profiles."""
    figure = metric.unit.format
    names = [
        printable(each.target.command) + (f" ({each.target.pid})" if each.target.pid else "")
        for each in (before, after)
    ]
    seconds = round(found.elapsed_ns / NS_PER_S)
    apart = f", {format_duration(seconds)} apart" if seconds else ""
    per_minute = " per minute" if metric.unit is FigureUnit.RATE else ""
    yield (
        f"==> {names[0]} to {names[1]}{apart}: "
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
    yield from shown_lines(sample.stack, 8)


def _signed(value: int, metric: Metric) -> str:
    return f"{'+' if value > 0 else ''}{metric.unit.format(value)}"


def _median(totals: Sequence[int]) -> int:
    return totals[(len(totals) - 1) // 2]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of two sides, to compare their medians and their noise."""

    before: Sequence[Profile]
    after: Sequence[Profile]

    def totals(self, metric: Metric) -> tuple[Sequence[int], Sequence[int]]:
        """Returns a metric's totals of the runs of both sides, in rising order."""
        sides = self.before, self.after
        before, after = (sorted(each.total(metric) for each in side) for side in sides)
        return before, after

    def middle(self, metric: Metric) -> tuple[Profile, Profile]:
        before, after = (
            sorted(side, key=lambda each: each.total(metric))[(len(side) - 1) // 2]
            for side in (self.before, self.after)
        )
        return before, after

    def breaks(self, rule: ChangeRule) -> bool:
        """Whether a rule's metric has grown by more than the limit, beyond noise."""
        before, after = self.totals(rule.metric)
        if after[0] <= before[-1]:
            return False
        growth = _median(after) - _median(before)
        limit = rule.amount if rule.share is None else rule.share * _median(before)
        return growth > limit

    def change(self, metric: Metric) -> str:
        """Returns a metric's change in words: ``+1.00 MiB, +10.0 % (10.0 MiB to 11.0 MiB)``."""
        before, after = self.totals(metric)
        figure, growth = metric.unit.format, _median(after) - _median(before)
        text = _signed(growth, metric)
        if _median(before):
            text += f", {growth / _median(before) * 100:+.1f} %"
        text += f" ({figure(_median(before))} to {figure(_median(after))})"
        overlap = after[0] <= before[-1] and after[-1] >= before[0]
        if len(self.before) + len(self.after) > 2 and growth and overlap:
            text += ", within noise"
        return text

    def noise_lines(self, metric: Metric) -> Iterator[str]:
        """Yields how far the runs of each side are apart, if there are several."""
        figure = metric.unit.format
        names = ("before", "after")
        for name, totals in zip(names, self.totals(metric), strict=True):
            if len(totals) > 1:
                least, most = figure(totals[0]), figure(totals[-1])
                yield f"{name}: {least} to {most} in {plural(len(totals), 'run')}"


def markdown_lines(
    compared: Comparison, found: Profile, metric: Metric, rules: Sequence[ChangeRule]
) -> Iterator[str]:
    """Yields a comment for a pull request, at most 60 lines; ``found``: the runs' difference."""
    name = _cell(printable(found.target.command))
    yield f"### Memory of {name}: {metric.title} {compared.change(metric)}"
    yield ""
    broken = [rule for rule in rules if compared.breaks(rule)]
    for rule in rules[:6]:
        mark = "❌" if rule in broken else "✅"
        yield f"{mark} `{rule.text}`: {compared.change(rule.metric)}  "
    if rules:
        yield ""
    yield "| | before | after | change |"
    yield "|---|---:|---:|---:|"
    for each in sorted(found.metrics, key=list(Metric).index):
        before, after = compared.totals(each)
        if each is Metric.GROWTH or not (_median(before) or _median(after)):
            continue
        cells = (_range(totals, each) for totals in (before, after))
        share = _median(after) / _median(before) - 1 if _median(before) else 0.0
        yield f"| {each.title} | {' | '.join(cells)} | {share:+.1%} |"
    for word, sign in (("more", 1), ("less", -1)):
        yield from _stacks(found, metric, word, sign)


def _range(totals: Sequence[int], metric: Metric) -> str:
    low, middle, high = (metric.unit.format(n) for n in (totals[0], _median(totals), totals[-1]))
    return middle if totals[0] == totals[-1] else f"{middle} ({low} – {high})"


def _stacks(found: Profile, metric: Metric, word: str, sign: int) -> Iterator[str]:
    chosen = [sample for sample in found.samples if sample.weight(metric) * sign > 0]
    chosen.sort(key=lambda sample: (-abs(sample.weight(metric)), sample.stat.index))
    if not chosen:
        return
    shown = chosen[:_MARKDOWN_STACKS]
    of = f"{len(shown)} of " if len(chosen) > len(shown) else ""
    yield ""
    yield f"<details><summary>{of}{plural(len(chosen), 'call stack')} with {word}</summary>"
    yield ""
    yield "| change | before | allocated in |"
    yield "|---:|---:|---|"
    figure = metric.unit.format
    for sample in shown:
        was = 0 if sample.before is None else metric.value_of(sample.before)
        change = _signed(sample.weight(metric), metric)
        yield f"| {change} | {figure(was)} | {_title(sample)} |"
    yield ""
    yield "</details>"


def _title(sample: Sample) -> str:
    frames = list(shown_frames(sample.stack))[:_MARKDOWN_FRAMES]
    parts = []
    for name, frame in frames:
        place = source_place(frame)
        parts.append(f"{_cell(printable(name))}{f' ({_cell(printable(place))})' if place else ''}")
    return " ← ".join(parts) or "no call stack"


def _cell(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~@!])", r"\\\1", text)[:160]
