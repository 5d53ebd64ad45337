"""The section of leak suspects, advice on names that stacks lack, and report lines for logs."""

import json
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tracelloc.model.frames import is_runtime_frame
from tracelloc.model.objects import TypeSuspect
from tracelloc.model.process import Space
from tracelloc.model.verdicts import Suspect
from tracelloc.show.presentation import objects
from tracelloc.show.presentation.alerts import completeness_word, implausible_sizes, untraced_growth
from tracelloc.show.presentation.facts import stack_lines, suspect_facts
from tracelloc.show.presentation.naming import frame_name, source_place, stack_title
from tracelloc.show.presentation.processfacts import account
from tracelloc.show.presentation.suspects import (
    NamedSuspect,
    lost_bytes,
    name_suspects,
    sentences,
    silence_line,
    stacks_to_name,
    suppressed_line,
    suspects_of,
    verdict_counts,
)
from tracelloc.show.presentation.symboladvice import advice_text, generated_advice, lacking_files
from tracelloc.show.report.content import Entry, Repeat, ReportedSuspect, Request, SectionContent
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import about_of, format_duration, format_percent, format_size, printable

LEGEND: Final = (
    "growth: of all live bytes, over the last minute or since tracing began; "
    "rate: of a suspect's blocks that are not freed, since its growth began"
)


def stamp_of(time_s: float) -> str:
    """Formats seconds since 1970 in UTC: ``2026-11-21T23:22:08Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))


def event_line(time_s: float, pairs: Mapping[str, str]) -> str:
    """Formats an event of no single process: ``TIME key=value …``."""
    return " ".join([stamp_of(time_s), *(f"{key}={_word(value)}" for key, value in pairs.items())])


def head_line(given: Request) -> str:
    """Formats the figures of a process: ``TIME pid=N COMMAND live=… growth=…``."""
    return " ".join([_prefix(given.snapshot), *_figures(given.snapshot)])


def _prefix(snapshot: Snapshot) -> str:
    target = snapshot.target
    return f"{stamp_of(snapshot.time_s)} pid={target.pid} {_word(target.command) or '?'}"


def _figures(snapshot: Snapshot) -> Iterator[str]:
    about = about_of(snapshot.sample_bytes)
    if snapshot.gaps:
        yield f"figures={completeness_word(snapshot)}"
    if snapshot.space is not Space.HOST:
        yield f"space={snapshot.space.value}"
    yield f"live={about}{size_word(snapshot.live_bytes)}"
    yield f"blocks={about}{snapshot.live_count}"
    yield f"growth={about}{signed_size_word(int(snapshot.growth_per_min.sum()))}/min"
    if snapshot.rss_bytes is not None:
        yield f"rss={size_word(snapshot.rss_bytes)}"
    found = account(snapshot)
    if found is not None and found.traced_share is not None:
        yield f"growth_traced={_percent(min(found.traced_share, 1))}"
    yield f"events={snapshot.overhead.events_per_s:.0f}/s"
    for name, count in zip(("leaking", "growing"), verdict_counts(snapshot), strict=True):
        yield f"{name}={'?' if count is None else count}"
    for name, size_bytes in zip(("lost", "lost_before"), lost_bytes(snapshot), strict=True):
        if size_bytes:
            yield f"{name}={about}{size_word(size_bytes)}"
    yield f"lost_events={snapshot.losses.events}"
    if snapshot.target.has_ended:
        yield "ended=yes"


def suspect_line(given: Request, named: NamedSuspect) -> str:
    """Formats a leak suspect: ``TIME pid=N COMMAND suspect=leaking rate=… in=… at=…``."""
    judgement, suspect = named.judgement, named.suspect
    totals, about = given.snapshot.totals, given.about
    members = [member.stack for member in suspect.members]
    parts = [
        _prefix(given.snapshot), f"suspect={judgement.verdict.value}",
        f"rate={about}{signed_size_word(round(judgement.rate_bytes_per_min))}/min",
        *_onset(given.snapshot, named.since_s), f"confidence={_percent(judgement.confidence)}",
        f"live={about}{size_word(int(totals.live_bytes[members].sum()))}",
        f"blocks={about}{int(totals.live_count[members].sum())}", f"stack={suspect.stack}",
    ]  # fmt: skip
    if len(members) > 1:
        parts.append(f"stacks={len(members)}")
    return " ".join([*parts, culprit(named), *_caller(named)])


def _caller(named: NamedSuspect) -> Iterator[str]:
    """Yields the innermost function of Python that calls the suspect's function, if one does."""
    frames = named.stack.frames if named.shared is None else ()
    at = next((n for n, frame in enumerate(frames) if is_runtime_frame(frame.address)), 0)
    if at:
        place = source_place(frames[at])
        yield f"python={_word(frame_name(frames[at]) + (f' ({place})' if place else ''))}"


def culprit(named: NamedSuspect) -> str:
    """Formats the function that a suspect's stacks share, or its own: ``in=… at=…``."""
    shared = named.shared
    if shared is None:
        name, place = stack_title(named.stack, named.suspect.stack), _place(named)
    else:
        name, place = printable(frame_name(shared.frame)), source_place(shared.frame)
    return f"in={_word(name)} at={_word(place)}" if place else f"in={_word(name)}"


