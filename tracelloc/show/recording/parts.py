"""Converts snapshots to the parts that a recording keeps, and back.

Recordings omit figures that others determine, all but the largest blocks, and threads.

Dataclasses become plain JSON values, as directed by type annotations. Reading them is strict, as
files are not trusted: a value of another type raises MalformedError. Enumerations are written by
name, dictionaries as pairs, dataclasses as dictionaries by field. Because other versions of
tracelloc may have other fields, missing ones take their defaults or are empty, and unknown ones are
ignored.
"""

import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from tracelloc.errors import MalformedError
from tracelloc.model.figures import COLUMNS, HeapPoints, History, Peak, Totals
from tracelloc.model.losses import Counter
from tracelloc.model.objects import ObjectFindings
from tracelloc.model.process import FollowCounts
from tracelloc.model.stacks import CallStacks
from tracelloc.model.verdicts import VERDICTS, Findings, JudgingBasis, Sites, Suppressed, Suspect
from tracelloc.show.recording.momentcodec import I64, Facts, MomentParts, ProcessKey, ProcessParts
from tracelloc.snapshots.snapshot import FACET_RESULTS, Snapshot, TraceSnapshot

# Values of missing fields without defaults.
_EMPTY: Final[dict[Any, Any]] = {int: 0, float: 0.0, bool: False, str: ""}
_MOST: Final = 1 << 64  # Upper limit of numbers


