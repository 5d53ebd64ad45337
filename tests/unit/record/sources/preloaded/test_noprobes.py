"""Breakpoints in place of probes: a thread that has reached one runs on as if there were none."""

from types import SimpleNamespace

import pytest

from tracelloc.architecture import Architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.record.sources.preloaded import noprobes
from tracelloc.record.sources.preloaded.noprobes import Breakpoints, NoProbes

ADDRESS = 0x7F00_0000_1000


@pytest.mark.parametrize(
    ("machine", "reached", "answer", "then"),
    [
        (X86_64, ADDRESS + 1, False, ADDRESS), (X86_64, ADDRESS + 9, None, ADDRESS + 9),
        (AARCH64, ADDRESS, False, ADDRESS),
    ],
    ids=["x86-64", "elsewhere", "arm"],
)  # fmt: skip
def test_a_breakpoint_that_is_removed_meanwhile(
    machine: Architecture, reached: int, answer: bool | None, then: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its trap is not the program's own, which would end the program."""
    changes = []
    registers = SimpleNamespace(program_counter=reached)
    monkeypatch.setattr(noprobes, "native", lambda: machine)
    monkeypatch.setattr(noprobes.ptrace, "registers", lambda _: registers)
    monkeypatch.setattr(noprobes.ptrace, "set_registers", lambda *_: changes.append(1))
    closed = Breakpoints.__new__(Breakpoints)
    closed._covered, closed.inserted = {}, {ADDRESS}
    capture = NoProbes.__new__(NoProbes)
    capture._breakpoints = {1: [closed]}
    assert capture.take_trap(1) is answer
    assert registers.program_counter == then
    assert len(changes) == (reached != then)
