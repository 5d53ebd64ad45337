"""``tracelloc doctor``: whether tracing will work here, what will be missing, and fixes.

Nothing is attached to the target; its code, symbols and unwind tables are only read.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tracelloc.architecture import machine_name
from tracelloc.command.doctortarget import target_findings
from tracelloc.command.finding import Finding, FindingState
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import capabilities as system
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.child import ChildEndedError
from tracelloc.record.kernel.trials import trap_costs, usable_methods
from tracelloc.record.process.namespaces import pid_namespace
from tracelloc.record.process.procfs import Process
from tracelloc.text import plural, printable

_GOOD, _MISSING, _FAILS = FindingState
_LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
_YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")


def diagnose(pid: int | None) -> list[Finding]:
    """Checks the machine and, if ``pid`` is given, a process."""
    findings = list(_machine_findings())
    if pid is not None:
        findings += target_findings(pid)
    return findings


def diagnosis_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields a line per finding, its cure below it, and a conclusion."""
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        about = f"{finding.state.value:<9}{finding.about:<{width}}"
        yield f"{about}  {printable(finding.text)}"
        if finding.cure:
            yield f"{'':<{len(about)}}  to fix it: {printable(finding.cure)}"
    count = failures(findings)
    problems = plural(count, "problem")
    yield f"tracing will not work: fix {problems} first" if count else "tracing will work"


def failures(findings: Sequence[Finding]) -> int:
    """Returns the number of reasons why tracing will not work."""
    return sum(finding.state is _FAILS for finding in findings)


def _machine_findings() -> Iterator[Finding]:
    machine, release = machine_name(), platform.release()
    yield _checked("machine", machine, lambda: system.check_machine(machine))
    yield _checked("kernel", f"Linux {release}", lambda: system.check_kernel(release))
    yield from _rights(Path("/proc/self/status").read_text())
    yield from _confinement()
    may_use_bpf = _checked("BPF", "bpf(2) may be used", system.check_bpf)
    yield may_use_bpf
    if may_use_bpf.state is _FAILS:
        return
    compiles = _checked("bcc", "the probes compile", lambda: CaptureConfig().compile())
    yield compiles
    if compiles.state is not _FAILS:
        yield _attaching()


def _checked(about: str, good: str, check: Callable[[], object]) -> Finding:
    """Returns the finding of a check that raises if something is wrong."""
    try:
        check()
    except TracellocError as error:
        return Finding(_FAILS, about, error.message, error.hint)
    except OSError as error:
        return Finding(_FAILS, about, error.strerror or str(error))
    return Finding(_GOOD, about, good)


def _rights(status: str) -> Iterator[Finding]:
    """``status``: the text of /proc/self/status."""
    held = system.held_capabilities(status)
    missing = [name for name in system.NEEDED if name not in held]
    if system.ALL in held:
        yield Finding(_GOOD, "rights", "all capabilities, as root has them")
        return
    if missing:
        yield Finding(_FAILS, "rights", f"{', '.join(missing)} missing", "run it with sudo")
    else:
        yield Finding(_GOOD, "rights", ", ".join(system.NEEDED))
    if system.MAPPED_FILES not in held:
        yield Finding(
            _MISSING,
            "rights",
            f"without {system.MAPPED_FILES}, files that were replaced or deleted can't be read",
            f"add {system.MAPPED_FILES} to the capabilities",
        )


def _confinement() -> Iterator[Finding]:
    """Yields restrictions of root's rights on this machine."""
    lockdown = re.search(r"\[(\w+)\]", _text(_LOCKDOWN))
    if lockdown is not None and lockdown[1] == "confidentiality":
        cure = "boot with lockdown=integrity"
        yield Finding(_FAILS, "lockdown", "this kernel forbids BPF programs to read memory", cure)
    elif lockdown is not None:
        yield Finding(_GOOD, "lockdown", lockdown[1])
    if Process(os.getpid()).has_seccomp_filter():
        text = "tracelloc runs under a system call filter, as in a container"
        yield Finding(_MISSING, "seccomp", text, "docker run --privileged")
    if _text(_YAMA).strip() == "3":
        yield Finding(
            _MISSING,
            "ptrace",
            "ptrace(2) is disabled for all processes: -- CMD and --follow will not work",
            "remove kernel.yama.ptrace_scope=3 from sysctl.d and reboot",
        )
    if pid_namespace() is None:
        yield Finding(_GOOD, "namespaces", "all processes of the machine are visible")
    else:
        text = "only processes of this container are visible"
        yield Finding(_GOOD, "namespaces", text, "docker run --pid=host shows all")


def _attaching() -> Finding:
    """Returns how probes are attached, and the cost of one malloc and free."""
    try:
        method = usable_methods()[0]
        costs = trap_costs(method)
    except (TracellocError, ChildEndedError, OSError) as error:
        return Finding(_FAILS, "probes", f"a child process can't be probed: {error}")
    pair_ns = 2 * costs.cheap_ns + costs.return_ns
    return Finding(
        _GOOD,
        "probes",
        f"{method.title}: a malloc and its free cost {pair_ns / 1000:.1f} µs, unwinding not "
        f"included; a slow probe {costs.stepped_ns / 1000:.1f} µs more",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
