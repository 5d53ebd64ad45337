"""The findings of ``tracelloc doctor``: which ways of tracing work, and cures for the others."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import PrivilegeError, TargetError, TracellocError, UnsupportedError
from tracelloc.heap.usable import main_library
from tracelloc.model.codefiles import base_name
from tracelloc.record.kernel import capabilities as system
from tracelloc.record.kernel.capabilities import why_no_probes
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.kernel.overhead import ChildEndedError
from tracelloc.record.kernel.trials import trap_costs, usable_methods
from tracelloc.record.mallocs import discovery
from tracelloc.record.probe_points.placement import ProbePlan, plan_probes
from tracelloc.record.process import ptrace
from tracelloc.record.process.identity import open_target, pid_namespace
from tracelloc.record.process.procfs import VDSO, Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.known import runtimes_of
from tracelloc.record.session.probeset import check_survival, find_allocators
from tracelloc.record.sources.injected.functions import check
from tracelloc.record.sources.preloaded import sharedarea
from tracelloc.record.sources.preloaded.preloadedsource import may_vouch
from tracelloc.record.symbolization.inventory import ModuleReport, take_inventory
from tracelloc.show.presentation.facts import unseen_lines
from tracelloc.text import plural, printable


class FindingState(Enum):
    """State of a finding; the value is shown to users."""

    GOOD = "ok"
    MISSING = "missing"  # Tracing works, but something will be missing
    FAILS = "fails"  # The process can't be traced
    YES = "yes"  # A way works
    NO = "no"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line and its cure. All text may contain names from the target."""

    state: FindingState
    about: str  # Subject of the finding
    text: str
    cure: str = ""  # One command or sentence; empty if nothing needs to be done


_GOOD, _MISSING, _FAILS, _YES, _NO = FindingState
_MOST_NAMED: Final = 8  # Most names listed one by one


def target_findings(pid: int) -> Iterator[Finding]:
    """Yields findings on a process and the files it has mapped. Attaches nothing."""
    try:
        process = open_target(pid)
        space = AddressSpace(process)
    except TracellocError as error:
        yield Finding(_FAILS, "process", error.message, error.hint)
        return
    try:
        yield Finding(_GOOD, "process", f"{pid} ({process.command()})")
        modules = find_allocators(space, discovery.EVERYTHING)
        check_survival(process)
        yield from _probes(process, plan_probes(discovery.discover(modules)))
        try:
            check(space, discovery.allocators_in(space.mapped_modules, discovery.EVERYTHING))
        except TargetError as error:
            yield Finding(_MISSING, "library", f"it can't be injected: {error.message}")
        if tracer := process.tracer_id():
            what = f"process {tracer} traces it (a debugger, strace?): --follow will not work"
            yield Finding(_MISSING, "ptrace", what, "end that program")
        yield from _unwinding(space.modules)
        for runtime in runtimes_of(space.modules):
            yield Finding(_MISSING, "runtime", runtime.heap, runtime.advice)
        yield from _names(take_inventory(process))
    except TracellocError as error:
        yield Finding(_FAILS, "process", error.message, error.hint)
    finally:
        space.close()


def _probes(process: Process, planned: ProbePlan) -> Iterator[Finding]:
    if (main := main_library(discovery.describe_allocators(planned.allocators))) is not None:
        beside = f", beside {', '.join(main.others)}" if main.others else ""
        yield Finding(_GOOD, "malloc", f"{main.library.value} in {main.file}{beside}")
    points = planned.points
    files = plural(len({point.open_path for point in points}), "file")
    yield Finding(_GOOD, "probes", f"{plural(len(points), 'probe')} in {files}")
    if slow := sorted({p.label for p in points if p.is_single_stepped and not p.is_exit}):
        yield Finding(_MISSING, "probes", f"slow ones: {', '.join(slow[:_MOST_NAMED])}")
    for line in unseen_lines(discovery.describe_allocators(planned.allocators)):
        yield Finding(_MISSING, "probes", f"not probed: {line}")
    if others := _others_breakpoints(process, planned):
        what = f"another tool has probes or breakpoints there: {', '.join(others[:_MOST_NAMED])}"
        cure = "bpftool link; end that tool to have exact costs"
        yield Finding(_MISSING, "others", what, cure)


