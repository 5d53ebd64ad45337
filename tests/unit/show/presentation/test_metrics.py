"""Metrics and figures: each record fits what it stands for."""

from dataclasses import fields, replace

import pytest

from tests.unit.leaks import watched
from tracelloc.show.presentation.profile import (
    FIGURES,
    GROWTH_PER_MIN,
    LIVE_COUNT,
    METRICS,
    PEAK_BYTES,
    PEAK_COUNT,
    Figure,
    FigureUnit,
    Metric,
)
from tracelloc.snapshots.snapshot import StackStat

SNAPSHOT = watched(100.0).snapshot()


def test_every_figure_has_one_record() -> None:
    attributes = [field.name for field in fields(StackStat) if field.name != "index"]
    assert [figure.attribute for figure in FIGURES] == attributes
    for names in ([f.name for f in FIGURES], [f.sample_type for f in FIGURES if f.sample_type]):
        assert len(set(names)) == len(names)
    assert {metric.figure for metric in Metric} <= set(FIGURES)
    assert list(METRICS) == ["bytes", "blocks", "allocated", "growth", "peak", "temporary"]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_columns_agree_with_stacks(figure: Figure) -> None:
    stats = SNAPSHOT.top_stacks(freed=True)
    column = SNAPSHOT.column(figure.attribute)
    assert [figure.value_of(stat) for stat in stats] == [int(column[stat.index]) for stat in stats]
    assert len(column) == len(SNAPSHOT.totals)


def test_columns_of_the_peak_and_of_growth() -> None:
    peak, totals = SNAPSHOT.peak, SNAPSHOT.totals
    assert peak.live_bytes.any()
    pairs = [
        (LIVE_COUNT, totals.allocated_count - totals.freed_count),
        (PEAK_BYTES, peak.live_bytes),
        (PEAK_COUNT, peak.live_count),
        (GROWTH_PER_MIN, SNAPSHOT.growth_per_min),
    ]
    for figure, expected in pairs:
        assert SNAPSHOT.column(figure.attribute).tolist() == expected.tolist(), figure.name
    nothing = replace(SNAPSHOT, peak=None)
    assert not nothing.column("peak_bytes").any()
    assert {stat.peak_count for stat in nothing.top_stacks()} == {0}


def test_what_is_left_of_freed_stacks() -> None:
    """Only figures ``of_freed`` may be there when nothing is outstanding."""
    gone = [stat for stat in SNAPSHOT.top_stacks(freed=True) if not stat.live_count]
    assert not any(f.value_of(stat) for stat in gone for f in FIGURES if not f.of_freed)


def test_words() -> None:
    assert FigureUnit.BLOCKS.format(1_234_567) == "1,234,567"
    assert FigureUnit.BYTES.format(3 << 20) == FigureUnit.RATE.format(3 << 20) == "3.00 MiB"
    headings = [metric.heading for metric in Metric]
    assert headings == ["live", "blocks", "allocated", "growth/min", "peak", "temporary"]
    assert Metric.BYTES.title == "live bytes"
    assert Metric.TEMPORARY.title == "temporary allocations"
