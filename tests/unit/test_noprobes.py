"""Breakpoints in place of probes: a thread that has reached one runs on as if there were none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tracelloc.record.sources.preloaded import noprobes
from tracelloc.record.sources.preloaded.noprobes import Breakpoints, NoProbes

ADDRESS = 0x7F00_0000_1000


@pytest.mark.parametrize(("reached", "answer", "then"), [
    (ADDRESS + 1, False, ADDRESS), (ADDRESS + 9, None, ADDRESS + 9),
])  # fmt: skip
def test_a_breakpoint_that_is_removed_meanwhile(
    reached: int, answer: bool | None, then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trap is not the program's own, which would end the program."""
    registers = SimpleNamespace(program_counter=reached)
    monkeypatch.setattr(noprobes.ptrace, "registers", lambda _: registers)
    monkeypatch.setattr(noprobes.ptrace, "set_registers", lambda *_: None)
    closed = Breakpoints.__new__(Breakpoints)
    closed._covered, closed.inserted = {}, {ADDRESS}
    capture = NoProbes.__new__(NoProbes)
    capture._breakpoints = [closed]
    assert capture.take_trap(1) is answer
    assert registers.program_counter == then
