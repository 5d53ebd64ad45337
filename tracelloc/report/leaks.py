"""The sections on leaks, on memory, and on what tracing costs and has missed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from tracelloc.report.part import Entry, Part, Request
from tracelloc.text import plural, printable
from tracelloc.verdict.judgement import Suspect
from tracelloc.views.facts import suspect_facts
from tracelloc.views.naming import (
    headline,
    name_suspects,
    nobody_line,
    sentences,
    stacks_to_name,
    summary_line,
    suppressed_line,
    suspects_of,
)
from tracelloc.views.process import losses_line, memory_lines, overhead_line


@dataclass(frozen=True, slots=True)
class _SuspectsPart(Part):
    """Entries say who calls what the stacks of a suspect share: they need names."""

    suspects: Sequence[Suspect] = ()

    @property
    def stacks(self) -> Set[int]:
        """Those of each suspect's group as well."""
        return stacks_to_name(self.suspects)

    def entries(self, given: Request) -> Sequence[Entry]:
        """One per suspect, the best first."""
        snapshot = given.snapshot
        return [
            Entry(
                named.suspect.stack,
                headline(named.judgement, snapshot.now_ns, about=given.about),
                suspect_facts(named),
                more=[f"      {sentence}" for sentence in sentences(named)],
            )
            for named in name_suspects(snapshot, given.namer, self.suspects)
        ]


def suspects_part(given: Request) -> Part:
    """Without a line if there are none."""
    shown, lines = suspects_of(given.snapshot, given.top), []
    findings = given.snapshot.findings
    if findings is not None and findings.suspects:
        left_out = findings.suspects_left_out
        lines.append(f"==> {summary_line(findings.suspects, len(shown), left_out)}")
    return _SuspectsPart(lines, key="suspects", suspects=shown)


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
