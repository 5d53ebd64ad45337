"""Registers of threads: stopped ones by ptrace(2), waiting ones as the kernel keeps them."""

import os
import struct
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.commands import background
from tests.unit.conftest import OnMachine
from tracelloc.architecture import ARCHITECTURES, Architecture, native
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.command import options
from tracelloc.command.commandline import parse_command_line
from tracelloc.errors import MalformedError, UnsupportedError
from tracelloc.files.elf.usdt import UsdtArgument
from tracelloc.record.kernel.registers import RegisterReader, row_dtype, threads_in
from tracelloc.record.process import procfs, ptrace
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.ptrace import NO_CALL, Registers
from tracelloc.record.session import stoppedthreads
from tracelloc.record.session.stoppedthreads import ExitStops, registers_of
from tracelloc.record.sources.preloaded import sharedarea
from tracelloc.record.worker import codefilereader
from tracelloc.record.worker.questions import QUESTIONS


def test_a_search_that_outlives_the_trace_reads_no_registers() -> None:
    reader = object.__new__(RegisterReader)
    reader._lock = threading.Lock()
    reader._programs = SimpleNamespace(loaded={"read_registers": 9}, close=None)
    reader._programs.close = reader._programs.loaded.clear
    reader.close()
    with pytest.raises(OSError, match="the trace has ended"):
        reader.read(Process(os.getpid()))


ARM_POINTER = 0xFFFF_A000_0700


def arm_registers(**changed: int) -> bytes:
    """A general register set: each register has its number, but for some."""
    names = AARCH64.general.names
    return struct.pack("<34Q", *(changed.get(name, n) for n, name in enumerate(names)))


def test_registers_of_arm() -> None:
    given = arm_registers(sp=0xFFFF_F000_0000, pc=0xAAAA_0000_1234)
    found = Registers.unpack(
        AARCH64.general, given, entered_call=struct.pack("<i", 94),
        thread_pointer=struct.pack("<QQ", ARM_POINTER, 77),
    )  # fmt: skip
    assert (found["x0"], found["x30"], found["pstate"]) == (0, 30, 33)
    assert (found.stack_pointer, found.program_counter) == (0xFFFF_F000_0000, 0xAAAA_0000_1234)
    assert (found.thread_pointer, found.entered_call) == (ARM_POINTER, 94)
    assert found.pack() == given
    other = found.copy()
    other["x8"], other.program_counter, other.stack_pointer = -1, 4, 1 << 70 | 8
    assert (other["x8"], other.words[32], other["sp"]) == ((1 << 64) - 1, 4, 8)
    assert (other.thread_pointer, other.entered_call) == (ARM_POINTER, 94)
    assert found.pack() == given
    with pytest.raises(KeyError):
        other["rip"] = 1
    kept = registers_of(9, found)
    assert kept[:4] == (9, ARM_POINTER, 0xFFFF_F000_0000, 0)
    assert kept.words.tolist() == found.words
    for call in (struct.pack("<i", -1), b""):
        found = Registers.unpack(AARCH64.general, arm_registers(), entered_call=call)
        assert (found.entered_call, found.thread_pointer) == (NO_CALL, 0)


@pytest.mark.parametrize("machine", ARCHITECTURES, ids=lambda each: each.name)
def test_registers_of_programs_of_32_bits(machine: Architecture) -> None:
    found = Registers.unpack(
        machine.general, bytes(range(1, 69)), entered_call=b"\1\0\0\0", thread_pointer=b"\1" * 8
    )
    assert found.entered_call == NO_CALL
    assert (found.stack_pointer, found.program_counter, found.thread_pointer) == (0, 0, 0)
    general = machine.general
    names = {general.call_number, *general.call_arguments, general.thread_pointer} - {None}
    assert names <= set(general.names)
    assert set(machine.argument_registers) <= set(machine.usdt_registers)


