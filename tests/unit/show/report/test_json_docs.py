"""The tables of JSON keys in the manual against reports and files that have all of them."""

import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.blockholders import KEPT
from tests.pythonobjects import growing
from tests.snapshots import snapshot_of
from tests.unit.events import records
from tests.unit.leaks import watched
from tests.unit.memoryusages import usage
from tests.unit.show.analysis.test_waste import GLIBC, measured
from tests.unit.show.presentation.test_memory import with_memory
from tests.unit.show.presentation.test_views import FakeSymbolizer
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.model.blocks import (
    BlockSum,
    EarlierBlocks,
    EarlierKind,
    MappedStack,
    Mappings,
    SuspectHolders,
)
from tracelloc.model.events import EventKind
from tracelloc.model.heapusage import (
    HeapUsages,
    MemoryPart,
    PinnedPages,
    PinningStack,
    RuntimeFigures,
)
from tracelloc.model.losses import Gap
from tracelloc.model.process import (
    FollowCounts,
    FoundLibrary,
    MallocLibrary,
    MemoryLimit,
    UnseenFunction,
)
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.model.verdicts import Suppressed
from tracelloc.show import manual
from tracelloc.show.export import EXPORTERS
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.show.report.content import ReportStyle
from tracelloc.show.report.optional import SECTIONS
from tracelloc.show.report.sections import trace_report
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot

Tables = dict[str, dict[str, tuple[str, str]]]
TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,), "number": (int, float), "string": (str,), "bool": (bool,), "list": (list,),
    "object": (dict,), "null": (type(None),), "stack": (list,),
}  # fmt: skip
FRAME, SUMS, FILE, FIGURES = "stack[]", "sums", "file", "figures"
HEADINGS = {"Report": "", "Sums of all processes": SUMS, "Snapshot files": FILE}


