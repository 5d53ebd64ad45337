"""Report lines for logs: the time, the process, then key=value pairs."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Final

from tracelloc.model.frames import is_runtime_frame
from tracelloc.model.objects import TypeSuspect
from tracelloc.model.process import Space
from tracelloc.model.verdicts import Verdict
from tracelloc.show.presentation.alerts import completeness_word
from tracelloc.show.presentation.naming import frame_name, source_place, stack_title
from tracelloc.show.presentation.objects import (
    grower_text,
    growing_for_s,
    holder_place,
    main_holder,
)
from tracelloc.show.presentation.processfacts import account
from tracelloc.show.presentation.suspects import NamedSuspect, lost_bytes, verdict_counts
from tracelloc.show.report.content import Request
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
    leaking, growing = verdict_counts(snapshot)
    yield f"leaking={'?' if leaking is None else leaking}"
    yield f"growing={'?' if growing is None else growing}"
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
        _prefix(given.snapshot),
        f"suspect={judgement.verdict.value}",
        f"rate={about}{signed_size_word(round(judgement.rate_bytes_per_min))}/min",
        *_onset(given.snapshot, named.since_s),
        f"confidence={_percent(judgement.confidence)}",
        f"live={about}{size_word(int(totals.live_bytes[members].sum()))}",
        f"blocks={about}{int(totals.live_count[members].sum())}",
        f"stack={suspect.stack}",
    ]
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


def cleared_line(given: Request, stack: int, verdict: Verdict) -> str:
    """Formats a stack that is no longer a leak suspect."""
    name = stack_title(given.namer.stack(given.snapshot, stack), stack)
    return (
        f"{_prefix(given.snapshot)} suspect=no verdict={verdict.value} stack={stack} "
        f"in={_word(name)}"
    )


def type_line(given: Request, suspect: TypeSuspect) -> str:
    """Formats a growing type: ``TIME pid=N COMMAND suspect=growing rate=… type=… at=…``."""
    holder = main_holder(suspect)
    parts = [
        _prefix(given.snapshot),
        f"suspect={suspect.verdict.value}",
        f"rate={signed_size_word(round(suspect.bytes_per_min))}/min",
        *_onset(given.snapshot, growing_for_s(suspect, given.snapshot)),
        # The rate includes the parts, whose bytes are not all held by this type.
        f"parts={len(suspect.parts)}" if suspect.parts else f"live={size_word(suspect.size_bytes)}",
        f"objects={suspect.count}",
        f"type={_word(suspect.name)}",
    ]
    if holder is not None:
        parts.append(f"held_by={_word(holder.path)}")
        if holder.file:
            parts.append(f"at={_word(holder_place(holder))}")
    if suspect.native is not None:
        parts.append(f"native={signed_size_word(round(suspect.native.bytes_per_min))}/min")
    if suspect.grower is not None:
        parts.append(f"grown_by={_word(grower_text(suspect.grower))}")
    return " ".join(parts)


def type_cleared_line(given: Request, name: str) -> str:
    """Formats a type that is no longer a leak suspect."""
    return f"{_prefix(given.snapshot)} suspect=no type={_word(name)}"


def _place(named: NamedSuspect) -> str:
    for part in named.stack.parts():
        if part.frame is not None and part.label is None:
            return source_place(part.frame)
    return ""


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
