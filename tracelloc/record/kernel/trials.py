"""Tests on a child process what probes break on this kernel, before they reach the target.

tracelloc tests kernels instead of checking versions, since distributions backport fixes. The
results hold until the next boot and are stored until then.
"""

import json
import platform
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum
from functools import partial
from typing import Final

from tracelloc.architecture import native
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import childprogram
from tracelloc.record.kernel.attach import attach_type
from tracelloc.record.kernel.capabilities import (
    UPROBE_MULTI_KERNEL,
    UPROBE_SESSION_KERNEL,
    kernel_is_at_least,
)
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.compiler import CompiledProbes
from tracelloc.record.kernel.overhead import (
    IDLE_PROGRAM,
    ChildEndedError,
    ProbedChild,
    TrapCosts,
    measure_traps,
)
from tracelloc.record.kernel.programs import KPROBE, Programs, program_info, statistics
from tracelloc.record.process.procfs import Process, boot_id
from tracelloc.startup import STARTUP
from tracelloc.system.invoker import effective_user
from tracelloc.system.safefiles.writing import CacheDirectory

_RETURN_0: Final = bytes.fromhex("b700000000000000 9500000000000000")
_MOST_BYTES: Final = 4096


class Trial(Enum):
    """A behavior that probes may break on some kernels; each is tested by a trial."""

    # A uprobe_multi link sees all threads of its process. Not before Linux 6.6.35, 6.9.5, 6.10
    # (kernel commit 46ba0e49b642).
    THREADS = "threads"
    # A link still sees events after the main thread has ended. Not before Linux 6.12.
    MAIN_THREAD = "main_thread"
    # A function with a return probe returns under a filter that kills at unknown system calls, as
    # many programs' filters do. Not with 6.11, 6.12.0 to 6.12.13, 6.13.0 to 6.13.2: returns go
    # through a system call there, 335 on x86-64 (cf6cb56ef244).
    SECCOMP = "seccomp"
    # Probed functions return with a shadow stack. Not with 6.6 to 6.10 (488af8ea7131).
    SHADOW_STACK = "shadow_stack"


def trial_passes(trial: Trial) -> bool:
    """Returns whether a trial succeeds, or can't be run; cached until the next boot."""
    files = CacheDirectory(effective_user(), "", ".json", most_files=8)
    known = _recalled(files)
    if trial.value not in known:
        try:
            STARTUP.note("trying probes on a child process, once per boot")
            known[trial.value] = _try(trial)
        except (TracellocError, ChildEndedError, OSError):
            return True
        # After a failure, trials run again next time.
        content = {"boot": boot_id(), "results": known}
        files.remember("trials", [json.dumps(content).encode()])
    return known[trial.value]


def _try(trial: Trial) -> bool:
    with _idle_programs() as programs:
        return _TRIALS[trial](programs)


def _idle_programs() -> closing[Programs]:
    return closing(Programs(CompiledProbes((), {IDLE_PROGRAM: _RETURN_0})))


def trap_costs(method: Method) -> TrapCosts:
    """Measures trap costs on this machine, for any target. Raises like ``measure_traps``."""
    method = Method.MULTI if method.has_links else method
    with _idle_programs() as programs:
        fd = programs.load(IDLE_PROGRAM, KPROBE, attach_type(method, IDLE_PROGRAM))
        return measure_traps(method, lambda _: fd)


def _threads_are_seen(programs: Programs, *, leave: bool = False) -> bool:
    fd = programs.load(IDLE_PROGRAM, KPROBE, attach_type(Method.MULTI, IDLE_PROGRAM))
    with (
        ProbedChild() as child,
        statistics(),
        closing(child.probed(Method.MULTI, lambda _: fd, child.point())) as attachment,
    ):
        if leave:
            child.ask("leave")
            attachment.move(child.process.thread_id)
        before = program_info(fd).run_cnt
        child.ask("thread")
        return program_info(fd).run_cnt - before >= childprogram.CALLS


def killing_filter(numbers: range) -> bytes:
    """Returns a seccomp filter (struct sock_filter) that kills at some system calls."""
    code = (
        *(0x20, 0, 0, 0),  # the system call's number
        *(0x35, 0, 2, numbers.start),  # below: allow
        *(0x25, 1, 0, numbers.stop - 1),  # above: allow
        *(0x06, 0, 0, 0x80000000),  # kill the process
        *(0x06, 0, 0, 0x7FFF0000),  # allow
    )
    return struct.pack(f"={'HBBI' * 5}", *code)


def _survives(what: str, make_code: Callable[[], bytes]) -> Callable[[Programs], bool]:
    def tried(programs: Programs) -> bool:
        code = make_code()
        if not code:
            return True
        fd = programs.load(IDLE_PROGRAM, KPROBE)
        with ProbedChild() as child:
            attached = closing(child.probed(Method.PERF, lambda _: fd, child.point(returns=True)))
            with attached, suppress(ChildEndedError):
                child.ask(what, code)
                return True
        return False

    return tried


_TRIALS: Final[dict[Trial, Callable[[Programs], bool]]] = {
    Trial.THREADS: _threads_are_seen,
    Trial.MAIN_THREAD: partial(_threads_are_seen, leave=True),
    Trial.SECCOMP: _survives("seccomp", lambda: killing_filter(native().system_calls.unassigned)),
    Trial.SHADOW_STACK: _survives("shadow_stack", lambda: native().shadow_stack_code),
}


def _recalled(files: CacheDirectory) -> dict[str, bool]:
    """Returns stored results by the trial's name; empty if there are none."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(files.recall("trials", _MOST_BYTES))
        if content["boot"] == boot_id():
            return {str(name): bool(result) for name, result in content["results"].items()}
    return {}


def usable_methods() -> list[Method]:
    """Returns the attach methods that see all events on this kernel, best first."""
    release = platform.release()
    if not kernel_is_at_least(release, UPROBE_MULTI_KERNEL) or not trial_passes(Trial.THREADS):
        return [Method.PERF]
    has_sessions = kernel_is_at_least(release, UPROBE_SESSION_KERNEL)
    return [*([Method.SESSION] if has_sessions else []), Method.MULTI, Method.PERF]


def is_missed_by_links(pid: int) -> bool:
    """Returns whether links miss a process on this kernel, as its main thread has ended."""
    return Process(pid).thread_id != pid and not trial_passes(Trial.MAIN_THREAD)
