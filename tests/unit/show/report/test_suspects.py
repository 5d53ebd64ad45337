"""Suspects in reports: a program of known truth, from its events to the text."""

import csv
import io
import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.blockholders import KEPT
from tests.corpus.programs import parsers
from tests.snapshots import with_facets
from tests.unit.leaks import (
    CACHE,
    HANDLERS,
    LEAK,
    LEAK_BYTES_PER_MIN,
    SESSION_BYTES_PER_MIN,
    SESSIONS,
    judged,
    watched,
)
from tests.unit.reports import json_report, text_report
from tracelloc.model.blocks import HeapRoot, RootKind, SuspectHolders
from tracelloc.model.frames import FIRST_ADDRESS, Frame
from tracelloc.model.heapusage import NO_ACCOUNT, HeapUsage, HeapUsages, RuntimeFigures
from tracelloc.model.process import Runtime
from tracelloc.model.verdicts import CODE_OF, Findings, Judgement, Verdict
from tracelloc.show.export import EXPORTERS
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.combined import difference, profile_of
from tracelloc.show.presentation.profile import Metric
from tracelloc.show.presentation.suspects import (
    name_suspects,
    sentences,
    suspect_ranks,
    suspects_of,
    unsure_growth,
)
from tracelloc.show.report.content import EarlierProcessReports, ReportStyle, Request
from tracelloc.show.report.suspects import suspect_line
from tracelloc.text import NS_PER_S, format_duration, format_percent, format_size

HOSTILE = "\x1b[31m</script>\n==> 9 leak suspects"


def text_of(end_s: float, top: int = 2, **names: str) -> list[str]:
    found = watched(end_s, **names)
    return list(text_report(found.snapshot(), found.namer, top))


def section(lines: list[str]) -> list[str]:
    """Lines of the suspects: after the first line, up to the next title."""
    return lines[1 : next(n for n, line in enumerate(lines) if line.startswith("==> "))]


def test_names_of_callers() -> None:
    """In each line, as the stack is in the first one only."""
    found = watched(400.0)
    snapshot = found.snapshot()
    (_, single) = name_suspects(snapshot, found.namer, suspects_of(snapshot))
    address = FIRST_ADDRESS + 1
    python = Frame(address, "parse", None, None, None, None, None, file="/srv/feeds.py", line=12)
    native = single.stack.frames[0]
    request = Request(snapshot, found.namer, ReportStyle(5), None, EarlierProcessReports())
    lines = [
        suspect_line(request, replace(single, stack=NamedStack(frames, [False] * len(frames))))
        for frames in ([native, python, python], [python, python], [native])
    ]
    assert lines[0].endswith(' python="parse (feeds.py:12)"')
    assert not any(" python=" in line for line in lines[1:])
    found = judged(parsers(np.random.default_rng(1), 400.0, 0.02), 400.0)
    lines = section(list(text_report(found.snapshot(), found.namer, 1)))
    count = len(found.findings.suspects[0].members)
    assert lines[2] == f"      sum of {count} stacks that share handle_request"
    assert re.fullmatch(
        rf"      through (parse_\d+ \d+ %, ){{4}}parse_\d+ \d+ % and {count - 5} more", lines[3]
    )
    (group,) = [
        s["group"] for s in json.loads(json_report(found.snapshot(), found.namer, 9))["suspects"]
        if s["group"] is not None
    ]  # fmt: skip
    assert [caller["name"] for caller in group["callers"]] == ["serve"]
    assert {callee["name"] for callee in group["callees"]} <= {f"parse_{n}" for n in range(40)}
    assert len(group["callees"]) == count


