"""Which signals end a trace, and which end it at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.commands import run
from tests.harness import PATIENCE_S
from tracelloc.command import lifecycle
from tracelloc.command.lifecycle import Signals


class AtOnceError(Exception):
    """Stands for the end of the program."""


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    def end_at_once() -> None:
        raise AtOnceError

    monkeypatch.setattr(lifecycle, "end_at_once", end_at_once)
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield Signals(lambda _number: True, stops=True)
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [100.0]
    monkeypatch.setattr(lifecycle.time, "monotonic", lambda: now_s[0])
    return now_s


def test_two_at_a_time_are_one(signals: Signals, now_s: list[float]) -> None:
    signal.raise_signal(signal.SIGINT)
    assert signals.is_ending
    now_s[0] += 0.3
    signal.raise_signal(signal.SIGINT)
    now_s[0] += 0.3
    with pytest.raises(AtOnceError):
        signal.raise_signal(signal.SIGINT)


def test_two_of_different_kinds_are_two(signals: Signals, now_s: list[float]) -> None:
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(AtOnceError):
        signal.raise_signal(signal.SIGTERM)


NOHUP = """
import signal
from tracelloc.command.lifecycle import Signals
Signals(lambda _number: True, stops=True)
print(*(n.name for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(n) is signal.SIG_IGN))
"""


def test_what_is_ignored_stays_ignored() -> None:
    command = "nohup", sys.executable, "-c", NOHUP
    assert run(*command, stdin=subprocess.DEVNULL, timeout=PATIENCE_S) == "SIGHUP\n"
