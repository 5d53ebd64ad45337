"""Stacks that leak as one are one row, which Enter expands."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ui.screens import line_with, shown, text_of
from tests.ui.source import APP, LEAK, LOG, Call, FakeSource, live, press, settle, shop
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.model.stacks import StackFlag
from tracelloc.model.verdicts import CODE_OF, Member, Suspect, Verdict
from tracelloc.show.presentation.suspects import parting_lines
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import NS_PER_S
from tracelloc.ui.groups import GroupKey
from tracelloc.ui.stackviews import STACK_COLUMNS
from tracelloc.ui.tableview import PathCell, Table, TitleCell
from tracelloc.verdict.evidence import stack_judgement


def grouping(one: Snapshot) -> Snapshot:
    """Two stacks of the shop grow together."""
    (found,) = one.findings.suspects
    members = tuple(Member(index, 0.5, 1e5) for index in (found.stack, LOG))
    return replace(one, findings=replace(one.findings, suspects=(replace(found, members=members),)))


async def test_a_group_is_one_row_that_expands(tmp_path: Path) -> None:
    async with live(shop(tmp_path, change=grouping)) as (app, pilot):

        def order() -> list[object]:
            return list(app.screen.query_one("#stacks", Table).order)

        first = order()[0]
        assert isinstance(first, GroupKey)
        assert set(first.members) == {LEAK, LOG}
        assert len(order()) == 3
        assert "407 KiB" in line_with(app, "▸ record_request (2 stacks)")
        assert "1 growing" in text_of(app)[1]
        await press(app, pilot, "enter")
        assert order()[1:3] == [LEAK, LOG]
        assert "375 KiB" in line_with(app, "└ record_request")
        assert "32.0 KiB" in line_with(app, "└ append_log")
        await press(app, pilot, "down", "enter", "escape", "up", "enter")
        assert len(order()) == 3
        await press(app, pilot, "t")
        assert not any(isinstance(key, GroupKey) for key in order())


def many_callers(directory: Path, callers: int, **options: Any) -> FakeSource:
    """A server whose leaf is called through many stacks, with 100 blocks of 16 bytes each."""
    stacks = {
        n + 1: [
            ("leaf", APP, "/src/a.c", 3), ("serve", APP, "/src/a.c", 9), (f"f{n}", APP, None, None)
        ]
        for n in range(callers)
    }  # fmt: skip
    few = {callers + n: [(f"once_{n}", APP, "/src/b.c", n)] for n in (1, 2, 3)}
    whole: dict[int, list[Call]] = {callers + 4: [("whole", APP, "/src/c.c", 1)]}
    source = FakeSource(stacks | few | whole, directory, **options)  # type: ignore[arg-type]
    for stack in stacks:
        source.allocate_many(stack, 16, 100)
    for stack in few:
        source.allocate(stack, 100)
    source.allocate(callers + 4, 4096)
    for _ in range(6):
        source.pass_second()
    return source


async def test_equal_rows_and_single_blocks_are_one_row_each(tmp_path: Path) -> None:
    callers = 40
    async with live(many_callers(tmp_path, callers)) as (app, pilot):

        def shown() -> list[str]:
            lines = text_of(app)
            first = next(at for at, line in enumerate(lines) if "allocated in" in line)
            return [line.lstrip("› ") for line in lines[first + 1 :] if line.strip()]

        leaf, whole, others = shown()[:3]
        assert leaf.startswith("62.5 KiB      4,000")
        assert leaf.endswith("▸ leaf (a.c:3) ×40 stacks ← serve")
        assert whole.endswith("whole (c.c:1)"), "a block of 6 % of the heap is none of the others"
        assert others.startswith("300 B          3")
        assert others.endswith("deciding          6 s  ▸ others: 3 stacks of one block")
        await press(app, pilot, "down", "down", "enter")
        assert [line.split()[-2:] for line in shown()[3:6]] == [
            [f"once_{n}", f"(b.c:{n})"] for n in (1, 2, 3)
        ]
        await press(app, pilot, "up", "up", "enter")
        table = app.screen.query_one("#stacks", Table)
        assert len(table.order) == callers + 1 + 1 + 1 + 3
        await press(app, pilot, "enter", "slash", *"leaf", "enter")
        assert len(table.order) == 1
        await press(app, pilot, "t")
        assert len(table.order) == callers


async def test_blocks_from_before_tracing_are_one_row(source: FakeSource) -> None:
    """Their sizes are its members, lost ones first; the header has the lost bytes."""
    for stack, size in ((77, 64), (78, 1 << 20), (79, 4096)):
        source.table.stacks.add(stack, (0x1000 * (stack - 76),), StackFlag.EARLIER)
        source.allocate(stack, size)
    first = len(source.take_snapshot(TOTALS_ONLY).processes[0].totals) - 3

    def with_old(one: Snapshot) -> Snapshot:
        codes = np.pad(one.findings.codes, (0, first + 3 - len(one.findings.codes)))
        codes[first:] = CODE_OF[Verdict.EARLIER]
        codes[first] = CODE_OF[Verdict.LOST]
        codes[first + 2] = CODE_OF[Verdict.DECIDING]
        sites = one.findings.sites
        rows = np.minimum(np.arange(first + 3), len(sites) - 1)
        sites = sites.select(rows)
        lost = np.where(np.arange(first + 3) == first, 64.0, 0.0)
        sites = replace(sites, code=codes, unreachable_bytes=lost, unreachable=lost / 64)
        retracted = np.zeros(first + 3, one.findings.retracted.dtype)
        findings = replace(one.findings, sites=sites, retracted=retracted)
        return replace(one, findings=findings)

    source.change = with_old
    async with live(source, (200, 60)) as (app, pilot):
        row = line_with(app, "▸")
        assert row.endswith("▸ from before tracing, 64 B lost (3 sizes)")
        assert "lost" in row.split("▸")[0]
        assert "64 B lost from before tracing" in shown(app)
        table = app.screen.query_one("#stacks", Table)
        at = next(n for n, key in enumerate(table.order) if isinstance(key, GroupKey))
        await press(app, pilot, *["down"] * at, "enter")
        assert list(table.order[at + 1 : at + 4]) == [first, first + 1, first + 2]
        await press(app, pilot, "enter")
        # They stay one row in the order of a figure, at the place of their sum.
        column = next(each for each in STACK_COLUMNS if each.key == "bytes")
        for turn in (1, -1):
            app.state.sort(column)
            await settle(app, pilot)
            (old,) = [each for each in table.order if isinstance(each, GroupKey)]
            assert list(old.members) == [first, first + 1, first + 2]
            held = source.take_snapshot(TOTALS_ONLY).processes[0].totals.live_bytes
            sums = [held[each.members if each is old else each].sum() for each in table.order]
            assert [size * turn for size in sums] == sorted(size * turn for size in sums)[::-1]


async def test_rows_of_equal_texts_say_what_differs(tmp_path: Path) -> None:
    """A hidden callee or the size of the blocks; suspects that differ in nothing are one row."""
    callees = ["strdup", None, None]
    stacks = {
        n: [
            *([(callee, "/usr/lib/libc.so.6", None, None)] if callee else []),
            ("note_new", APP, "/src/pipe.c", 4), ("serve", APP, None, None),
            (f"f{n}", APP, None, None),
        ]
        for n, callee in enumerate(callees, 1)
    }  # fmt: skip
    stacks = {
        n: [*calls[:-1], ("serve", APP, None, None), calls[-1]] for n, calls in stacks.items()
    }
    source = FakeSource(stacks, tmp_path)
    for stack, size in ((1, 64), (2, 64), (3, 4096)):
        source.allocate_many(stack, size, 3)
    for _ in range(6):
        source.pass_second()
    verdicts = Verdict.BUSY, Verdict.CACHE, Verdict.START_UP

    def with_verdicts(one: Snapshot) -> Snapshot:
        codes = one.findings.codes.copy()
        codes[1:4] = [CODE_OF[verdict] for verdict in verdicts]
        sites = replace(one.findings.sites, code=codes)
        return replace(one, findings=replace(one.findings, sites=sites))

    source.change = with_verdicts
    async with live(source) as (app, _pilot):
        rows = [line for line in text_of(app) if " note_new (pipe.c:4)" in line]
        assert sorted(row.partition("note_new")[2] for row in rows) == [
            " (pipe.c:4) via strdup, 64 B each ← serve",
            " (pipe.c:4), 4.00 KiB each ← serve",
            " (pipe.c:4), 64 B each ← serve",
        ]


TWINS = 1, 2


def with_twins(one: Snapshot, *, is_one: bool = True) -> Snapshot:
    """Equal rows grow: as one suspect of two stacks, or as two suspects."""
    findings = one.findings
    judgement = replace(
        stack_judgement(findings, TWINS[0]), verdict=Verdict.GROWING, rate_bytes_per_min=1e5
    )
    pair = tuple(Member(stack, 1e5, 0.5) for stack in TWINS)
    whole = Suspect(replace(judgement, rate_bytes_per_min=2e5), pair, None)
    alone = tuple(Suspect(judgement, (member,), None) for member in pair)
    suspects = (whole,) if is_one else alone
    codes = findings.codes.copy()
    codes[list(TWINS)] = CODE_OF[Verdict.GROWING]
    grown = replace(
        findings,
        suspects=suspects,
        suspect_of={member.stack: one for one in suspects for member in one.members},
        sites=replace(findings.sites, code=codes),
    )
    return replace(one, findings=grown)


@pytest.mark.parametrize("is_one", [True, False])
async def test_twins_that_grow_read_and_count_the_same(tmp_path: Path, is_one: bool) -> None:
    """Whether they are judged as one: the name is that of their rows, the rate that of both."""
    source = many_callers(tmp_path, 2, change=partial(with_twins, is_one=is_one))
    async with live(source) as (app, _pilot):
        (line,) = (line for line in text_of(app) if "▸ leaf" in line)
        words = "+195 KiB ▲ growing 6 s ▸ leaf (a.c:3) ×2 stacks ← serve"
        assert " ".join(line.split()[4:]) == words
        assert any(line.startswith("─growing 195 KiB/min for ") for line in text_of(app))
        assert any("(1 of 2) " in line for line in text_of(app)) is not is_one
    snapshot = source.take_snapshot(TOTALS_ONLY).root
    last = next(parting_lines(snapshot, source.namer(snapshot.target), 1))
    name = "leaf (a.c:3) ×2 stacks ← serve, 3.12" if is_one else "leaf (a.c:3) ← serve, 1.56"
    assert last.startswith(f"growing: {name} KiB, ")


def test_what_grows_too_recently_is_named_when_the_screen_is_left(tmp_path: Path) -> None:
    source = many_callers(tmp_path, 2, change=with_twins)
    snapshot = source.take_snapshot(TOTALS_ONLY).root
    sites = snapshot.findings.sites
    rates = sites.rate_bytes_per_min.copy()
    rates[list(TWINS)] = 1e5
    unsure = replace(
        snapshot.findings, suspects=(), suspect_of={},
        sites=replace(sites, rate_bytes_per_min=rates),
    )  # fmt: skip
    young = replace(snapshot, findings=unsure)
    old = replace(young, started_ns=snapshot.now_ns - 60 * NS_PER_S)
    namer = source.namer(snapshot.target)
    assert list(parting_lines(young, namer, 3)) == []
    (line,) = parting_lines(old, namer, 3)
    assert line == "growing: leaf (a.c:3) ×2 stacks ← serve, 3.12 KiB, +195 KiB/min"


def test_cells_leave_out_what_does_not_fit_whole() -> None:
    name = TitleCell("record_request (server.c:32) ← handle_request")
    assert name.within(60) == name
    assert name.within(40) == name, "enough of the caller is seen"
    assert name.within(30) == "record_request (server.c:32)"
    assert name.within(20) == "record_request"
    assert PathCell("/usr/src/shop/server.c:32").within(12) == "…server.c:32"
