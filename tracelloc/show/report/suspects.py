"""The section of leak suspects, and advice on names and lines that stacks lack."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelloc.model.objects import TypeSuspect
from tracelloc.model.verdicts import Suspect
from tracelloc.show.presentation.alerts import implausible_sizes
from tracelloc.show.presentation.facts import suspect_facts
from tracelloc.show.presentation.objects import type_sentences, type_suspect_facts, type_suspects
from tracelloc.show.presentation.suspects import (
    name_suspects,
    sentences,
    silence_line,
    stacks_to_name,
    suppressed_line,
    suspects_of,
)
from tracelloc.show.presentation.symboladvice import (
    advice_text,
    generated_advice,
    lacking_files,
)
from tracelloc.show.presentation.untraced import untraced_growth
from tracelloc.show.report.content import Entry, Request, SectionContent
from tracelloc.show.report.loglines import (
    cleared_line,
    suspect_line,
    suspect_state,
    type_cleared_line,
    type_line,
    type_state,
)
from tracelloc.snapshots.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _SuspectsPart(SectionContent):
    """The suspects; entries need names, as they list callers of the shared function."""

    suspects: Sequence[Suspect] = ()
    types: Sequence[TypeSuspect] = ()

    @property
    def state(self) -> Hashable:
        """Always new, as each suspect is compared separately."""
        return object()

    @property
    def stacks(self) -> Set[int]:
        """Stacks that need names, those of each suspect's group included."""
        return stacks_to_name(self.suspects)

    def entries(self, given: Request) -> Sequence[Entry]:
        """One per suspect, the best first."""
        snapshot = given.snapshot
        return [
            Entry(
                named.suspect.stack,
                suspect_line(given, named),
                suspect_facts(named),
                more=[f"      {sentence}" for sentence in sentences(named)],
                state=suspect_state(given, named),
            )
            for named in name_suspects(snapshot, given.namer, self.suspects)
        ]

    def text(self, given: Request) -> Iterator[str]:
        """Yields a line per suspect that has changed, and its frames if they are new."""
        earlier = given.earlier
        if earlier.is_news("suspects' lines", self.said_again_if):
            yield from self.lines
        for entry in self.entries(given):
            if earlier.is_news(("suspect", entry.stack), entry.state):
                yield entry.text
                lines = list(entry.stack_lines(given))
                if earlier.is_full or len(lines) > 1:
                    yield from entry.more
                    yield from lines
        for each in self.types:
            if earlier.is_news(("type", each.name), type_state(each)):
                yield type_line(given, each)
                yield from (f"      {sentence}" for sentence in type_sentences(each))
        yield from self._cleared(given)

    def json(self, given: Request) -> dict[str, Any]:
        """Returns the section as JSON fields."""
        types = [type_suspect_facts(each, given.snapshot) for each in self.types]
        return {**super(_SuspectsPart, self).json(given), "type_suspects": types}

    def _cleared(self, given: Request) -> Iterator[str]:
        """Yields a line per earlier suspect that is no longer one."""
        names = {each.name for each in type_suspects(given.snapshot)}
        for name in given.earlier.gone("type", names):
            yield type_cleared_line(given, name)
        findings = given.snapshot.findings
        if findings is None:
            return
        listed = {suspect.stack for suspect in self.suspects}
        members = {member.stack for each in findings.suspects for member in each.members}
        for stack in given.earlier.gone("suspect", listed):
            if stack not in members:
                yield cleared_line(given, stack, findings.verdict(stack))


def suspects_part(given: Request) -> SectionContent:
    """Makes the section of suspects, suppressed leaks and, if notable, untraced growth."""
    snapshot = given.snapshot
    shown = suspects_of(snapshot, given.style.top)
    quiet, suppressed = silence_line(snapshot), suppressed_line(snapshot)
    untraced, sizes = untraced_growth(snapshot), implausible_sizes(snapshot)
    alerts = [None if alert is None else alert.sentence for alert in (sizes, untraced)]
    lines = [*alerts, suppressed, quiet]
    if untraced is not None:
        quiet = untraced.why
    found = [f"==> {line}" for line in lines if line is not None]
    return _SuspectsPart(
        found, key="suspects", said_again_if=(suppressed, quiet), suspects=shown,
        types=type_suspects(snapshot)[: given.style.top],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SymbolsPart(SectionContent):
    """Advice on source lines that shown stacks lack, once they have names."""

    shown: Sequence[int] = ()
    """Stacks of the other sections."""

    @property
    def state(self) -> Hashable:
        """Always new, as each line is compared separately."""
        return object()

    def text(self, given: Request) -> Iterator[str]:
        """Yields a line per file not reported before."""
        target = given.snapshot.target
        lacking: dict[str, bool] = {}
        generated: str | None = None
        for index in self.shown:
            stack = given.namer.stack(given.snapshot, index)
            lacking |= lacking_files(stack)
            generated = generated or generated_advice(given.snapshot.runtimes, stack)
        if generated is not None and given.earlier.is_news("generated code", generated):
            yield f"==> {generated}"
        files = [path for path, no in lacking.items() if given.earlier.is_news(("file", path), no)]
        hints_of = given.style.hints_of
        if not files or target.has_ended or hints_of is None:
            return
        hints = hints_of(Path(f"/proc/{target.pid}/root"), files)
        for path in files:
            text = advice_text(path, nameless=lacking[path], hint=hints.get(path))
            yield f"==> {text}"


def _top(snapshot: Snapshot, top: int) -> Iterator[int]:
    return (stat.index for stat in snapshot.top_stacks(top, with_earlier=False))


def symbols_part(given: Request) -> SectionContent:
    """Lines on names and source lines that the shown stacks lack."""
    snapshot, top = given.snapshot, given.style.top
    shown = [suspect.stack for suspect in suspects_of(snapshot, top)]
    return _SymbolsPart((), shown=[*shown, *_top(snapshot, top)])