def to_plain(value: Any) -> Any:
    """Converts a value to plain JSON values."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.number):
        return value.item()
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: Any, plain: Any) -> Any:
    """Restores a value of a type. Raises MalformedError."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), plain)
    if origin is tuple:
        return _tuple(get_args(kind), plain)
    if origin is not None and issubclass(origin, Mapping):
        key, value = get_args(kind)
        pairs = [_checked(list, pair) for pair in _checked(list, plain)]
        if any(len(pair) != 2 for pair in pairs):
            raise MalformedError("a dictionary is damaged")
        return {from_plain(key, pair[0]): from_plain(value, pair[1]) for pair in pairs}
    if issubclass(kind, Enum):
        try:
            return kind[_checked(str, plain)]
        except KeyError as error:
            raise MalformedError(f"{kind.__name__} {str(plain)[:40]!r} is not known") from error
    if is_dataclass(kind):
        return _instance(cast(type, kind), plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        plain = float(_checked(int, plain))
    return _checked(kind, plain)


def _checked(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise MalformedError(f"a {type(plain).__name__} stands where a {kind.__name__} should")
    if kind is int and not -_MOST < plain < _MOST:
        raise MalformedError("a number is too large")
    return plain


def _one_of(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and type(None) in kinds:
        return None
    return from_plain(next(kind for kind in kinds if kind is not type(None)), plain)


def _tuple(kinds: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    every = _checked(list, plain)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(from_plain(kinds[0], each) for each in every)
    if len(every) != len(kinds):
        raise MalformedError(f"{len(every)} values stand where {len(kinds)} should")
    return tuple(from_plain(kind, each) for kind, each in zip(kinds, every, strict=True))


def _instance(kind: type, plain: Any) -> Any:
    given = _checked(dict, plain)
    kinds = types_of(kind)
    values = {name: from_plain(kinds[name], each) for name, each in given.items() if name in kinds}
    try:
        return kind(**_empty(kind) | values)
    except TypeError as error:
        raise MalformedError(f"a {kind.__name__} is incomplete") from error


@functools.cache
def _empty(kind: type) -> dict[str, Any]:
    """Returns values of the fields that have no default."""
    needed = (e for e in fields(kind) if e.default is MISSING and e.default_factory is MISSING)
    kinds = types_of(kind)
    return {e.name: _EMPTY[kinds[e.name]] for e in needed if kinds[e.name] in _EMPTY}


@functools.cache
def types_of(kind: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


_NOT_FACTS: Final = {
    "totals", "growth_per_min", "stacks", "series", "findings", "live_history", "history", "peak",
    "blocks", "usable", "threads", "facets",
}  # fmt: skip
_FACT_TYPES: Final = {n: t for n, t in types_of(Snapshot).items() if n not in _NOT_FACTS}
# Facts that old recordings don't have
_LATER_FACTS: Final = frozenset({"earlier", "gaps", "unsure_stacks"})
_FACET: Final = "facet "  # Begins the names of facts that are results of facets
# Types of objects that are kept one by one: the largest, and those that have grown most.
_MOST_TYPES: Final = 100
_SITE_TYPES: Final = {
    field.name: np.uint8 if field.name == "code"
    else np.bool_ if str(field.type) == "Mask"
    else np.float64
    for field in fields(Sites)
}  # fmt: skip
_POINTS: Final = tuple(field.name for field in fields(HeapPoints))
_RETRACTED: Final = "retracted"
# Names of table rows: other versions of tracelloc may have other rows.
_ROWS: Final = {
    "totals": list(COLUMNS), "series": list(_POINTS), "findings": [*_SITE_TYPES, _RETRACTED],
}  # fmt: skip

# Returns each stack's live bytes at a time of a process's history.
HistorySample = Callable[[ProcessKey, int], I64]


class SnapshotEncoder:
    """Converts traces to recorded parts; unchanged objects are not converted again."""

    def __init__(self, book_of: Callable[[CallStacks], int]) -> None:
        """``book_of``: returns the number under which a process's stacks are recorded."""
        self._book_of = book_of
        self._known: dict[tuple[ProcessKey, str], tuple[Any, Any]] = {}

    def parts(self, trace: TraceSnapshot) -> MomentParts:
        """Returns the recorded parts of a trace, without stacks, history and names."""
        facts = {"untraced_count": trace.untraced_count, "follow": to_plain(trace.follow)}
        return MomentParts(facts, {key_of(one): self._process(one) for one in trace.processes})

    def _converted(
        self, key: ProcessKey, name: str, value: Any, convert: Callable[[Any], Any]
    ) -> Any:
        known = self._known.get((key, name))
        if known is None or known[0] is not value or isinstance(value, Mapping):
            known = self._known[key, name] = value, convert(value)
        return known[1]

    def _process(self, one: Snapshot) -> ProcessParts:
        key = key_of(one)
        facts = {n: self._converted(key, n, getattr(one, n), to_plain) for n in _FACT_TYPES}
        for name, result in one.facets.items():
            convert = _CONVERTERS.get(name, to_plain)
            facts[f"{_FACET}{name}"] = self._converted(key, name, result, convert)
        facts["sample_bytes"] = one.totals.sample_bytes
        facts["book"] = self._book_of(one.stacks)
        facts["history"] = one.history.times_ns
        facts["rows"] = _ROWS
        tables = {"totals": np.stack([getattr(one.totals, name) for name in COLUMNS])}
        if one.peak is not None:
            facts["peak"] = [int(one.peak.time_ns), int(one.peak.size_bytes)]
            tables["peak"] = np.stack([one.peak.live_bytes, one.peak.live_count])
        if one.series is not None:
            tables["series"] = np.stack([getattr(one.series, name) for name in _POINTS])
        if one.findings is not None:
            converted = self._converted(key, "findings", one.findings, _findings)
            facts["findings"], tables["findings"] = converted
        return ProcessParts(facts, tables)


def key_of(one: Snapshot) -> ProcessKey:
    """Returns the key that identifies a program of a process within the trace."""
    return one.target.number, one.target.exec_count


def _findings(findings: Findings) -> tuple[dict[str, Any], I64]:
    facts = {
        "moment": to_plain(findings.moment), "suspects": to_plain(findings.suspects),
        "left_out": findings.suspects_left_out, "suppressed": to_plain(findings.suppressed),
    }  # fmt: skip
    columns = [_words(getattr(findings.sites, name)) for name in _SITE_TYPES]
    return facts, np.stack([*columns, findings.retracted.astype(np.int64)])


def _objects(found: ObjectFindings) -> Any:
    if found.now is None or found.first is None:
        return to_plain(found)
    before = {one.name: one.size_bytes for one in found.first.types}
    grown = sorted(found.now.types, key=lambda one: before.get(one.name, 0) - one.size_bytes)
    largest = found.now.types[:_MOST_TYPES]
    kept = {one.name for one in (*largest, *grown[:_MOST_TYPES])}
    now, first = found.now.reduced_to(kept), found.first.reduced_to(kept)
    return to_plain(replace(found, now=now, first=first))


# Converters by facet, for results that are not kept unchanged.
_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {"objects": _objects}


def _words(column: Any) -> I64:
    """Returns a column as 64-bit words; floats as their bits."""
    words: I64 = column.view(np.int64) if column.dtype == np.float64 else column.astype(np.int64)
    return words


def trace_of(
    parts: MomentParts, stacks_of: Callable[[int], CallStacks], sample: HistorySample
) -> TraceSnapshot:
    """Makes a trace from parts. Raises MalformedError."""
    try:
        processes = tuple(_snapshot(*each, stacks_of, sample) for each in parts.processes.items())
        if not processes:
            raise MalformedError("a snapshot has no process")
        follow = from_plain(FollowCounts | None, parts.facts["follow"])
        return TraceSnapshot(processes, from_plain(int, parts.facts["untraced_count"]), follow)
    except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise MalformedError(f"a snapshot is damaged ({type(error).__name__})") from error


def _snapshot(
    key: ProcessKey, parts: ProcessParts, stacks_of: Callable[[int], CallStacks],
    sample: HistorySample,
) -> Snapshot:  # fmt: skip
    facts, tables = parts.facts, parts.tables
    known = {n: t for n, t in _FACT_TYPES.items() if n in facts or n not in _LATER_FACTS}
    values = {name: from_plain(t, facts[name]) for name, t in known.items()}
    values["losses"].counters.update({c: 0 for c in Counter if c not in values["losses"].counters})
    names = {name: from_plain(tuple[str, ...], each) for name, each in facts["rows"].items()}
    rows = _named(tables["totals"], names["totals"], COLUMNS)
    totals = Totals(**rows, sample_bytes=from_plain(int | None, facts["sample_bytes"]))
    stacks = stacks_of(from_plain(int, facts["book"]))
    if len(stacks) < len(totals):
        raise MalformedError("stacks are missing")
    times = list(from_plain(tuple[int, ...], facts["history"]))
    history = History.from_samples(times, [sample(key, time_ns) for time_ns in times])
    peak = None
    if "peak" in facts:
        peak = Peak(*from_plain(tuple[int, int], facts["peak"]), *_rows(tables["peak"], 2))
    held = zip(*history.total(), strict=True)
    return Snapshot(
        **values, facets=facets_of(facts), totals=totals, stacks=stacks,
        series=HeapPoints(**_named(tables["series"], names["series"], _POINTS))
        if "series" in tables
        else None,
        findings=_found(facts["findings"], tables["findings"], names["findings"])
        if "findings" in facts
        else None,
        growth_per_min=history.growth_per_min(values["now_ns"], totals.live_bytes),
        live_history=tuple((time_ns - values["started_ns"], size) for time_ns, size in held),
        history=history, peak=peak,
    )  # fmt: skip


def facets_of(facts: Facts) -> dict[str, Any]:
    """Returns results of facets by name, which old recordings have as other facts."""
    usage, holders = facts.get("usage"), facts.get("holders")
    older = {
        "heap": usage and {"now": usage, "first": facts["first_usage"] or usage},
        "holders": holders and {"by_stack": holders},
        "objects": facts.get("objects"),
    }
    plain = {name: facts.get(f"{_FACET}{name}") or older.get(name) for name in FACET_RESULTS}
    return {name: from_plain(FACET_RESULTS[name], each) for name, each in plain.items() if each}


def _named(table: I64, names: Sequence[str], wanted: Iterable[str]) -> dict[str, I64]:
    """Returns rows by name; zeros for rows that older recordings lack."""
    rows = dict(zip(names, _rows(table, len(names)), strict=True))
    missing = np.zeros(table.shape[1], np.int64)
    return {name: rows.get(name, missing) for name in wanted}


def _rows(table: I64, count: int) -> I64:
    if len(table) != count:
        raise MalformedError("wrong number of rows")
    return table


def _found(facts: dict[str, Any], table: I64, names: Sequence[str]) -> Findings:
    rows = _named(table, names, [*_SITE_TYPES, _RETRACTED])
    suspects = from_plain(tuple[Suspect, ...], facts["suspects"])
    columns: dict[str, Any] = {
        name: rows[name].view(np.float64) if kind is np.float64 else rows[name].astype(kind)
        for name, kind in _SITE_TYPES.items()
    }
    sites = Sites(**columns)
    stacks = [member.stack for suspect in suspects for member in suspect.members]
    if any(not suspect.members for suspect in suspects) or not all(
        0 <= stack < len(sites) for stack in stacks
    ):
        raise MalformedError("a suspect has an unknown stack number")
    if len(sites) and not 0 <= int(sites.code.max()) < len(VERDICTS):
        raise MalformedError("a verdict is not known")
    return Findings(
        moment=from_plain(JudgingBasis, facts["moment"]),
        suspects=suspects,
        suspects_left_out=from_plain(int, facts["left_out"]),
        suspect_of={member.stack: each for each in suspects for member in each.members},
        sites=sites,
        retracted=rows[_RETRACTED],
        suppressed=from_plain(Suppressed | None, facts["suppressed"]),
    )