def test_a_stopped_process() -> None:
    """ptrace(2) and /proc have the same values; registers can be put back."""
    with background("sleep", "60") as process:
        pid = process.pid
        found = stopped_registers(pid)
        line = (Path("/proc") / str(pid) / "syscall").read_text().split()
        assert found.entered_call == int(line[0])
        if found.entered_call != NO_CALL:  # 64-bit Arm is ready to make the call again
            assert [found[name] for name in native().general.call_arguments] == [
                int(word, 16) for word in line[1:7]
            ]
        assert (found.stack_pointer, found.program_counter) == tuple(
            int(word, 16) for word in line[-2:]
        )
        assert Process(pid).maps().find(found.thread_pointer) is not None
        ptrace.set_registers(pid, found)
        assert ptrace.registers(pid).pack() == found.pack()
        assert len(found.pack()) == 8 * len(native().general.names)
        ptrace.detach(pid)


def test_a_process_at_its_end() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pid = process.pid
        stopped_registers(pid)
        ptrace.detach(pid)
        ptrace.seize(pid, ptrace.OPTION_EXITS)
        process.stdin.close()
        assert os.waitpid(pid, ptrace.WALL)[1] >> 16 == ptrace.Event.EXIT
        found = ptrace.registers(pid)
        assert found.entered_call == native().system_call("exit_group")
        assert found[native().general.call_arguments[0]] == 0
        assert Process(pid).maps().find(found.stack_pointer) is not None
        ptrace.resume(pid)


def stopped_registers(pid: int) -> Registers:
    """Stops a process in a system call."""
    while Process(pid).state() != "S":
        os.sched_yield()
    ptrace.seize(pid, 0)
    ptrace.interrupt(pid)
    assert os.WIFSTOPPED(os.waitpid(pid, ptrace.WALL)[1])
    return ptrace.registers(pid)


def test_registers_by_machine(on_machine: OnMachine, tmp_path: Path) -> None:
    for machine, exits in ((X86_64, (60, 231)), (AARCH64, (93, 94))):
        on_machine(machine, stoppedthreads)
        stops = ExitStops()
        assert (stops._exit, stops._exit_group) == exits
    for machine, count, at in ((X86_64, 21, 19), (AARCH64, 34, 31)):
        rows = np.zeros(1, row_dtype(machine))
        assert rows.itemsize == 8 * (4 + count)
        rows["tid"], rows["thread_pointer"], rows["signal_stack"] = 7, 8, 9
        rows["registers"] = np.arange(count) + 100
        (found,) = threads_in(rows, machine)
        assert found[:4] == (7, 8, 100 + at, 9)
        assert found.words.tolist() == [100 + n for n in range(count) if n != at]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nx86_Thread_features:\tshstk \n")
    on_machine(X86_64, procfs)
    assert Process(7, tmp_path).has_shadow_stack()
    on_machine(AARCH64, procfs)
    assert not Process(7, tmp_path).has_shadow_stack()
    # An untrusted number is one of the machine's.
    place = [[8, 31, 255, 0, True, 0, 8, False], None]
    answer = [["free", 16, 0, place, 4, False]]
    on_machine(X86_64, codefilereader)
    with pytest.raises(MalformedError):
        QUESTIONS["usdt"].answer(answer, b"", ["otel_memory"])
    on_machine(AARCH64, codefilereader)
    (place,) = QUESTIONS["usdt"].answer(answer, b"", ["otel_memory"])
    assert place.arguments == (UsdtArgument(8, 31, 255, 0, True, 0, 8, is_signed=False), None)


def test_no_library_to_preload(
    on_machine: OnMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sharedarea, "LIBRARY", tmp_path / "none.so")
    on_machine(X86_64, sharedarea)
    with pytest.raises(
        UnsupportedError, match="is missing: it is built with tracelloc, for x86-64"
    ):
        sharedarea.preloaded_library()


@pytest.mark.parametrize(
    ("machine", "is_used"), [("x86_64", True), ("aarch64", True), ("riscv64", False)]
)
def test_started_programs_have_probes_where_there_is_no_library(
    monkeypatch: pytest.MonkeyPatch, machine: str, is_used: bool
) -> None:
    monkeypatch.setattr(options, "machine_name", lambda: machine)
    line = parse_command_line(["--", "true"], terminal=False)
    assert options.completed(line).trace.use_library == is_used
    line = parse_command_line(["--preload=on", "--", "true"], terminal=False)
    assert options.completed(line).trace.use_library