def _others_breakpoints(process: Process, planned: ProbePlan) -> list[str]:
    """Returns places where memory has a breakpoint that the file does not have."""
    found = set()
    mappings = [mapping for mapping in process.maps().mappings if mapping.executable]
    modules = {a.module.open_path: a.module for a in planned.allocators}
    for point in planned.points:
        module = modules.get(point.open_path)
        if module is None or module.elf.read(point.offset, 1) == _BREAKPOINT:
            continue
        for mapping in (m for m in mappings if m.file_id == module.file_id):
            address = mapping.start + point.offset - mapping.offset
            is_there = mapping.start <= address < mapping.end
            if is_there and process.read_memory(address, 1) == _BREAKPOINT:
                found.add(point.label)
    return sorted(found)


_BREAKPOINT: Final = b"\xcc"  # int3, which uprobes and debuggers put in place of an instruction


def _unwinding(modules: Sequence[discovery.Module]) -> Iterator[Finding]:
    lacking = [base_name(m.path) for m in modules if m.path != VDSO and not m.elf.unwind_sections]
    if not lacking:
        text = f"all {plural(len(modules), 'file')} have call-frame information"
        yield Finding(_GOOD, "unwinding", text)
    else:
        names = ", ".join(lacking[:_MOST_NAMED])
        what = f"no call-frame information in {names}: their code is unwound by frame pointers"
        cure = "compile with -fasynchronous-unwind-tables, or with -fno-omit-frame-pointer"
        yield Finding(_MISSING, "unwinding", what, cure)


def _names(reports: Sequence[ModuleReport]) -> Iterator[Finding]:
    lacking = [report for report in reports if report.advice is not None]
    if not lacking:
        yield Finding(_GOOD, "symbols", "all files have names and source lines")
        return
    for report in lacking[:_MOST_NAMED]:
        lines = "no source lines" if report.lines is None else "lines"
        text = f"{report.module}: {report.functions:,} names, {lines}"
        yield Finding(_MISSING, "symbols", text, report.advice or "")
    if (more := len(lacking) - _MOST_NAMED) > 0:
        yield Finding(_MISSING, "symbols", f"and {more} more files", "tracelloc symbols lists all")
    for report in reports:
        for trouble in report.troubles:
            yield Finding(_MISSING, "symbols", f"{report.module}: {trouble}")


PROBES, LIBRARY, START, HEAP, MACHINE = (
    "attach by probes", "attach by the library", "start a program", "look into a heap",
    "whole machine",
)  # fmt: skip
_REFUSED: Final = "ptrace(2) is refused here"
_UNREADABLE: Final = "the memory of other processes can't be read"
_STARTED: Final = "tracelloc -- CMD, record, run --leaks, pytest --tracelloc"
TRACING: Final = PROBES, LIBRARY, START
YAMA: Final = Path("/proc/sys/kernel/yama/ptrace_scope")  # Documentation/admin-guide/LSM/Yama.rst
LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")  # kernel_lockdown(7)


def refusal_of_probes(why: TracellocError, process: Process) -> TracellocError:
    """Returns an error: a process can't be probed. Its hint names what works here instead."""
    pid, ways = process.pid, []
    if may_read := process.can_be_read():
        ways.append(f"tracelloc leaks -p {pid} and heap -p {pid}")
    if has_library():
        ways.append("tracelloc -- CMD")
        if not is_filtered():
            ways.append("LD_PRELOAD=$(tracelloc library-path) CMD, then -p")
        if may_read:
            ways.append(f"tracelloc -p {pid} --preload inject")
    works = f"what works here: {', '.join(ways)}; " if ways else ""
    is_missing = isinstance(why, UnsupportedError)
    how = why.hint if is_missing else "tracelloc doctor says how to get probes"
    return PrivilegeError(why.message, hint=f"{works}{how}")


def has_library() -> bool:
    """Returns whether there is a library for this machine that programs can preload."""
    return sharedarea.LIBRARY.exists()


def is_filtered() -> bool:
    """Returns whether a filter of system calls applies: under one, a preloaded library is idle."""
    return Process(os.getpid()).has_seccomp_filter()


