"""Folded stacks: one line per distinct stack, ``ROOT;outermost;…;innermost FIGURE``.

The input of flamegraph.pl and of everything that reads its format. Frames are divided
by semicolons, the figure by the last blank. A difference has two figures per line,
before and after, as flamegraph.pl reads differences.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from tracelloc.text import printable
from tracelloc.views.calltree import steps
from tracelloc.views.naming import NamedStack
from tracelloc.views.profile import Metric, Profile


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Every stack that has any of it, filtered frames left out.

    The format knows no figures below zero: of growth, stacks that shrank are left out.
    """
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for sample in profile.samples:
        line = fold(sample.stack, sample.stat.index)
        after[line] += sample.after(metric)
        if sample.before is not None:
            before[line] += metric.of(sample.before)
    for line in sorted(after):
        if profile.is_difference:
            if before[line] > 0 or after[line] > 0:
                figures = f"{max(0, before[line])} {max(0, after[line])}"
                yield f"{line} {figures}\n".encode(errors="backslashreplace")
        elif after[line] > 0:
            yield f"{line} {after[line]}\n".encode(errors="backslashreplace")


def fold(stack: NamedStack, index: int) -> str:
    """The line of one stack without its figure."""
    return ";".join(_clean(step.name) for step in steps(stack, index))


@functools.lru_cache(maxsize=1 << 16)
def _clean(name: str) -> str:
    return printable(name).replace(";", ":")
