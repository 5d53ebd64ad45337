"""Types of running Python programs that grow: what is found, and what reports say."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import TARGETS, Target, Targets, run_tracelloc, wait_until
from tests.integration.test_heapwalk import EPOLL_WAIT, READ, threads_in
from tracelloc.model.objects import TypeSuspect
from tracelloc.record.facets import objects
from tracelloc.record.facets.objects import ObjectsFacet
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython import census
from tracelloc.record.runtimes.cpython.holders import CYCLE, UNCOLLECTED
from tracelloc.record.runtimes.cpython.watch import PythonObjectWatch
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to

PYTHON = "/usr/bin/python3"
ITEM = "__main__.Item"
LOOKS = 8
Watches = Callable[[int], PythonObjectWatch]


@pytest.fixture
def watch_of() -> Iterator[Watches]:
    """Watches a process by a clock of its own: five seconds from one look to the next."""
    spaces: list[AddressSpace] = []
    times_s = iter(range(10**9, 2 * 10**9, 5))

    def begin(pid: int) -> PythonObjectWatch:
        spaces.append(AddressSpace(Process(pid)))
        spaces[-1].refresh()
        return PythonObjectWatch(Process(pid), spaces[-1], lambda: float(next(times_s)))

    yield begin
    for space in spaces:
        space.close()


def looks_at(watch: PythonObjectWatch, target: Target, words: str) -> list[tuple[str, str]]:
    """Types that are suspects in the end, and who keeps them."""
    for _ in range(LOOKS):
        target.ask(words)
        watch.update_findings()
    assert watch.findings.trouble is None
    return [(each.name, each.holders.holders[0].path) for each in watch.findings.suspects]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("cycle 300", [("__main__.Cycle", UNCOLLECTED)]),
        ("garbage 300", []),
        ("thread 600", [(ITEM, "__main__.LOCAL.items[…]")]),
        ("native 600", [(ITEM, "C code")]),
        ("bounded 300", []),
        ("cleared 333", []),
        ("slots 1", []),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_grows_is_found_with_who_keeps_it(
    targets: Targets, watch_of: Watches, words: str, found: list[tuple[str, str]]
) -> None:
    target = targets.start(PYTHON, TARGETS / "holders.py")
    suspects = looks_at(watch_of(target.pid), target, words)
    assert [name for name, _ in suspects] == [name for name, _ in found]
    for (_, path), (_, beginning) in zip(suspects, found, strict=True):
        assert path.startswith(beginning)


def test_garbage_is_not_growth(targets: Targets, watch_of: Watches) -> None:
    """Three of four new items wait for the collector: the rate is that of the others."""
    target = targets.start(PYTHON, TARGETS / "holders.py")
    watch = watch_of(target.pid)
    for _ in range(LOOKS):
        target.ask("garbage 300")
        target.ask("dict 100")
        watch.update_findings()
    (suspect,) = watch.findings.suspects
    assert (suspect.name, suspect.growth.count_per_min) == (ITEM, pytest.approx(1200, rel=0.15))
    kept, garbage = suspect.holders.holders
    assert (kept.path, kept.is_garbage) == ("__main__.UNBOUNDED[…]", False)
    assert (garbage.path, garbage.is_garbage) == (CYCLE, True)
    assert garbage.count > 2 * kept.count


def test_what_would_take_too_much_memory_is_read_in_pieces(
    targets: Targets, watch_of: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures are the same, to the last object; a line reports that holders are missing."""
    monkeypatch.setattr(census, "_POOLS_AT_ONCE", 7)
    target = targets.start(PYTHON, TARGETS / "holders.py")
    watch, whole = watch_of(target.pid), watch_of(target.pid)
    watch.most_bytes = 1 << 20
    for _ in range(2):
        # Until one thread reads an order, and the first waits for it, they make and drop objects.
        wait_until(
            lambda: [threads_in(target.pid, one) for one in (f"{READ} 0x0", EPOLL_WAIT)] == [1, 1]
        )
        watch.update_findings()
        whole.update_findings()
        now, other = watch.findings.now, whole.findings.now
        assert now.types == other.types
        assert (now.block_count, now.block_bytes) == (other.block_count, other.block_bytes)
        assert "too much to be searched for holders (--max-memory)" in now.no_holders
        assert not other.no_holders
        target.ask("dict 100")
    assert watch.findings.holders == {}


@pytest.fixture
def suspect_of(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], TypeSuspect]]:
    """Traces the program while it keeps something; a clock of its own counts objects."""
    # No counts but those that are asked for here.
    for pause in ("_PAUSE_NS", "_QUIET_NS"):
        monkeypatch.setattr(objects, pause, 1 << 62)
    target = targets.start(PYTHON, TARGETS / "holders.py")
    session, times_s = attach_to(Process(target.pid), TraceConfig()), iter(range(10**9, 10**10, 5))
    root = session.root

    def watch(words: str) -> TypeSuspect:
        for _ in range(LOOKS):
            target.ask(words)
            # The events are in the figures before the objects are counted.
            session.snapshot()
            facet._watches[0].update_findings()
            findings = session.snapshot().root.objects
        (suspect,) = findings.suspects
        return suspect

    watched = PythonObjectWatch(root.process, root.space, lambda: float(next(times_s)))
    facet = root.facets["objects"]
    assert isinstance(facet, ObjectsFacet)
    watched.on_census, facet._watches = facet._watches[0].on_census, [watched]
    yield watch
    session.close()


def line_of(text: str) -> int:
    return (TARGETS / "holders.py").read_text().splitlines().index(f"    {text}") + 1


@pytest.mark.bpf
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("class", "Cache.entries.append(Item())"),
        ("deque", "DEQUE.append(Item())"),
        ("dict", 'UNBOUNDED["key", len(UNBOUNDED)] = Item()'),
    ],
)
def test_who_enlarges_it(suspect_of: Callable[[str], TypeSuspect], kind: str, line: str) -> None:
    suspect = suspect_of(f"{kind} 300")
    assert (suspect.grower.function, suspect.grower.line) == (f"keep_{kind}", line_of(line))
    assert suspect.native is None


@pytest.mark.bpf
def test_memory_of_extensions_belongs_to_objects(suspect_of: Callable[[str], TypeSuspect]) -> None:
    """Each stream of zlib has some kilobytes that no count of objects sees."""
    suspect = suspect_of("stream 100")
    native = suspect.native
    assert suspect.name == "zlib.Decompress"
    each_bytes = native.bytes_per_min / (100 * 12)
    assert 7000 < each_bytes < 8000
    assert each_bytes.is_integer()
    # The first streams have other stacks, until the interpreter calls functions without C.
    assert native.size_bytes == pytest.approx(each_bytes * 100 * LOOKS, rel=0.02)
    assert suspect.bytes_per_min > native.bytes_per_min
    line = line_of("STREAMS.append(zlib.decompressobj())")
    assert (native.caller.function, native.caller.line) == ("keep_stream", line)


@pytest.mark.bpf
def test_the_section_of_reports(targets: Targets) -> None:
    target = targets.start(PYTHON, TARGETS / "holders.py")
    target.ask("dict 1000")

    def section(*options: str) -> dict[str, Any]:
        options = ("--json", "--count", "1", "--show", "objects", *options)
        done = run_tracelloc("-p", target.pid, *options)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[0])["objects"]
        return found

    found = section()
    assert found["trouble"] is None
    assert {row["type"]: row["objects"] for row in found["types"]}[ITEM] == 1000
    refused = section("--no-search")
    assert "not counted" in refused["trouble"]
    assert "types" not in refused
