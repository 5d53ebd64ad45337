"""How long the pump waits for events."""

import pytest

from tests.unit.stage import FakeCapture
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.session.pace import Pace


def paces(shares: list[float], waits_ms: tuple[float, float]) -> list[float]:
    """Milliseconds from each look to the next, where rings are as full as that at each."""
    capture = FakeCapture(CaptureConfig())
    capture.waits_ms = waits_ms  # type: ignore[assignment]
    pace, now_s = Pace(capture), 1.0  # type: ignore[arg-type]
    pace.record_reading(now_s, 0.5)
    pace._interval_s = waits_ms[1] / 1000
    seen = []
    for share in shares:
        now_s += pace._interval_s
        pace.record_reading(now_s, share)
        seen.append(pace._interval_s * 1000)
    capture.close()
    return seen


def test_waits_follow_how_full_rings_are() -> None:
    assert paces([1.0, 1.0, 0.5, 0.25], (0, 10)) == pytest.approx([5, 2.5, 2.5, 3.125])
    seen = paces([1.0, *[0.0] * 20], (0, 10))
    assert seen[1] == pytest.approx(1.25 * seen[0])
    assert seen[-1] == pytest.approx(10)
    assert paces([1.0] * 8, (5, 100))[-1] == pytest.approx(5)
    assert paces([0.0] * 8, (5, 100))[-1] == pytest.approx(100)
