"""What the user wants to see: one frozen value, so that a picture says what it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tracelloc.snapshots.analysis import ALL, Limits, Mark
from tracelloc.ui.view import Sorting, View
from tracelloc.verdict.judgement import Verdict
from tracelloc.views.metrics import Metric

VERDICT_CHOICES: Final[tuple[tuple[Verdict, ...], ...]] = (
    (),
    (Verdict.LEAKING, Verdict.GROWING),
    (Verdict.CACHE_OR_POOL,),
    (Verdict.BUSY,),
    (Verdict.START_UP,),
    (Verdict.WATCHING, Verdict.UNKNOWN),
)
"""What to show only stacks of, one after the other; the first is all."""


@dataclass(frozen=True, slots=True)
class Difference:
    """From one mark to another, or to now."""

    before: Mark
    after: Mark | None = None

    @property
    def title(self) -> str:
        """``m1 → m2``, ``m1 → now``."""
        return f"{self.before.name} → {self.after.name if self.after else 'now'}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that has a say in what the views show."""

    view: View[Any]
    process: int = 0
    """Which one is shown, by its number in the trace; negative: several (``ALL_PROCESSES``)."""
    shows_ended: bool = False
    """Whether processes that have ended have a line each in the list of processes."""
    sortings: Mapping[str, Sorting] = field(default_factory=dict)
    """Of views by name, where it is not their own."""
    search: str = ""
    limits: Limits = ALL
    """Sizes, ages and thread."""
    verdicts: tuple[Verdict, ...] = ()
    """Only stacks that are judged so; empty: all."""
    baseline: Mark | None = None
    """Only what has come since and is still there."""
    difference: Difference | None = None
    inverted: bool = False
    metric: Metric = Metric.BYTES
    """What flame graph and tree are drawn by."""
    filters_on: bool = True
    selected: int | None = None
    """The stack whose details are wanted."""
    marks: tuple[Mark, ...] = field(default=())

    @property
    def sorting(self) -> Sorting:
        """Of the view on top; of one without columns, none."""
        return self.sortings.get(self.view.name, self.view.sorting)

    @property
    def all_limits(self) -> Limits:
        """The limits, the baseline among them."""
        if self.baseline is None:
            return self.limits
        return replace(self.limits, born_after_ns=self.baseline.now_ns)

    @property
    def shows_freed(self) -> bool:
        """Whether stacks that hold nothing any more are shown: no block of theirs has limits."""
        return self.view.by_metric and self.metric.figure.of_freed and self.all_limits.is_open

    @property
    def narrows_stacks(self) -> bool:
        """Whether some stacks are left out as a whole."""
        return bool(self.search or self.verdicts) or self.difference is not None
