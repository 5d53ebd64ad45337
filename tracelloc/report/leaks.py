"""The section of leak suspects: what leaks or may leak, and why."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from tracelloc.report.part import Entry, Part, Request
from tracelloc.verdict.judgement import Suspect
from tracelloc.views.facts import suspect_facts
from tracelloc.views.suspects import (
    headline,
    name_suspects,
    sentences,
    stacks_to_name,
    summary_line,
    suspects_of,
)


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