def test_what_leaks_comes_first_and_says_why() -> None:
    lines = section(text_of(400.0))
    judgements = [suspect.judgement for suspect in watched(400.0).findings.suspects]
    assert [j.verdict for j in judgements] == [Verdict.LEAKING] * 2
    group, single = judgements
    assert group.rate_bytes_per_min == pytest.approx(SESSION_BYTES_PER_MIN, rel=0.05)
    assert single.rate_bytes_per_min == pytest.approx(LEAK_BYTES_PER_MIN, rel=0.15)
    snapshot = watched(400.0).snapshot()
    live = snapshot.totals.live_bytes

    def figures(judgement: Judgement, stacks: list[int]) -> str:
        since_s = (snapshot.now_ns - judgement.since_ns) / NS_PER_S
        assert format_duration(since_s).startswith("6 m ")
        since = time.strftime("%M:%SZ", time.gmtime(snapshot.time_s - since_s))
        figures = (
            f"suspect=leaking rate=+{format_size(round(judgement.rate_bytes_per_min))}/min "
            f"since=2023-11-14T22:{since} for={format_duration(since_s)} "
            f"confidence={format_percent(judgement.confidence, 0)}"
            f" live={format_size(int(live[stacks].sum()))} "
        )
        count = int(snapshot.totals.live_count[stacks].sum())
        words = re.sub(r"(?<=[\d.m]) (?=\d|[A-Zms%])", "", figures)
        return f"2023-11-14T22:13:20Z pid=42 server {words}blocks={count} "

    callers = ", ".join(f"handle_{number:02} 9 %" for number in range(5))
    first = watched(400.0).findings.suspects[0].stack
    assert lines == [
        f"{figures(group, SESSIONS)}stack={first} stacks={HANDLERS} in=session_new",
        f"      {group.evidence}",
        f"      sum of {HANDLERS} stacks that share session_new",
        f"      called by {callers} and 7 more",
        "        0x0000000000400030: session_new+0x4/0x10 in /opt/app",
        "        0x0000000000400040: handle_00+0x4/0x10 in /opt/app",
        "        0x0000000000401000: main+0x4/0x10 in /opt/app",
        f'{figures(single, [LEAK])}stack={LEAK} in="record_request ← serve"',
        f"      {single.evidence}",
        "        0x0000000000400000: record_request+0x4/0x10 in /opt/app",
        "        0x0000000000400010: serve+0x4/0x10 in /opt/app",
        "        0x0000000000401000: main+0x4/0x10 in /opt/app",
    ]


def test_what_is_sure_or_not_and_none() -> None:
    head, *lines = text_of(100.0, 1)
    assert head.endswith(" leaking=0 growing=2 lost_events=0")
    assert re.search(
        r" suspect=growing rate=\S+ since=2023-11-14T22:11:40Z for=1m40s confidence=\d+% ", lines[0]
    )
    assert "verdict in about" in lines[1]
    found = watched(100.0)
    for time_s, expected in ((20.0, "leaking=? growing=?"), (100.0, "leaking=0 growing=0")):
        nothing = replace(at(found.findings, time_s), suspects=(), suspect_of={})
        lines = list(text_report(replace(found.snapshot(), findings=nothing), found.namer, 2))
        assert expected in lines[0]
        assert lines[1].startswith("==> 10 top allocations")
    silent = replace(found.snapshot(), findings=None)
    assert not any("suspect" in line for line in text_report(silent, found.namer, 2))
    found = watched(400.0)
    snapshot = replace(found.snapshot(), findings=at(found.findings, 20.0))
    head, *lines = text_report(snapshot, found.namer, 2)
    assert " leaking=2 growing=0 " in head
    assert sum(" suspect=leaking " in line for line in lines) == 2


def at(findings: Findings, time_s: float) -> Findings:
    """The findings as if they were made so many seconds after the start."""
    now_ns = findings.moment.start_ns + int(time_s * NS_PER_S)
    return replace(findings, moment=replace(findings.moment, now_ns=now_ns))


