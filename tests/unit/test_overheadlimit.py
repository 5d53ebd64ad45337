"""When probes have to come off, on targets that are computed."""

from __future__ import annotations

import itertools

import pytest

from tracelloc.record.kernel.overheadlimit import OverheadAccount, OverheadLimit
from tracelloc.text import NS_PER_S

LOOK_S = 0.1


def traced(
    account: OverheadAccount, factor: float, seconds: float, cores: float = 1.0
) -> tuple[float, list[bool]]:
    """(what the probes cost per own work, whether they were off) of a target.

    It uses so many processors; the probes cost ``factor`` times its own work while they are on.
    """
    probes = work = 0.0
    paused = []
    for _ in range(round(seconds / LOOK_S)):
        cpu_ns = cores * LOOK_S * NS_PER_S
        probe_ns = 0.0 if account.must_pause else cpu_ns * factor / (1 + factor)
        paused.append(account.must_pause)
        probes, work = probes + probe_ns, work + cpu_ns - probe_ns
        account.add(probe_ns, cpu_ns, LOOK_S)
    return probes / max(work, 1), paused


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("factor", [0.6, 2, 100])
@pytest.mark.parametrize("cores", [0.05, 1, 8])
def test_the_limit_is_kept_and_used(share: float, factor: float, cores: float) -> None:
    cost, paused = traced(OverheadAccount(OverheadLimit(share)), factor, 1200, cores)
    assert share / 4 < cost <= 1.05 * share
    ends = sum(later and not before for before, later in itertools.pairwise(paused))
    assert ends > 3


def test_cheap_probes_stay() -> None:
    cost, paused = traced(OverheadAccount(OverheadLimit(0.05)), 0.035, 600)
    assert not any(paused)
    assert cost == pytest.approx(0.035)


def test_a_target_that_goes_idle_is_traced_again() -> None:
    account = OverheadAccount(OverheadLimit(0.01))
    traced(account, 10, 2)
    assert account.must_pause
    _, paused = traced(account, 10, 400, cores=0.0)
    assert paused[0]
    assert not paused[-1]


def test_the_share_is_of_all_time() -> None:
    account = OverheadAccount(OverheadLimit(0.05))
    assert account.share is None
    account.add(0.5 * NS_PER_S, NS_PER_S, 1)
    account.add(0, NS_PER_S, 1)
    assert account.share == 0.25
