"""Findings of ``tracelloc doctor -p PID`` about a process."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import TargetError, TracellocError
from tracelloc.heap.usable import main_library
from tracelloc.model.codefiles import base_name
from tracelloc.record.mallocs.discovery import EVERYTHING, Module, allocators_in, discover
from tracelloc.record.mallocs.foundlibraries import describe_allocators
from tracelloc.record.probe_points.placement import ProbePlan, plan_probes
from tracelloc.record.process.identity import open_target
from tracelloc.record.process.procfs import VDSO, Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.known import runtimes_of
from tracelloc.record.session.probeset import check_survival, find_allocators
from tracelloc.record.sources.injected.functions import check
from tracelloc.record.symbolization.inventory import ModuleReport, take_inventory
from tracelloc.show.presentation.facts import unseen_lines
from tracelloc.text import plural


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


_GOOD, _MISSING, _FAILS, *_ = FindingState
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
        modules = find_allocators(space, EVERYTHING)
        check_survival(process)
        yield from _probes(process, plan_probes(discover(modules)))
        try:
            check(space, allocators_in(space.mapped_modules, EVERYTHING))
        except TargetError as error:
            yield Finding(_MISSING, "library", f"it can't be injected: {error.message}")
        tracer = process.tracer_id()
        if tracer:
            yield Finding(
                _MISSING,
                "ptrace",
                f"process {tracer} traces it (a debugger, strace?): --follow will not work",
                "end that program",
            )
        yield from _unwinding(space.modules)
        for runtime in runtimes_of(space.modules):
            yield Finding(_MISSING, "runtime", runtime.heap, runtime.advice)
        yield from _names(take_inventory(process))
    except TracellocError as error:
        yield Finding(_FAILS, "process", error.message, error.hint)
    finally:
        space.close()


def _probes(process: Process, planned: ProbePlan) -> Iterator[Finding]:
    main = main_library(describe_allocators(planned.allocators))
    if main is not None:
        beside = f", beside {', '.join(main.others)}" if main.others else ""
        yield Finding(_GOOD, "malloc", f"{main.library.value} in {main.file}{beside}")
    points = planned.points
    files = plural(len({point.open_path for point in points}), "file")
    yield Finding(_GOOD, "probes", f"{plural(len(points), 'probe')} in {files}")
    slow = sorted({p.label for p in points if p.is_single_stepped and not p.is_exit})
    if slow:
        yield Finding(_MISSING, "probes", f"slow ones: {', '.join(slow[:_MOST_NAMED])}")
    for line in unseen_lines(describe_allocators(planned.allocators)):
        yield Finding(_MISSING, "probes", f"not probed: {line}")
    others = _others_breakpoints(process, planned)
    if others:
        yield Finding(
            _MISSING,
            "others",
            f"another tool has probes or breakpoints there: {', '.join(others[:_MOST_NAMED])}",
            "bpftool link; end that tool to have exact costs",
        )


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


def _unwinding(modules: Sequence[Module]) -> Iterator[Finding]:
    lacking = [base_name(m.path) for m in modules if m.path != VDSO and not m.elf.unwind_sections]
    if not lacking:
        text = f"all {plural(len(modules), 'file')} have call-frame information"
        yield Finding(_GOOD, "unwinding", text)
        return
    names = ", ".join(lacking[:_MOST_NAMED])
    yield Finding(
        _MISSING,
        "unwinding",
        f"no call-frame information in {names}: their code is unwound by frame pointers",
        "compile with -fasynchronous-unwind-tables, or with -fno-omit-frame-pointer",
    )


def _names(reports: Sequence[ModuleReport]) -> Iterator[Finding]:
    lacking = [report for report in reports if report.advice is not None]
    if not lacking:
        yield Finding(_GOOD, "symbols", "all files have names and source lines")
        return
    for report in lacking[:_MOST_NAMED]:
        lines = "no source lines" if report.lines is None else "lines"
        text = f"{report.module}: {report.functions:,} names, {lines}"
        yield Finding(_MISSING, "symbols", text, report.advice or "")
    if len(lacking) > _MOST_NAMED:
        more = len(lacking) - _MOST_NAMED
        yield Finding(_MISSING, "symbols", f"and {more} more files", "tracelloc symbols lists all")
    for report in reports:
        for trouble in report.troubles:
            yield Finding(_MISSING, "symbols", f"{report.module}: {trouble}")
