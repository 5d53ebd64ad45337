"""Whether a process would survive its probes, on kernels where some do not."""

from __future__ import annotations

from tracelloc.errors import TargetError
from tracelloc.record.kernel.trials import Trial, passes
from tracelloc.record.process.procfs import Process


def check_survival(process: Process) -> None:
    """Raises TargetError if return probes would end this process on this kernel."""
    if process.has_seccomp_filter() and not passes(Trial.SECCOMP):
        _refuse(process, "it runs under a seccomp filter", "6.12.14, 6.13.3 and 6.14")
    if process.has_shadow_stack() and not passes(Trial.SHADOW_STACK):
        _refuse(process, "it has a shadow stack", "6.11")


def _refuse(process: Process, why: str, mended: str) -> None:
    raise TargetError(
        f"tracing process {process.pid} would end it on this kernel: {why}",
        hint=f"Linux {mended} or newer do not have that bug",
    )