def test_json() -> None:
    found = watched(400.0)
    report = json.loads(json_report(found.snapshot(), found.namer, 5))
    group, single = report["suspects"]
    assert report["suspect_count"] == 2
    assert list(single) == [
        "stack_id", "verdict", "rate_bytes_per_min", "since_s", "confidence", "evidence",
        "never_freed", "verdict_in_s", "retracted", "searched_blocks", "unreachable_blocks",
        "group", "holders", "stack",
    ]  # fmt: skip
    assert (single["stack_id"], single["verdict"], single["group"]) == (LEAK, "leaking", None)
    assert single["stack"][0]["symbol"] == "record_request"
    assert single["since_s"] == pytest.approx(400, abs=1)
    assert (single["never_freed"], group["never_freed"]) == (False, True)
    assert group["group"]["frame"]["symbol"] == "session_new"
    stacks = group["group"]["stacks"]
    assert sorted(stack["stack_id"] for stack in stacks) == SESSIONS
    assert sum(stack["share"] for stack in stacks) == pytest.approx(1, abs=0.001)
    total = sum(stack["rate_bytes_per_min"] for stack in stacks)
    assert total == pytest.approx(group["rate_bytes_per_min"], abs=1)
    assert {c["name"] for c in group["group"]["callers"]} == {
        f"handle_{number:02}" for number in range(HANDLERS)
    }
    verdicts = {a["stack_id"]: a["verdict"] for a in report["top_allocators"]}
    assert verdicts[LEAK] == "leaking"
    assert verdicts[CACHE] == "cache"


def test_lists_of_suspects() -> None:
    lines = text_of(200.0, name=HOSTILE)
    assert not any("\x1b" in line or "\n" in line for line in lines)
    assert not any(line.startswith("==> ") and "suspect" in line for line in lines)
    found = watched(400.0)
    assert len(json.loads(json_report(found.snapshot(), found.namer, 1))["suspects"]) == 1
    assert section(text_of(400.0, 0)) == []
    assert " leaking=2 growing=0 " in text_of(400.0, 0)[0]
    snapshot = found.snapshot()
    profile = profile_of(snapshot, found.namer)
    content = json.loads(b"".join(EXPORTERS[".json"].write(profile, Metric.BYTES)))
    assert [s["stack_id"] for s in content["suspects"]] == [
        suspect.stack for suspect in found.findings.suspects
    ]
    verdicts = {stack["stack_id"]: stack["verdict"] for stack in content["stacks"]}
    assert [verdicts[n] for n in (LEAK, CACHE)] == ["leaking", "cache"]
    text = b"".join(EXPORTERS[".csv"].write(profile, Metric.BYTES)).decode()
    rows = {int(row["stack_id"]): row["verdict"] for row in csv.DictReader(io.StringIO(text))}
    assert rows == verdicts
    assert not difference(profile, profile).suspects
    found = judged(parsers(np.random.default_rng(1), 400.0, 0.02), 400.0)
    suspect = found.findings.suspects[0]
    alone = replace(suspect, members=suspect.members[:1])
    (named,) = name_suspects(found.snapshot(), found.namer, [alone])
    assert named.shared is None
    assert not any("share" in sentence for sentence in sentences(named))


def test_what_grows_is_ranked_by_its_rate_however_sure_that_is() -> None:
    """A minute into tracing, the largest growth is no suspect yet, and a small group is one."""
    snapshot = watched(400.0).snapshot()
    findings = snapshot.findings
    small = findings.suspects[-1]
    judgement = replace(small.judgement, verdict=Verdict.GROWING, rate_bytes_per_min=1e3)
    members = {member.stack for member in small.members}
    others = [stack for stack in range(len(findings.codes)) if stack not in members]
    fast, slow, sure = others[:3]
    sites = replace(
        findings.sites,
        code=findings.codes.copy(),
        confidence=findings.sites.confidence.copy(),
        rate_bytes_per_min=findings.sites.rate_bytes_per_min.copy(),
    )
    sites.code[:] = CODE_OF[Verdict.BUSY]
    sites.code[[fast, slow, sure]] = CODE_OF[Verdict.GROWING]
    sites.confidence[[fast, slow, sure]] = 0.05, 0.05, 0.9
    sites.rate_bytes_per_min[[fast, slow, sure]] = 1e6, 10, 1e7
    changed = replace(
        findings,
        sites=sites,
        suspects=(replace(small, judgement=judgement),),
        suspect_of={member.stack: small for member in small.members},
    )
    ranks = suspect_ranks(replace(snapshot, findings=changed))
    assert ranks[fast] == 0
    assert {int(ranks[member.stack]) for member in small.members} == {1}
    assert ranks[slow] == 2
    # Who is sure that it may leak and lists it not has been told to.
    assert ranks[sure] == 4
    assert {int(rank) for rank in np.delete(ranks, [fast, slow, sure])} <= {1, 4}
    stacks, rates = unsure_growth(replace(snapshot, findings=changed))
    assert sorted(zip(stacks.tolist(), rates.tolist(), strict=True)) == [(fast, 1e6), (slow, 10)]
    assert len(unsure_growth(replace(snapshot, findings=None))[0]) == 0


