"""A speeded-up week of a service: its file stays small, and its leak is found in it."""

from pathlib import Path

import pytest

from tests.corpus.service import LEAKING, START_S, Service, service_namers
from tracelloc.model.verdicts import Verdict
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers, frame_name
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.text import NS_PER_S

pytestmark = pytest.mark.long

DAY_S = 86_400
LAST_S = 1000  # With a moment each second, as a recorder writes them


def leaks_in(recording: RecordedTrace, index: int) -> set[str]:
    """The innermost functions of the stacks that leak, as of a moment."""
    one = recording.trace_at(index).root
    namer = Namers(recording, Filters()).namer_of(one.target)
    suspects = () if one.findings is None else one.findings.suspects
    return {
        frame_name(namer.stack(one, suspect.stack).frames[0])
        for suspect in suspects
        if suspect.judgement.verdict is Verdict.LEAKING
    }


def test_a_week_is_small_and_has_the_leak(tmp_path: Path) -> None:
    """With few call stacks, in steps of a quarter of an hour but for the end."""
    path, most_bytes = tmp_path / "week.rec", 1 << 20
    service = Service(sites=20, per_s=0.3, step_s=900.0, leak_every=20)
    writer = RecordingWriter(path, max_bytes=most_bytes, max_s=7 * DAY_S)
    end_ns = service.now_ns + 7 * DAY_S * NS_PER_S
    while service.now_ns < end_ns:
        if end_ns - service.now_ns <= LAST_S * NS_PER_S:
            service.step_s = 1.0
        service.advance()
        writer.add(service.trace(), service_namers())
    writer.close()
    assert path.stat().st_size <= most_bytes
    recording = RecordedTrace(path)
    last = recording.moments[-1]
    assert last.time_s == START_S + 7 * DAY_S
    assert last.time_s - recording.moments[0].time_s > 6 * DAY_S
    # The end has a moment each second.
    assert recording.moments[-60].time_s == last.time_s - 59
    for index in (recording.find(START_S + 3 * DAY_S), len(recording.moments) - 1):
        assert leaks_in(recording, index) == {LEAKING}
