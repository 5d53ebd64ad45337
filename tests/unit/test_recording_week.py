"""A speeded-up week of a service: its file stays small, and its leak is found in it."""

from pathlib import Path

import pytest

from tests.bench.recordings import DAY_S, leaks_in, write_week
from tests.corpus.service import LEAKING, START_S, Service
from tracelloc.show.recording.reader import RecordedTrace

pytestmark = pytest.mark.long


def test_a_week_is_small_and_has_the_leak(tmp_path: Path) -> None:
    """With fewer call stacks, in longer steps; ``tests.bench.recordings`` has it whole."""
    path, most_bytes = tmp_path / "week.rec", 1 << 20
    service = Service(sites=20, per_s=0.3, step_s=900.0, leak_every=20)
    write_week(path, service, most_bytes, last_s=1000.0, last_day_step_s=900.0)
    assert path.stat().st_size <= most_bytes
    recording = RecordedTrace(path)
    last = recording.moments[-1]
    assert last.time_s == START_S + 7 * DAY_S
    assert last.time_s - recording.moments[0].time_s > 6 * DAY_S
    # The end has a moment each second.
    assert recording.moments[-60].time_s == last.time_s - 59
    for index in (recording.find(START_S + 3 * DAY_S), len(recording.moments) - 1):
        assert leaks_in(recording, index) == {LEAKING}
