"""Memory accounts of a process whose threads end meanwhile (by fault injection)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tracelloc.errors import TargetError
from tracelloc.record.session import memoryaccounts
from tracelloc.record.session.memoryaccounts import MemoryAccounts


class Process:
    """Reads through its first thread; the others follow as the accounts fail."""

    pid = 70

    def __init__(self, threads: list[int]) -> None:
        self.threads = threads

    @property
    def thread_id(self) -> int:
        return self.threads[0] if self.threads else self.pid

    def exists(self) -> bool:
        return bool(self.threads)

    def rss_bytes(self) -> int:
        return 4096


def account(process: Process, monkeypatch: pytest.MonkeyPatch, *, ends: int) -> list[Any]:
    """Accounts for memory once; the thread that reads ends the first ``ends`` times."""
    noted: list[Any] = []

    def measure(process: Process, _stacks_at: object) -> str:
        if len(tries) < ends:
            tries.append(process.threads.pop(0))
            raise TargetError(f"there is no process {tries[-1]}")
        return f"read by {process.thread_id}"

    tries: list[int] = []
    monkeypatch.setattr(memoryaccounts, "measure_memory", measure)
    monkeypatch.setattr(memoryaccounts, "replace", lambda usage, **_: usage)
    monkeypatch.setattr(memoryaccounts, "_of_most", lambda *_: ())
    one = SimpleNamespace(
        process=process, image=0, heap=None, accounted_ns=0, usage=None, note_usage=noted.append
    )
    accounts = MemoryAccounts(threading.RLock(), SimpleNamespace(), None)  # type: ignore[arg-type]
    accounts.update(one)  # type: ignore[arg-type]
    return noted


def test_another_thread_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert account(Process([71, 72]), monkeypatch, ends=1) == ["read by 72"]


@pytest.mark.parametrize(("threads", "ends"), [([71], 1), ([71, 72, 73], 2)])
def test_otherwise_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], ends: int
) -> None:
    with pytest.raises(TargetError, match=f"no process {70 + ends}"):
        account(Process(threads), monkeypatch, ends=ends)