def tables() -> Tables:
    """Per object its keys, with their types and what is said of them."""
    found: Tables = {}
    paths: list[str] = []
    for line in manual.text_of("json").splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ").partition(" (")[0]
            paths = [HEADINGS[title]] if title in HEADINGS else re.findall(r"`([^`]+)`", title)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            if paths == [FILE] and cells[0] == "`bytes`, `allocations`":
                paths = [FIGURES]
            for path in paths:
                for key in re.findall(r"`([^`]+)`", cells[0]):
                    found.setdefault(path, {})[key] = cells[1].partition(" (")[0], cells[2]
    return found


class Checker:
    """Walks JSON along the tables."""

    def __init__(self) -> None:
        self.tables = tables()
        self.unseen = {(path, key) for path, keys in self.tables.items() for key in keys}

    def check(self, value: dict[str, Any], path: str, table: str | None = None) -> None:
        known = self.tables[path if table is None else table]
        for key, found in value.items():
            where = f"{path}.{key}".strip(".")
            assert key in known, f"{where} is not in the manual"
            kind, about = known[key]
            types = tuple(t for word in kind.split(" or ") for t in TYPES[word])
            assert isinstance(found, types), f"{where} is {found!r}, not {kind}"
            assert bool in types or not isinstance(found, bool), where
            self.unseen.discard((path if table is None else table, key))
            self._inside(found, kind, about, where)

    def _inside(self, found: Any, kind: str, about: str, where: str) -> None:
        if kind == "stack":
            for frame in found:
                self.check(frame, where, FRAME)
        elif isinstance(found, list):
            listed = re.search(r"objects with (.*)", about)
            for each in found:
                if listed:
                    assert set(each) == set(re.findall(r"`([^`]+)`", listed[1])), where
                elif where == "sizes.bins":
                    bounds = {each.pop("from_bytes"), each.pop("to_bytes")}
                    assert all(isinstance(bound, int) for bound in bounds)
                    self.check(each, "sizes.top_sizes[]")
                elif isinstance(each, dict):
                    self.check(each, f"{where}[]")
        elif isinstance(found, dict):
            self.check(found, where, FRAME if where.endswith(".frame") else None)


def whole_snapshot() -> tuple[Snapshot, Namer]:
    """One of a process with suspects, suppressions, a limit, mappings and everything else."""
    found = watched(400.0)
    snapshot = with_memory(
        400.0, anonymous=10 << 20, limit=MemoryLimit("machine", 1 << 33, 1 << 30)
    )
    suppressed = Suppressed(stacks=1, rate_bytes_per_min=2.5, live_bytes=3)
    assert snapshot.findings is not None
    stack, unseen = snapshot.top_blocks.largest[0].stack, UnseenFunction("brk", "a reason")
    libc = FoundLibrary("malloc", "/lib/libc.so.6", ("malloc",), (), MallocLibrary.GLIBC)
    pins = PinningStack(stack, 2 << 20, BlockSum(3, 300))
    pinned = PinnedPages(3 << 20, BlockSum(4, 400), ((100, BlockSum(4, 400)),), (pins,))
    now = usage(snapshot.time_s, pinned=pinned, in_use=30, free=20, other=30)
    inherited = {MemoryPart.IN_USE: 1 << 20}
    runtime = RuntimeFigures("Java heap", 1, 2, 3, 4, 5)
    account = replace(now.account, inherited=inherited, runtime=runtime, devices=("nvidia0",))
    now = replace(now, account=account)
    return replace(
        snapshot,
        allocators=(replace(libc, not_probed=(unseen,)),),
        findings=replace(snapshot.findings, suppressed=suppressed),
        earlier=EarlierBlocks((EarlierKind(stack, "app::Circle", 1, 1 << 40, 3, 264),), 1.0),
        old_blocks=snapshot.top_blocks,
        facets={
            "objects": growing(snapshot.time_s),
            "holders": SuspectHolders({each.stack: KEPT for each in snapshot.findings.suspects}),
            "heap": HeapUsages(now, usage(in_use=30)),
        },
        gaps=(Gap(1.0, 2.0, 3, "tracelloc could not keep up"),),
        mappings=Mappings((MappedStack(stack, 1, 4096, snapshot.now_ns),), 4096),
    ), found.namer  # fmt: skip


def threaded_snapshot() -> tuple[Snapshot, Namer]:
    """One with every block, and blocks that another thread has freed."""
    table = LiveTable(Stacks())
    made = [(EventKind.ALLOC, 16 * n, 20, 1, tid) for n, tid in ((1, 7), (2, 7), (3, 8))]
    table.apply(records([*made, (EventKind.FREE, 16, 0, 0, 8)]))
    wanted = SnapshotRequest(10, 0, blocks=True, threads=True)
    snapshot = measured(snapshot_of(table, 1000, wanted), GLIBC)
    return snapshot, Namer(FakeSymbolizer({}), Filters())


@pytest.mark.parametrize("make", [whole_snapshot, threaded_snapshot])
def test_every_key_is_in_the_manual(make: Any) -> None:
    check_all(*make())


def check_all(snapshot: Snapshot, namer: Namer) -> Checker:
    checker = Checker()

    class One:
        def namer_of(self, _target: object) -> Namer:
            return namer

    has_all = snapshot.threads is not None
    show = frozenset(SECTIONS) if has_all else frozenset(SECTIONS) - {"threads", "sizes"}
    style = ReportStyle(5, 0, show, has_many=True)
    trace = TraceSnapshot((snapshot,), 2, FollowCounts(1, 2, 3))
    marks = {snapshot.target.number: snapshot}
    lines = trace_report(
        trace, cast("Namers", One()), style, marks, ended=True, as_json=True
    ).splitlines()
    report, sums = map(json.loads, lines)
    checker.check(report, "")
    own = {key: value for key, value in sums.items() if key not in checker.tables[""]}
    checker.check(own, SUMS)
    content = json.loads(b"".join(EXPORTERS[".json"](snapshot, namer)))
    assert set(content) == set(checker.tables[FILE])
    for key in ("format", "command"):
        assert isinstance(content[key], str)
    assert set(content["figures"]) <= set(checker.tables[""])
    fixed = {"stack_id", "verdict", "frames", "hidden", "labels", "before"}
    for stack in content["stacks"]:
        assert set(stack) - fixed == set(checker.tables[FIGURES])
    for frame in content["frames"]:
        extra = {"raw_symbol", "module_offset"}
        assert set(frame) == set(checker.tables[FRAME]) - {"hidden", "label"} | extra
    return checker


def test_every_key_of_the_manual_is_there() -> None:
    unseen = check_all(*whole_snapshot()).unseen & check_all(*threaded_snapshot()).unseen
    assert {(path, key) for path, key in unseen if path not in (FILE, FIGURES)} == set()
