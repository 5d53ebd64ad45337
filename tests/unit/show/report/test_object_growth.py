"""Which types of objects are said to grow, and what is said of them."""

import json
import random
from collections.abc import Callable

import pytest

from tests.pythonobjects import SESSION, census, growing
from tests.snapshots import with_facets
from tests.unit.leaks import watched
from tests.unit.reports import json_report, text_report
from tracelloc.model.objects import Holder, Holders, ObjectFindings
from tracelloc.model.verdicts import Verdict
from tracelloc.record.runtimes.cpython.holders import CYCLE
from tracelloc.record.runtimes.cpython.watch import TypeHistory, group_types
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.suspects import verdict_counts
from tracelloc.show.report.content import EarlierProcessReports, ReportStyle, Request
from tracelloc.show.report.sections import report_lines
from tracelloc.snapshots.snapshot import Snapshot

PAUSE_S = 5.0


def said(counts: Callable[[float], float], until_s: float) -> list[bool]:
    """After each census whether the type is said to grow. Pauses differ, as real ones do."""
    history, found, time_s = TypeHistory(), [], 0.0
    pauses = random.Random(1)
    while time_s <= until_s:
        count = int(counts(time_s))
        history.add_census(census(1e9 + time_s, dict=(count, 64 * count), list=(5000, 1 << 20)))
        found.append([one.name for one in history.growing()] == ["dict"])
        time_s += PAUSE_S * pauses.uniform(1, 1.5)
    return found