def _onset(snapshot: Snapshot, since_s: float) -> tuple[str, str]:
    since = stamp_of(snapshot.time_s - since_s)
    return f"since={since}", f"for={_joined(format_duration(since_s))}"


def type_line(given: Request, suspect: TypeSuspect) -> str:
    """Formats a growing type: ``TIME pid=N COMMAND suspect=growing rate=… type=… at=…``."""
    holder = objects.main_holder(suspect)
    parts = [
        _prefix(given.snapshot),
        f"suspect={suspect.verdict.value}",
        f"rate={signed_size_word(round(suspect.bytes_per_min))}/min",
        *_onset(given.snapshot, objects.growing_for_s(suspect, given.snapshot)),
        # The rate includes the parts, whose bytes are not all held by this type.
        f"parts={len(suspect.parts)}" if suspect.parts else f"live={size_word(suspect.size_bytes)}",
        f"objects={suspect.count}",
        f"type={_word(suspect.name)}",
    ]
    if holder is not None:
        parts.append(f"held_by={_word(holder.path)}")
        if holder.file:
            parts.append(f"at={_word(objects.holder_place(holder))}")
    if suspect.native is not None:
        parts.append(f"native={signed_size_word(round(suspect.native.bytes_per_min))}/min")
    if suspect.grower is not None:
        parts.append(f"grown_by={_word(objects.grower_text(suspect.grower))}")
    return " ".join(parts)


def _place(named: NamedSuspect) -> str:
    plain = (part.frame for part in named.stack.parts() if part.frame and part.label is None)
    return next(map(source_place, plain), "")


def _word(text: str) -> str:
    text = printable(text)
    return json.dumps(text, ensure_ascii=False) if set(text) & set(' "=') else text


def _joined(text: str) -> str:
    return text.replace(" ", "")


def size_word(size_bytes: int) -> str:
    """Formats a size as one word: ``1.25MiB``."""
    return _joined(format_size(size_bytes))


def signed_size_word(size_bytes: int) -> str:
    """Formats a change as one word: ``+1.25MiB``."""
    return f"{'+' if size_bytes > 0 else ''}{size_word(size_bytes)}"


def _percent(share: float) -> str:
    return _joined(format_percent(share, 0))


def suspects_part(given: Request) -> SectionContent:
    """Makes the section of suspects, suppressed leaks and, if notable, untraced growth."""
    snapshot = given.snapshot
    suspects = suspects_of(snapshot, given.style.top)
    types = objects.type_suspects(snapshot)[: given.style.top]
    quiet, suppressed = silence_line(snapshot), suppressed_line(snapshot)
    alerts = [implausible_sizes(snapshot), untraced_growth(snapshot)]
    lines = [*(alert and alert.sentence for alert in alerts), suppressed, quiet]

    def facts(given: Request) -> dict[str, Any]:
        named = name_suspects(snapshot, given.namer, suspects)
        entries = [Entry(each.suspect.stack, "", suspect_facts(each)) for each in named]
        return {
            "suspects": [entry.json(given) for entry in entries],
            "type_suspects": [objects.type_suspect_facts(each, snapshot) for each in types],
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
            yield from (f"      {sentence}" for sentence in objects.type_sentences(each))
    yield from _cleared(given)


def _cleared(given: Request) -> Iterator[str]:
    """Yields a line for each stack or type that is no longer a leak suspect."""
    suspects, findings = suspects_of(given.snapshot), given.snapshot.findings
    members = {member.stack for each in suspects for member in each.members}
    names: set[Hashable] = {each.name for each in objects.type_suspects(given.snapshot)}
    gone = given.earlier.cleared(names | {_key(each) for each in suspects})
    begin = f"{_prefix(given.snapshot)} suspect=no"
    for key, each in gone.items():
        if each.stack is None:
            yield f"{begin} type={_word(str(key))}"
        elif findings is not None and each.stack not in members:
            verdict = findings.verdict(each.stack).value
            name = stack_title(given.namer.stack(given.snapshot, each.stack), each.stack)
            yield f"{begin} verdict={verdict} stack={each.stack} in={_word(name)}"


def _key(suspect: Suspect) -> Hashable:
    """Returns a key that identifies a suspect while the shares of its stacks change."""
    return ("stack", suspect.stack) if suspect.frame is None else ("frame", suspect.frame)


def _reported(given: Request, named: NamedSuspect, rank: int) -> ReportedSuspect:
    judgement, members = named.judgement, [member.stack for member in named.suspect.members]
    return ReportedSuspect(
        judgement.verdict, rank, culprit(named), judgement.rate_bytes_per_min,
        int(given.snapshot.totals.live_bytes[members].sum()), named.suspect.stack,
    )  # fmt: skip


def _reported_type(suspect: TypeSuspect, rank: int) -> ReportedSuspect:
    holder = objects.main_holder(suspect)
    path = "" if holder is None else holder.path
    return ReportedSuspect(suspect.verdict, rank, path, suspect.bytes_per_min, suspect.size_bytes)


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
        yield f"==> {advice_text(path, nameless=lacking[path], hint=hints.get(path))}"