def find_ways() -> list[Finding]:
    """Tries each way to trace on processes that tracelloc starts for that. Returns findings."""
    probes = try_probes()
    with _other_process(is_child=False) as other:
        may_read, may_stop = other.can_be_read(), _can_be_stopped(other)
    with _other_process(is_child=True) as child:
        may_start = _can_be_stopped(child)
    library = "" if has_library() else "there is no library for this machine"
    if not library and not may_vouch():
        library = "the filter of system calls here would end the program"
    attached = [
        "tracelloc -p PID --preload inject" * may_stop,
        "tracelloc -p PID, if it was started with the library" * (not is_filtered()),
    ]
    no_library = library or ("" if any(attached) else _REFUSED)
    no_start = "" if probes.state is _YES else library
    whose = ": processes of this user" if os.geteuid() else ""
    return [
        probes,
        _way(LIBRARY, no_library, "; ".join(filter(None, attached))),
        _way(START, no_start if may_start else _REFUSED, _STARTED),
        _way(HEAP, _UNREADABLE * (not may_read), f"tracelloc heap, leaks, holders -p PID{whose}"),
        Finding(_YES, MACHINE, f"tracelloc top: {_seen()}"),
    ]


def _way(about: str, why_not: str, text: str) -> Finding:
    cure = _ptrace_cure() if why_not in (_REFUSED, _UNREADABLE) else ""
    return Finding(_NO, about, why_not, cure) if why_not else Finding(_YES, about, text)


def try_probes() -> Finding:
    """Compiles the probes, tries some on a child process, and returns how that went."""
    try:
        if (why := why_no_probes()) is not None:
            return Finding(_NO, PROBES, why.message, why.hint)
        if "[confidentiality]" in _text(LOCKDOWN):
            what = "this kernel forbids BPF programs to read memory (lockdown)"
            return Finding(_NO, PROBES, what, "boot with lockdown=integrity")
        CaptureConfig().compile()
        method = usable_methods()[0]
        costs = trap_costs(method)
    except TracellocError as error:
        return Finding(_NO, PROBES, error.message, error.hint)
    except (ChildEndedError, OSError) as error:
        return Finding(_NO, PROBES, f"a child process can't be probed: {error}")
    pair = f"{(2 * costs.cheap_ns + costs.return_ns) / 1000:.1f} µs, unwinding not included"
    slow = f"a slow probe {costs.stepped_ns / 1000:.1f} µs more"
    what = f"tracelloc -p PID, {method.title}: a malloc and its free cost {pair}; {slow}"
    return Finding(_YES, PROBES, what)


def _ptrace_cure() -> str:
    """Returns advice that lets tracelloc inspect processes that are not its children."""
    scope = _text(YAMA).strip()
    if scope == "3":  # until the next boot
        return "remove kernel.yama.ptrace_scope=3 from sysctl.d, and reboot"
    if scope in ("1", "2") and os.geteuid():
        return "sudo sysctl kernel.yama.ptrace_scope=0, or run it as root (sudo)"
    return "docker run --cap-add SYS_PTRACE" if os.geteuid() == 0 else "run it as root (sudo)"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _seen() -> str:
    if pid_namespace() is not None:
        return "the processes of this container (docker run --pid=host shows all)"
    return "all processes" if Path("/proc/1/stat").exists() else "processes of this user (hidepid)"


def _can_be_stopped(process: Process) -> bool:
    """Attaches to a process by ptrace(2). Returns whether that is permitted."""
    try:
        ptrace.seize(process.pid, 0)
    except OSError:
        return False
    return True


@contextmanager
def _other_process(*, is_child: bool) -> Iterator[Process]:
    """Yields an idle process of this user: a child, or one that Yama takes for no descendant."""
    ending, end = os.pipe()
    told, tell = os.pipe()

    def wait_for_end() -> None:
        os.close(end)
        os.write(tell, os.getpid().to_bytes(4, "little"))
        os.read(ending, 1)

    child = _forked(wait_for_end if is_child else lambda: _forked(wait_for_end))
    if not is_child:
        os.waitpid(child, 0)
    process = Process(int.from_bytes(os.read(told, 4), "little"))
    try:
        yield process
    finally:
        os.close(end)
        with suppress(ChildProcessError):  # neither a child nor traced
            os.waitpid(process.pid, ptrace.WALL)
        for fd in (ending, told, tell):
            os.close(fd)


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return pid


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
        what = f"without {system.MAPPED_FILES}, files that were replaced or deleted can't be read"
        yield Finding(_MISSING, "rights", what, f"add {system.MAPPED_FILES} to the capabilities")
