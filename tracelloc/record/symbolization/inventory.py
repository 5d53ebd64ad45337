"""``tracelloc symbols``: the symbols and unwind information of each file a process has mapped.

The command tells why a stack shows ``???`` or no line, and which package provides missing symbols.
dpkg lists the files of each package in ``/var/lib/dpkg/info/PACKAGE.list`` (one path per
line). For rpm, the hint names the command that the user can run.
"""

import json
from collections.abc import Iterable, Iterator

from tracelloc.dataclass import asdict, dataclass
from tracelloc.model.codefiles import Unresolved
from tracelloc.record.process.procfs import VDSO, Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.symbolization.modulesymbols import ModuleSymbols
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.record.worker.client import FileReadError
from tracelloc.system.debugpackages import debug_hints
from tracelloc.text import printable


@dataclass(frozen=True, slots=True)
class ModuleReport:
    """Names, lines and unwind information of one file."""

    module: str
    functions: int  # Number of functions with a name
    names: str  # Source of the names, in words
    lines: str | None = None  # Source of the lines; None if there are none
    no_lines: str | None = None  # Why there are no lines, or not all
    unwind: str | None = None  # Sections with unwind information; None if there are none
    build_id: str | None = None
    troubles: tuple[str, ...] = ()  # Debug files that were found but don't fit
    advice: str | None = None  # How to add names or lines


def take_inventory(process: Process) -> list[ModuleReport]:
    """Returns one report per code file that a process has mapped, in the order of addresses."""
    space = AddressSpace(process)
    symbolizer = Symbolizer(space)
    try:
        space.refresh()
        modules = [symbolizer.module(module) for module in space.modules]
        lacking = [m.module.path for m in modules if m.module.path != VDSO and _lacks_some(m)]
        hints = debug_hints(process.memory_directory / "root", lacking)
        reports = [_report(module, hints) for module in modules]
        return [*reports, *_unreadable(space), *_generated(space, symbolizer)]
    finally:
        symbolizer.close()
        space.close()


def _lacks_some(symbols: ModuleSymbols) -> bool:
    try:
        return not (symbols.may_have_lines and _has_all_names(symbols))
    except FileReadError:
        return False


def _report(symbols: ModuleSymbols, hints: dict[str, str]) -> ModuleReport:
    try:
        return _readable_report(symbols, hints)
    except FileReadError as error:
        why = f"nowhere: {Unresolved.UNREAD.value} ({error})"
        return ModuleReport(symbols.module.path, 0, why, build_id=symbols.module.elf.build_id)


def _readable_report(symbols: ModuleSymbols, hints: dict[str, str]) -> ModuleReport:
    path, elf, debug = symbols.module.path, symbols.module.elf, symbols.debug_file
    functions, has_embedded, unread = symbols.counted
    lines = advice = None
    no_lines: str | None = "no debug information (DWARF)"
    if symbols.may_have_lines:
        own = symbols.has_own_lines
        lines = "its own DWARF" if own or debug is None else f"DWARF in {debug.path}"
        no_lines = symbols.lines.reason
    if not (lines and _has_all_names(symbols)) and path != VDSO:
        advice = hints.get(path) or (
            "compile it with -g" if _has_all_names(symbols) else "build it with -g, don't strip it"
        )
    return ModuleReport(
        module=path,
        functions=functions,
        names=_names(symbols, functions, has_embedded=has_embedded),
        lines=lines,
        no_lines=no_lines,
        unwind=", ".join(elf.unwind_sections) or None,
        build_id=elf.build_id,
        troubles=(*symbols.troubles, *dict.fromkeys([*unread, *elf.troubles])),
        advice=advice,
    )


def _has_all_names(symbols: ModuleSymbols) -> bool:
    return symbols.has_symbols or symbols.counted[1] or symbols.debug_file is not None


def _names(symbols: ModuleSymbols, functions: int, *, has_embedded: bool) -> str:
    if symbols.has_symbols:
        return "its symbol table"
    if symbols.debug_file is not None:
        return f"{symbols.debug_file.path} (by {symbols.debug_file.found_by})"
    if has_embedded:
        return "its compressed symbol table (.gnu_debugdata)"
    return "its exported functions only (.dynsym)" if functions else "nowhere: it is stripped"


def _unreadable(space: AddressSpace) -> Iterator[ModuleReport]:
    seen = set()
    for mapping in space.mappings:
        reason = space.reason(mapping)
        if reason is not None and mapping.path not in seen:
            seen.add(mapping.path)
            yield ModuleReport(mapping.path, 0, f"nowhere: {reason.value}")


def _generated(space: AddressSpace, symbolizer: Symbolizer) -> Iterator[ModuleReport]:
    size_bytes = sum(
        mapping.end - mapping.start
        for mapping in space.mappings
        if mapping.executable and not mapping.is_file and not mapping.path.startswith("[")
    )
    if not size_bytes:
        return
    perf_map = symbolizer.perf_map
    perf_map.reload()
    names, reason = str(perf_map.path), perf_map.reason
    if count := len(perf_map):
        but = () if reason is None else (f"{names}: {reason}",)
        yield ModuleReport("[generated code]", count, names, troubles=but)
    else:
        advice = "node --perf-basic-prof, java with a perf-map agent"
        why = f"{names}: {reason or 'there is no such file'}"
        yield ModuleReport("[generated code]", 0, why, advice=advice)


def text_inventory(reports: Iterable[ModuleReport]) -> Iterator[str]:
    """Yields the inventory as lines of text, a paragraph per file."""
    for report in reports:
        yield printable(report.module)
        yield f"    names   {report.functions:,} functions from {printable(report.names)}"
        if report.lines is None:
            yield f"    lines   none: {printable(report.no_lines or 'it is not a file')}"
        else:
            but = f"; but {printable(report.no_lines)}" if report.no_lines else ""
            yield f"    lines   from {printable(report.lines)}{but}"
        yield f"    unwind  {report.unwind or 'nothing: stacks go on by frame pointers'}"
        for trouble in report.troubles:
            yield f"    note    {printable(trouble)}"
        if report.advice is not None:
            yield f"    to add  {printable(report.advice)}"


def json_inventory(reports: Iterable[ModuleReport]) -> str:
    """Returns the inventory as one JSON array, on one line."""
    return json.dumps([asdict(report) for report in reports], separators=(",", ":"))
