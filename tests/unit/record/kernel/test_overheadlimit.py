"""When probes have cost too much, on targets that are computed."""

import pytest

from tracelloc.record.kernel.overhead import OverheadAccount
from tracelloc.text import NS_PER_S

LOOK_S = 0.1


def seconds_until_exceeded(
    share: float, factor: float, cores: float = 1.0, most_s: float = 600
) -> float | None:
    """The target uses so many processors; the probes cost ``factor`` times its own work."""
    account = OverheadAccount(share)
    for look in range(round(most_s / LOOK_S)):
        cpu_ns = cores * LOOK_S * NS_PER_S
        account.add(cpu_ns * factor / (1 + factor), cpu_ns, LOOK_S)
        if account.is_exceeded:
            return (look + 1) * LOOK_S
    return None


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("factor", [2, 100])
@pytest.mark.parametrize("cores", [0.05, 1, 8])
def test_a_minutes_allowance_is_granted(share: float, factor: float, cores: float) -> None:
    """Its own work counts, not time: what probes take away is no work."""
    took_s = seconds_until_exceeded(share, factor, cores)
    # Estimated costs count 1.25 times.
    probes = min(1.0, 1.25 * factor / (1 + factor))
    work = 1 - probes
    debt_per_s = probes - share * work
    assert took_s == pytest.approx(share * work * 60 / debt_per_s, abs=1.6)


def test_bursts_and_the_share_of_all_time() -> None:
    account = OverheadAccount(0.05)
    for _ in range(10):
        account.add(0, NS_PER_S, 1)
        account.add(0.5 * NS_PER_S, 2 * NS_PER_S, 1)
        for _ in range(20):
            account.add(0, NS_PER_S, 1)
    assert not account.is_exceeded
    assert seconds_until_exceeded(0.05, 0.035) is None
    account = OverheadAccount(0.05)
    assert account.share is None
    account.add(0.5 * NS_PER_S, NS_PER_S, 1)
    account.add(0, NS_PER_S, 1)
    assert account.share == 0.25
