"""Metrics and figures: each record fits what it stands for."""

from dataclasses import fields, replace

from tests.unit.leaks import watched
from tracelloc.show.presentation.profile import (
    FIGURES,
    GROWTH_PER_MIN,
    LIVE_COUNT,
    METRICS,
    PEAK_BYTES,
    PEAK_COUNT,
    FigureUnit,
    Metric,
)
from tracelloc.snapshots.snapshot import StackStat

SNAPSHOT = watched(100.0).snapshot()


def test_records_and_columns() -> None:
    attributes = [field.name for field in fields(StackStat) if field.name != "index"]
    assert [figure.attribute for figure in FIGURES] == attributes
    for names in ([f.name for f in FIGURES], [f.sample_type for f in FIGURES if f.sample_type]):
        assert len(set(names)) == len(names)
    assert {metric.figure for metric in Metric} <= set(FIGURES)
    assert list(METRICS) == ["bytes", "blocks", "allocated", "growth", "peak", "temporary"]
    # Only figures ``of_freed`` may be there when nothing is outstanding.
    gone = [stat for stat in SNAPSHOT.top_stacks(freed=True) if not stat.live_count]
    assert not any(f.value_of(stat) for stat in gone for f in FIGURES if not f.of_freed)
    assert FigureUnit.BLOCKS.format(1_234_567) == "1,234,567"
    assert FigureUnit.BYTES.format(3 << 20) == FigureUnit.RATE.format(3 << 20) == "3.00 MiB"
    headings = [metric.heading for metric in Metric]
    assert headings == ["live", "blocks", "allocated", "growth/min", "peak", "temporary"]
    assert Metric.BYTES.title == "live bytes"
    assert Metric.TEMPORARY.title == "temporary allocations"
    stats = SNAPSHOT.top_stacks(freed=True)
    for figure in FIGURES:
        column = SNAPSHOT.column(figure.attribute)
        assert list(map(figure.value_of, stats)) == [int(column[stat.index]) for stat in stats]
        assert len(column) == len(SNAPSHOT.totals)
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
