"""Real programs, recorded under the probes: each verdict on its own clock, forty times faster."""

from pathlib import Path

import pytest

from tests.corpus.recorded import FOLDER, Recording
from tracelloc.model.verdicts import Verdict

pytestmark = pytest.mark.long

END_S = 600.0
RECORDINGS = sorted(FOLDER.glob("*.npz"))
# Where a leak is split over stacks, none of which would be noticed alone; and where both nodes of a
# pair are forgotten together.
SEVERAL = {"callers", "shared_ptr"}
LOOKS_LIKE = {
    "lru": ("cache_page", Verdict.CACHE),
    "slow_lru": ("cache_page", Verdict.CACHE),
    "startup": ("load_index", Verdict.START_UP),
    "arena": ("arena_block", Verdict.CACHE),
    "sawtooth": ("arena_block", Verdict.CACHE),
    "log": ("append_log", Verdict.GROWING),
    "threads": ("cache_in_thread", Verdict.CACHE),
}


def test_there_are_recordings() -> None:
    assert len(RECORDINGS) >= 21
    assert sum(path.stat().st_size for path in RECORDINGS) < 1 << 20


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded(path: Path) -> None:
    """What leaks is called so with the rate of the program's own books; nothing else ever is."""
    recording = Recording.load(path)
    course = recording.replay(END_S)
    suspects = course.findings.suspects
    for name, (_, size_bytes, onset_s) in recording.leaks.items():
        found = [s for s in suspects if recording.leaking(s.stack) == name]
        assert len(found) == 1, suspects
        judgement = found[0].judgement
        assert judgement.verdict is Verdict.LEAKING
        rate = size_bytes / (END_S - onset_s) * 60
        assert judgement.rate_bytes_per_min == pytest.approx(rate, rel=0.1)
        assert {recording.leaking(member.stack) for member in found[0].members} == {name}
        assert (len(found[0].members) > 1) == (path.stem in SEVERAL)
    for stack in range(1, len(recording.stacks) + 1):
        if recording.leaking(stack) is None:
            assert course.first(stack, {Verdict.LEAKING}) is None, recording.stacks[stack - 1]


@pytest.mark.parametrize(("name", "function", "verdict"), [(n, *w) for n, w in LOOKS_LIKE.items()])
def test_what_it_is(name: str, function: str, verdict: Verdict) -> None:
    recording = Recording.load(FOLDER / f"{name}.npz")
    findings = recording.replay(END_S).findings
    of_function = [n for n, stack in enumerate(recording.stacks, 1) if stack.startswith(function)]
    assert of_function
    assert verdict in {findings.verdict(stack) for stack in of_function}