def test_who_holds_what() -> None:
    found = watched(400.0)
    snapshot = found.snapshot()
    heap = replace(KEPT.heap, time_s=snapshot.time_s)
    snapshot = with_facets(snapshot, holders=SuspectHolders({LEAK: replace(KEPT, heap=heap)}))
    _, *lines = text_report(snapshot, found.namer, 5)
    (line,) = (line for line in lines if "held by" in line)
    assert line.startswith("      held by app::g_sessions (server) →")
    assert line.endswith("; freeing that frees 156 KiB")
    other, one = json.loads(json_report(snapshot, found.namer, 5))["suspects"]
    assert other["holders"] is None
    root, block = one["holders"]["kept_by"]
    assert (root["root"], root["block"]) == ("app::g_sessions", None)
    assert block["block"] == {"class": "", "usable_bytes": 4096, "blocks": 1, "address": 0x5000}
    java = Runtime("Java", "the JVM has a heap of its own", "", "")
    snapshot = replace(found.snapshot(), runtimes=(java,))
    root = HeapRoot(RootKind.RUNTIME, "Java heap", "")
    keeper = replace(KEPT.keepers[0], root=root)
    snapshot = with_facets(
        snapshot, holders=SuspectHolders({LEAK: replace(KEPT, keepers=(keeper,))})
    )
    words = "      blocks of garbage objects are freed after the next collection"
    assert words in text_report(snapshot, found.namer, 5)
    figures = RuntimeFigures("Java heap", 3 << 20, 4 << 20, 8 << 20, 0, 0)
    usage = HeapUsage(0.0, (), account=replace(NO_ACCOUNT, runtime=figures))
    facets = {**snapshot.facets, "heap": HeapUsages(usage, None)}
    lines = text_report(replace(snapshot, facets=facets), found.namer, 5)
    assert f"{words}: 3.00 MiB of at most 8.00 MiB were used at the last one" in lines
    python = replace(snapshot, runtimes=(replace(java, collects=False),))
    assert not any("next collection" in line for line in text_report(python, found.namer, 5))
    snapshot = found.snapshot()
    findings = snapshot.findings
    sites = replace(findings.sites, code=np.full_like(findings.codes, CODE_OF[Verdict.GROWING]))
    changed = replace(findings, sites=sites, suspects=(), suspect_of={})
    stack = snapshot.top_stacks(1, with_earlier=False)[0].index
    snapshot = replace(snapshot, findings=changed)
    snapshot = with_facets(snapshot, holders=SuspectHolders({stack: KEPT}))
    lines = [
        line for line in text_report(snapshot, found.namer, 5) if ", not yet a suspect" in line
    ]
    assert len(lines) > 1
    assert "growing, not yet a suspect, kept by app::g_sessions (server)" in lines[0]
    assert not any("kept by" in line for line in lines[1:])
    # A block to which several roots lead is no short answer.
    shared = replace(KEPT, keepers=KEPT.keepers[1:])
    snapshot = with_facets(snapshot, holders=SuspectHolders({stack: shared}))
    assert not any("kept by" in line for line in text_report(snapshot, found.namer, 5))
