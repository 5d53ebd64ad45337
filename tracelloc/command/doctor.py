"""``tracelloc doctor``: which ways work here, what will be missing, and fixes.

Nothing is attached to the target; its code, symbols and unwind tables are only read.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracelloc.command.doctortarget import Finding, FindingState, target_findings
from tracelloc.command.ways import LIBRARY, PROBES, START, TRACING, find_ways, has_library
from tracelloc.record.kernel import capabilities as system
from tracelloc.text import printable

_GOOD, _MISSING, _FAILS, _YES, _NO = FindingState


def diagnose(pid: int | None) -> list[Finding]:
    """Checks the machine and, if ``pid`` is given, a process."""
    findings = [*find_ways(), *_rights(Path("/proc/self/status").read_text())]
    if pid is not None:
        findings += target_findings(pid)
    return findings


def diagnosis_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yields the ways that tracelloc will take, and a line per finding with its cure below."""
    width = max(len(finding.about) for finding in findings)
    yield _choice({finding.about for finding in findings if finding.state is _YES})
    for finding in findings:
        about = f"{finding.state.value:<9}{finding.about:<{width}}"
        yield f"{about}  {printable(finding.text)}"
        if finding.cure:
            yield f"{'':<{len(about)}}  to fix it: {printable(finding.cure)}"


def _choice(working: set[str]) -> str:
    attach = "by probes" if PROBES in working else "by the library only"
    by_library = "by the preloaded library" if has_library() else "by probes"
    parts = [
        f"tracelloc -p PID traces {attach}" if {PROBES, LIBRARY} & working else "",
        f"tracelloc -- CMD {by_library}" if START in working else "",
    ]
    return ", ".join(filter(None, parts)) or "nothing can be traced here"


def why_not_traced(findings: Sequence[Finding]) -> str:
    """Returns why tracing will not work, in a few words; empty if some way works."""
    if any(finding.state is _FAILS for finding in findings):
        return "the process can't be traced"
    works = any(f.about in TRACING and f.state is _YES for f in findings)
    return "" if works else "nothing can be traced here"


def _rights(status: str) -> Iterator[Finding]:
    """Yields findings on capabilities. ``status``: the text of /proc/self/status."""
    held = system.held_capabilities(status)
    if held.issuperset(system.NEEDED) and not held & {system.ALL, system.MAPPED_FILES}:
        yield Finding(
            _MISSING,
            "rights",
            f"without {system.MAPPED_FILES}, files that were replaced or deleted can't be read",
            f"add {system.MAPPED_FILES} to the capabilities",
        )
