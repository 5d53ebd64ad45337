"""What a process has in memory, what limits it, and what is said of both."""

import ctypes
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands import background
from tests.unit.events import A, records
from tests.unit.leaks import watched
from tests.unit.reports import text_report
from tests.unit.show.presentation.test_views import snapshot_of
from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.heap.usable import main_library
from tracelloc.model.blocks import ReadSizes, UsableSizes
from tracelloc.model.process import (
    FoundLibrary,
    MallocLibrary,
    MemoryLimit,
    MemoryUsage,
    ResidentMemory,
)
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.process import residency
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.residency import Residency, kept_bytes, read_pss, read_resident
from tracelloc.show.presentation.facts import summary
from tracelloc.show.presentation.processfacts import account, forecast, memory_facts
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.system.memorylimits import closest_limit
from tracelloc.text import format_size

MIB = 1 << 20
HALF_A_MINUTE_NS = 30 * 10**9
NOBODY = MemoryLimit("machine", 1 << 40, 1 << 40)


def process_in(root: Path, cgroup: str, meminfo: str = "") -> Process:
    directory = root / "proc" / "7"
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(cgroup)
    (root / "proc" / "meminfo").write_text(meminfo)
    return Process(7, root / "proc")


def group(path: Path, files: dict[str, object]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_text(f"{content}\n")


MEMINFO = "MemTotal:  4096000 kB\nMemFree: 1 kB\nMemAvailable:  2048000 kB\n"


def test_this_process_as_the_kernel_has_it() -> None:
    process = Process(os.getpid())
    found = read_resident(process)
    rss = process.rss_bytes()
    assert found.rss == pytest.approx(rss, rel=0.2)
    assert 0 < (read_pss(process) or 0) <= rss * 1.2
    limit = closest_limit(process.directory)
    assert 0 < limit.free_bytes <= limit.size_bytes


def test_groups_of_version_2_are_looked_at_up_to_the_root(tmp_path: Path) -> None:
    process = process_in(tmp_path, "0::/shop/api\n", MEMINFO)
    groups = tmp_path / "cgroup"
    group(groups / "shop" / "api", {"memory.max": "max", "memory.current": 100 * MIB})
    machine = MemoryLimit("machine", 4_096_000 << 10, 2_048_000 << 10)
    assert closest_limit(process.directory, groups) == machine
    stat = f"anon 5\ninactive_file {50 * MIB}\nactive_file 7"
    shop = {"memory.max": 512 * MIB, "memory.current": 300 * MIB, "memory.stat": stat}
    group(groups / "shop", shop)
    assert closest_limit(process.directory, groups) == MemoryLimit(
        "cgroup", 512 * MIB, 262 * MIB + 7
    )


def test_groups_of_version_1(tmp_path: Path) -> None:
    process = process_in(tmp_path, "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/\n", MEMINFO)
    groups = tmp_path / "cgroup"
    unlimited = 9223372036854771712
    for name, limit, usage in (("a/b", unlimited, 5), ("a", 64 * MIB, 80 * MIB)):
        files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage}
        group(groups / "memory" / name, files)
    assert closest_limit(process.directory, groups) == MemoryLimit("cgroup", 64 * MIB, 0)


def test_nothing_that_can_be_read_is_no_limit(tmp_path: Path) -> None:
    process = process_in(tmp_path, "0::/../elsewhere\nnonsense\n", "MemAvailable: no\n")
    found = closest_limit(process.directory, tmp_path / "none")
    assert found is None or found.what == "machine"


def test_growth_of_a_real_process_is_seen_and_kept_when_it_ends() -> None:
    program = "print(flush=True); input(); kept = b'x' * (32 << 20); print(flush=True); input()"
    pipe = subprocess.PIPE
    with background(sys.executable, "-c", program, stdin=pipe, stdout=pipe, bufsize=0) as child:
        child.stdout.readline()
        residency = Residency(Process(child.pid))
        child.stdin.write(b"\n")
        child.stdout.readline()
        memory = residency.read_usage()
        assert memory.now.anonymous - memory.start.anonymous == pytest.approx(32 * MIB, rel=0.1)
        assert (memory.pss_bytes or 0) >= 32 * MIB
    assert residency.read_usage() == memory


