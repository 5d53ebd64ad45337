"""The section of leak suspects, and advice on names and lines that stacks lack."""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tracelloc.model.objects import TypeSuspect
from tracelloc.model.verdicts import Suspect
from tracelloc.show.presentation.alerts import implausible_sizes, untraced_growth
from tracelloc.show.presentation.facts import stack_lines, suspect_facts
from tracelloc.show.presentation.objects import (
    main_holder,
    type_sentences,
    type_suspect_facts,
    type_suspects,
)
from tracelloc.show.presentation.suspects import (
    NamedSuspect,
    name_suspects,
    sentences,
    silence_line,
    stacks_to_name,
    suppressed_line,
    suspects_of,
)
from tracelloc.show.presentation.symboladvice import advice_text, generated_advice, lacking_files
from tracelloc.show.report.content import Entry, Repeat, ReportedSuspect, Request, SectionContent
from tracelloc.show.report.loglines import (
    cleared_line,
    culprit,
    suspect_line,
    type_cleared_line,
    type_line,
)


def suspects_part(given: Request) -> SectionContent:
    """Makes the section of suspects, suppressed leaks and, if notable, untraced growth."""
    snapshot = given.snapshot
    suspects = suspects_of(snapshot, given.style.top)
    types = type_suspects(snapshot)[: given.style.top]
    quiet, suppressed = silence_line(snapshot), suppressed_line(snapshot)
    alerts = [implausible_sizes(snapshot), untraced_growth(snapshot)]
    lines = [*(alert and alert.sentence for alert in alerts), suppressed, quiet]

    def facts(given: Request) -> dict[str, Any]:
        named = name_suspects(snapshot, given.namer, suspects)
        entries = [Entry(each.suspect.stack, "", suspect_facts(each)) for each in named]
        return {
            "suspects": [entry.json(given) for entry in entries],
            "type_suspects": [type_suspect_facts(each, snapshot) for each in types],
        }

    return SectionContent(
        [f"==> {line}" for line in lines if line is not None],
        repeat_when=(suppressed, quiet if alerts[1] is None else alerts[1].key),
        also=stacks_to_name(suspects),
        more=lambda given: _suspect_lines(given, suspects, types),
        late_facts=facts,
    )


def _suspect_lines(
    given: Request, suspects: Sequence[Suspect], types: Sequence[TypeSuspect]
) -> Iterator[str]:
    earlier = given.earlier
    for rank, named in enumerate(name_suspects(given.snapshot, given.namer, suspects)):
        repeat = earlier.repeat(_key(named.suspect), _reported(given, named, rank))
        if repeat is not Repeat.NOTHING:
            yield suspect_line(given, named)
        if repeat is Repeat.ALL:
            yield from (f"      {sentence}" for sentence in sentences(named))
            earlier.has_frames(named.suspect.stack, named.stack)
            yield from stack_lines(named.stack, named.suspect.stack)
    for rank, each in enumerate(types):
        repeat = earlier.repeat(each.name, _reported_type(each, rank))
        if repeat is not Repeat.NOTHING:
            yield type_line(given, each)
        if repeat is Repeat.ALL:
            yield from (f"      {sentence}" for sentence in type_sentences(each))
    yield from _cleared(given)


def _cleared(given: Request) -> Iterator[str]:
    suspects, findings = suspects_of(given.snapshot), given.snapshot.findings
    members = {member.stack for each in suspects for member in each.members}
    names: set[Hashable] = {each.name for each in type_suspects(given.snapshot)}
    gone = given.earlier.cleared(names | {_key(each) for each in suspects})
    for key, each in gone.items():
        if each.stack is None:
            yield type_cleared_line(given, str(key))
        elif findings is not None and each.stack not in members:
            yield cleared_line(given, each.stack, findings.verdict(each.stack))


def _key(suspect: Suspect) -> Hashable:
    """Returns a key that identifies a suspect while the shares of its stacks change."""
    return ("stack", suspect.stack) if suspect.frame is None else ("frame", suspect.frame)


def _reported(given: Request, named: NamedSuspect, rank: int) -> ReportedSuspect:
    judgement, members = named.judgement, [member.stack for member in named.suspect.members]
    return ReportedSuspect(
        verdict=judgement.verdict,
        rank=rank,
        culprit=culprit(named),
        rate_bytes_per_min=judgement.rate_bytes_per_min,
        size_bytes=int(given.snapshot.totals.live_bytes[members].sum()),
        stack=named.suspect.stack,
    )


def _reported_type(suspect: TypeSuspect, rank: int) -> ReportedSuspect:
    holder = main_holder(suspect)
    return ReportedSuspect(
        verdict=suspect.verdict,
        rank=rank,
        culprit="" if holder is None else holder.path,
        rate_bytes_per_min=suspect.bytes_per_min,
        size_bytes=suspect.size_bytes,
    )


def symbols_part(given: Request) -> SectionContent:
    """Makes the section of advice on names and lines that the shown stacks lack."""
    snapshot, top = given.snapshot, given.style.top
    shown = [suspect.stack for suspect in suspects_of(snapshot, top)]
    shown += [stat.index for stat in snapshot.top_stacks(top, with_earlier=False)]
    return SectionContent((), more=lambda given: _symbol_advice(given, shown))


def _symbol_advice(given: Request, shown: Sequence[int]) -> Iterator[str]:
    """Yields advice per file without names or lines. ``shown``: stacks of other sections."""
    target = given.snapshot.target
    lacking: dict[str, bool] = {}
    generated: str | None = None
    for index in shown:
        stack = given.namer.stack(given.snapshot, index)
        lacking |= lacking_files(stack)
        generated = generated or generated_advice(given.snapshot.runtimes, stack)
    if generated is not None and given.earlier.has_changed("generated code", generated):
        yield f"==> {generated}"
    files = [path for path, no in lacking.items() if given.earlier.has_changed(("file", path), no)]
    hints_of = given.style.hints_of
    if not files or target.has_ended or hints_of is None:
        return
    hints = hints_of(Path(f"/proc/{target.pid}/root"), files)
    for path in files:
        text = advice_text(path, nameless=lacking[path], hint=hints.get(path))
        yield f"==> {text}"
