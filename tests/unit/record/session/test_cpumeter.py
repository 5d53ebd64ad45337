"""The cost of tracing in units that can be weighed, steady over some seconds."""

from dataclasses import replace

import pytest

from tests.unit.leaks import watched
from tracelloc.model.process import Overhead
from tracelloc.record.session.eventcosts import CpuMeter
from tracelloc.show.presentation.alerts import alert_of, overhead_line, tracing_cost

SECOND = 1_000_000_000


def test_cost_in_cores_and_words() -> None:
    meter = CpuMeter()
    assert meter.cores is None
    meter.add_sample(0, 0)
    assert meter.cores is None
    assert not meter.is_due(SECOND - 1)
    assert meter.is_due(SECOND)
    for second in range(1, 40):
        meter.add_sample(
            second * SECOND, second * SECOND // 4 + (SECOND // 10 if second % 2 else 0)
        )
        assert meter.cores == pytest.approx(0.25, abs=0.11)
    meter.add_sample(40 * SECOND, None)
    assert meter.cores == pytest.approx(0.25, abs=0.02)
    idle = replace(watched(100.0).snapshot(), cpu_cores=0.002, overhead=Overhead(90.0, 0.8, ()))
    assert tracing_cost(idle).short == "tracer 0.2 % CPU, target slowed ≥ 5.0×"
    assert overhead_line(idle).endswith(
        "tracing takes about 0.2 % of one core; the program needs ≥ 5.0× the CPU time"
    )
    assert tracing_cost(replace(idle, cpu_cores=None)) is None
    mostly = tracing_cost(replace(idle, overhead=Overhead(90.0, 1.0, ())))
    assert mostly.short.endswith("target slowed ≥ 10×")
    busy = replace(idle, cpu_cores=1.5, overhead=Overhead(9e4, 0.05, ()))
    assert "tracer 7.5 % CPU, target slowed 1.05×" in str(tracing_cost(busy).short)  # type: ignore[union-attr]
    # From twice the CPU time on, if it is a notable part of a processor.
    busy = replace(watched(100.0).snapshot(), cpu_cores=0.9, overhead=Overhead(9e4, 0.6, ()))
    alert = alert_of(busy)
    assert alert.short == "target slowed ≥ 2.5×"
    assert alert.clause == (
        "while traced, the program needs ≥ 2.5× the CPU time (tracelloc help cost)"
    )
    assert alert.sentence.endswith(": tracelloc help cost says what makes it less")
    assert overhead_line(busy).endswith("× the CPU time (less: tracelloc help cost)")
    for harmless in (Overhead(9e4, 0.49, ()), Overhead(9e4, None, ())):
        assert alert_of(replace(busy, overhead=harmless)) is None
    assert alert_of(replace(busy, cpu_cores=0.3)) is None