def test_pages_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were written to, whatever else is mapped; no more are looked at than is said."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, 8 * MIB, flags=flags) as room, mmap.mmap(-1, MIB, flags=flags) as small:
        ranges = []
        for mapped, written in ((room, 3 * MIB), (small, MIB)):
            mapped.madvise(mmap.MADV_NOHUGEPAGE)
            mapped.write(b"x" * written)
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
            ranges.append((start, start + len(mapped)))
        me = Process(os.getpid())
        assert kept_bytes(me, ranges) == 4 * MIB
        assert kept_bytes(me, []) == 0
        assert Residency(me).read_usage(ranges).mapped_bytes == 4 * MIB
        monkeypatch.setattr(residency, "MOST_PAGES", 2 * MIB // mmap.PAGESIZE)
        assert kept_bytes(me, ranges) == 2 * MIB
        assert kept_bytes(Process(2**22 - 1), ranges) is None


def with_memory(
    end_s: float = 100.0,
    *,
    anonymous: int = 0,
    files: int = 0,
    limit: MemoryLimit | None = NOBODY,
    history: tuple[tuple[int, int], ...] = (),
) -> Snapshot:
    """A snapshot of a process that has grown so since the start."""
    start = ResidentMemory(64 * MIB, 8 * MIB, 0, 0)
    now = ResidentMemory(64 * MIB + anonymous, 8 * MIB + files, 0, 0)
    return replace(watched(end_s).snapshot(), memory=MemoryUsage(now, start, None, limit, history))


def sentence(snapshot: Snapshot) -> str:
    return account(snapshot).sentence


def held_by(snapshot: Snapshot, size_bytes: int) -> Snapshot:
    """The same with one more stack's worth of live bytes."""
    totals = snapshot.totals
    allocated = totals.allocated_bytes.copy()
    allocated[1] += size_bytes
    return replace(snapshot, totals=replace(totals, allocated_bytes=allocated))


@pytest.mark.parametrize(
    ("grown", "said"),
    [
        ({"anonymous": 10 * MIB}, "anonymous memory outside of them has grown by"),
        ({"files": 10 * MIB}, "resident pages of mapped files have grown by 10.0 MiB"),
    ],
)
def test_growth_elsewhere_is_named(grown: dict[str, int], said: str) -> None:
    found = sentence(with_memory(**grown))  # type: ignore[arg-type]
    assert "2 % of it in traced blocks" in found
    assert said in found


def test_growth_is_explained() -> None:
    snapshot = with_memory(anonymous=10 * MIB)
    mapped = replace(snapshot, memory=replace(snapshot.memory, mapped_bytes=9 * MIB))
    share = (snapshot.live_bytes + 9 * MIB) / (10 * MIB)
    assert sentence(mapped) == (
        f"RSS 82.0 MiB, +10.0 MiB since tracing began, {100 * share:.0f} % of it in traced blocks "
        "and mappings"
    )
    assert account(mapped).traced_share == pytest.approx(share)
    assert memory_facts(mapped)["mapped_bytes"] == 9 * MIB
    few = replace(snapshot, memory=replace(snapshot.memory, mapped_bytes=4096))
    assert sentence(few).endswith("fragmentation, malloc caches or another malloc library")
    snapshot = held_by(with_memory(anonymous=10 * MIB), 8 * MIB)
    share = snapshot.live_bytes / (10 * MIB)
    assert sentence(snapshot) == (
        f"RSS 82.0 MiB, +10.0 MiB since tracing began, {100 * share:.0f} % of it in traced blocks"
    )
    assert sentence(with_memory()) == (
        "RSS 72.0 MiB, +0 B since tracing began, "
        f"{format_size(with_memory().live_bytes)} in traced blocks"
    )
    assert "more than RSS has grown" in sentence(held_by(with_memory(), 30 * MIB))
    assert "more than RSS has grown" in sentence(held_by(with_memory(anonymous=5 * MIB), 30 * MIB))
    assert "-4.00 MiB since" in sentence(with_memory(files=-4 * MIB))


GLIBC = FoundLibrary("malloc", "/lib/libc.so.6", ("malloc",), (), MallocLibrary.GLIBC)


def test_what_allocators_add() -> None:
    """1 block of 2,000 bytes and 40 of 4,096 lie in chunks of 2,016 and 4,112 bytes."""
    snapshot = with_memory(100.0)
    assert account(snapshot).overhead_bytes is None
    known = account(replace(snapshot, allocators=(GLIBC,)))
    counts = snapshot.totals.live_count
    sessions = int(counts[3:].sum())
    # Blocks of 100 bytes lie in chunks of 112.
    assert known.overhead_bytes == 40 * 16 + sessions * 16 + int(counts[1]) * 12
    own = replace(GLIBC, family="jemalloc", library=MallocLibrary.JEMALLOC)
    assert account(replace(snapshot, allocators=(GLIBC, own))).overhead_bytes is None
    # jemalloc's classes for 100, 2,000 and 4,096 bytes are 112, 2,048 and 4,096; musl: unknown.
    snapshot = with_memory(100.0)
    jemalloc = replace(GLIBC, file="/lib/libjemalloc.so.2", library=MallocLibrary.JEMALLOC)
    known = account(replace(snapshot, allocators=(GLIBC, jemalloc)))
    counts = snapshot.totals.live_count
    assert known.overhead_bytes == int(counts[1]) * 12 + int(counts[3:].sum()) * 48
    musl = replace(GLIBC, file="/lib/ld-musl-x86_64.so.1", library=MallocLibrary.MUSL)
    assert account(replace(snapshot, allocators=(musl,))).overhead_bytes is None
    # A stack's blocks of 1 and 1,999 bytes, in chunks of 32 and 2,016 bytes.
    table = LiveTable(Stacks())
    table.apply(records([(A, 16 * n, 1 + 1998 * (n % 2), 0, 1) for n in range(1, 100_001)]))
    usable = UsableSizes(main_library([GLIBC]), ReadSizes())
    taken = replace(
        snapshot_of(table, wanted=SnapshotRequest(blocks=True)), usable=usable, allocators=(GLIBC,),
        memory=with_memory(anonymous=120 * MIB).memory,
    )  # fmt: skip
    found = account(taken)
    assert found.overhead_bytes == 50_000 * (32 + 2016 - 2000)
    assert found.sentence.endswith(
        ", 81 % of it in traced blocks, 2.29 MiB of it overhead of the malloc library"
    )
    # By means: 1,000 bytes in chunks of 1,008.
    assert account(replace(taken, usable=None)).overhead_bytes == 100_000 * 8


def test_forecasts() -> None:
    snapshot = with_memory(400.0, limit=MemoryLimit("cgroup", 100 * MIB, 10 * MIB))
    ahead = forecast(snapshot)
    rate = sum(s.judgement.rate_bytes_per_min for s in snapshot.findings.suspects)
    assert (ahead.by_leaks, ahead.rate_bytes_per_min) == (True, rate)
    assert ahead.left_s == pytest.approx(10 * MIB / rate * 60)
    assert "the cgroup's limit of 100 MiB is reached in 3 h 14 m" in ahead.sentence
    assert f"==> {ahead.sentence}" in list(text_report(snapshot, watched(400.0).namer, 1))
    facts = memory_facts(with_memory(400.0, limit=MemoryLimit("cgroup", 100 * MIB, 10 * MIB)))
    assert facts["limit"] == "cgroup"
    assert facts["limit_reached_in_s"] > 3 * 3600
    assert facts["growth_bytes"] == 0
    assert summary(watched(400.0).snapshot())["memory"] == {}
    past = tuple((n * HALF_A_MINUTE_NS, n * MIB) for n in range(10))
    limit = MemoryLimit("machine", 1 << 30, 60 * MIB)
    ahead = forecast(with_memory(100.0, limit=limit, history=past))
    assert (ahead.by_leaks, round(ahead.rate_bytes_per_min)) == (False, 2 * MIB)
    assert ahead.left_s == pytest.approx(1800)
    assert forecast(with_memory(100.0, limit=limit, history=past[:2])) is None, "too short a time"
    falling = tuple((time_ns, -held) for time_ns, held in past)
    assert forecast(with_memory(100.0, limit=limit, history=falling)) is None
    assert forecast(with_memory(400.0, limit=None)) is None
    assert forecast(with_memory(400.0)) is None, "more than a month"


@pytest.mark.parametrize(("free_mib", "is_said"), [(390, True), (410, False)])
def test_forecast_reaches_no_further_than_what_was_seen(free_mib: int, is_said: bool) -> None:
    """2 MiB a minute were seen for two minutes: at most 200 minutes ahead."""
    past = tuple((n * HALF_A_MINUTE_NS, n * MIB) for n in range(9))
    limit = MemoryLimit("machine", 1 << 30, free_mib * MIB)
    assert (forecast(with_memory(100.0, limit=limit, history=past)) is not None) is is_said