GROW: dict[str, Callable[[float], float]] = {
    "steady": lambda at_s: 1000 + 10 * at_s,
    "in-waves": lambda at_s: 1000 + 10 * at_s + 30 * (at_s % 7),
    "late": lambda at_s: 1000 + 10 * max(0.0, at_s - 300),
    "in-steps": lambda at_s: 20 * at_s + 8 * (at_s % 20),
}
DO_NOT: dict[str, Callable[[float], float]] = {
    "level": lambda _at_s: 5000,
    "cleared": lambda at_s: 1000 + 40 * (at_s % 9.7),
    "cleared-often": lambda at_s: 1000 + 40 * (at_s % 1.3),
    "cleared-with-imports": (lambda at_s: 1000 + 90 * (at_s % 4.3) + 40 * (min(at_s, 70) // 12)),
    "filled": lambda at_s: 1000 + 50 * min(at_s, 12),
    "imported": lambda at_s: 1000 + 500 * (at_s > 20) + 700 * (at_s > 200),
    "freed": lambda at_s: 9000 - 10 * at_s,
    "hardly": lambda at_s: 1000 + at_s / 50,
}


@pytest.mark.parametrize("counts", GROW.values(), ids=GROW)
def test_what_leaks_is_said_to_grow(counts: Callable[[float], float]) -> None:
    found = said(counts, 600)
    begun = found.index(True)
    assert all(found[begun:])
    assert counts(PAUSE_S * 1.25 * begun) - 1000 < 10 * 75 or begun < 12


@pytest.mark.parametrize("counts", DO_NOT.values(), ids=DO_NOT)
def test_what_does_not_is_not(counts: Callable[[float], float]) -> None:
    assert not any(said(counts, 900))


def test_growth_of_types_and_the_section() -> None:
    found = said(lambda at_s: 1000 + 10 * min(at_s, 200), 600)
    assert any(found)
    assert not any(found[60:])
    history = TypeHistory()
    for at in range(500):
        history.add_census(census(1e9 + 5 * at, dict=(1000 + 50 * at, 6400 * at), late=(at, at)))
        found = history.growing()
    grown, late = found
    assert (grown.name, late.name) == ("dict", "late")
    assert grown.since_s == 1e9
    assert grown.count_per_min == pytest.approx(600)
    assert grown.bytes_per_min == pytest.approx(6400 * 12)
    cached = Holder("m.f.cache[…]", "dict", 150, 0, is_bounded=True)
    rest = Holder("m.LIST[…]", "list", 50, 0)
    assert Holders(200, (cached, rest), 0).is_bounded
    assert not Holders(400, (cached, rest), 0).is_bounded
    snapshot, namer = with_objects()
    earlier = EarlierProcessReports()
    said_lines = []
    for one in (snapshot, with_facets(snapshot, objects=None), with_facets(snapshot, objects=None)):
        earlier.begin(is_full=False, is_first=False)
        request = Request(one, namer, ReportStyle(5), None, earlier)
        said_lines.append([line for line in report_lines(request) if " type=" in line])
    assert [len(lines) for lines in said_lines] == [1, 1, 0]
    assert said_lines[1][0].endswith("server suspect=no type=app.sessions.Session")
    snapshot, namer = with_objects()
    text = text_report(snapshot, namer, 2, show={"objects"})
    at = text.index("==> 11,400 objects of 3 types, 1.32 MiB, 2 top types:")
    assert text[at + 1].endswith("objects/min   bytes/min  type (change in 1 m)")
    assert text[at + 2].split() == ["1,600", "240", "KiB", "+600", "+140", "KiB", "dict"]
    found = json.loads(json_report(snapshot, namer, 2, show={"objects"}))["objects"]
    assert found["trouble"] is None
    assert {row["type"]: row["objects_change"] for row in found["types"]} == {
        "dict": 600, SESSION: 600, "str": -100,
    }  # fmt: skip
    nothing = with_facets(snapshot, objects=ObjectFindings(trouble="no Python objects were found"))
    assert ("==> Python's objects were not counted: no Python objects were found") in text_report(
        nothing, namer, 2, show={"objects"}
    )
    assert not [line for line in text_report(snapshot, namer, 2) if "objects of 3 types" in line]


def held_by(kind: str, path: str) -> Holders:
    return Holders(200, (Holder(path, kind, 190, 0), Holder("m.x", "list", 10, 0)), 0)


def test_types_grow_because_of_those_that_keep_them() -> None:
    history = TypeHistory()
    for at in range(20):
        count = 100 * at
        history.add_census(census(
            1e9 + 5 * at, Session=(count, 99 * count), dict=(count, 200 * count),
            list=(count, 80 * count), other=(count, count),
        ))  # fmt: skip
        grown = history.growing()
    holders = {
        # A dictionary keeps sessions, sessions keep dictionaries: what is nearer to the root leads.
        SESSION: held_by("dict", "app.CACHE[…]"),
        "dict": held_by(SESSION, "app.CACHE[…].fields"),
        "list": held_by("dict", "app.CACHE[…].fields[…]"),
        "other": Holders(200, (Holder(CYCLE, "", 200, 0),), 0),
    }
    groups = {
        lead.name: [part.name for part in parts] for lead, parts in group_types(grown, holders)
    }
    assert groups == {SESSION: ["dict", "list"], "other": []}


def with_objects(verdict: Verdict = Verdict.GROWING) -> tuple[Snapshot, Namer]:
    found = watched(400.0)
    snapshot = found.snapshot()
    return with_facets(snapshot, objects=growing(snapshot.time_s, verdict)), found.namer


def test_rows_of_types_among_the_suspects() -> None:
    snapshot, namer = with_objects()
    plain = with_facets(snapshot, objects=None)
    assert (
        "suspect=growing rate=+200KiB/min since=2023-11-14T22:12:20Z for=1m parts=1 "
        "objects=900 type=app.sessions.Session held_by=app.sessions.RECENT[…] "
        'at=/srv/app/sessions.py native=0B/min grown_by="remember() (sessions.py:92)"'
    ) in [line.partition(" server ")[2] for line in text_report(snapshot, namer, 5)]
    text = text_report(snapshot, namer, 5)
    assert (
        "      900 app.sessions.Session (+600/min) in the dict app.sessions.RECENT, with dict "
        "+600/min; last added by remember() (sessions.py:92)"
    ) in text
    assert (
        "      held by app.sessions.RECENT[…] in dict (/srv/app/sessions.py): 90 % of "
        "200 new objects looked at"
    ) in text
    assert "      held by serve() pending[…] in list (/srv/app/main.py:9): 10 %" in text
    leaking, growing_count = verdict_counts(plain)
    assert leaking is not None
    assert growing_count is not None
    assert verdict_counts(snapshot) == (leaking, growing_count + 1)
    assert verdict_counts(with_objects(Verdict.LEAKING)[0]) == (leaking + 1, growing_count)
    (suspect,) = json.loads(json_report(snapshot, namer, 5))["type_suspects"]
    assert (suspect["type"], suspect["verdict"], suspect["objects"]) == (SESSION, "growing", 900)
    assert [part["type"] for part in suspect["parts"]] == ["dict"]
    assert suspect["grown_by"]["function"] == "remember"
    assert [holder["line"] for holder in suspect["holders"]] == [None, 9]
