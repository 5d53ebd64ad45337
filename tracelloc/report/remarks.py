"""The sections of remarks on the whole target: text only, as JSON has figures for them."""

from __future__ import annotations

from tracelloc.report.part import Part, Request
from tracelloc.text import printable
from tracelloc.units import plural
from tracelloc.views.losslines import losses_line, overhead_line
from tracelloc.views.memory import memory_lines
from tracelloc.views.suspects import nobody_line, suppressed_line


def memory_part(given: Request) -> Part:
    """What there is to be said of leaks and of memory, and which program it is of."""
    snapshot = given.snapshot
    lines = [nobody_line(snapshot), suppressed_line(snapshot), *memory_lines(snapshot)]
    if snapshot.target.exec_count:
        programs = plural(snapshot.target.exec_count, "other program")
        lines.append(f"{programs} begun (exec), now {printable(snapshot.target.command)}")
    return Part([f"==> {line}" for line in lines if line is not None])


def losses_part(given: Request) -> Part:
    """What tracing costs, and what it has missed."""
    snapshot = given.snapshot
    return Part([f"==> {overhead_line(snapshot.overhead)}", f"==> {losses_line(snapshot)}"])
