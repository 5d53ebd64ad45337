"""What reports say of the parts of resident memory."""

from dataclasses import replace
from typing import Any

from tests.unit.memoryusages import MIB, arena, usage
from tests.unit.show.presentation.test_memory import with_memory
from tracelloc.model.blocks import BlockSum
from tracelloc.model.heapusage import HeapUsage, HeapUsages, MemoryPart, PinnedPages, RuntimeFigures
from tracelloc.model.process import MallocLibrary
from tracelloc.show.presentation.alerts import alert_of
from tracelloc.show.presentation.memoryparts import (
    account_age,
    account_facts,
    account_sentences,
    kept_sentences,
    part_lines,
)
from tracelloc.show.presentation.processfacts import account
from tracelloc.snapshots.snapshot import Snapshot


def walked(now: HeapUsage, first: HeapUsage) -> Snapshot:
    """A snapshot whose heap was walked, and has grown by 100 MiB by the kernel's figures."""
    snapshot = with_memory(anonymous=100 * MIB)
    now = replace(now, time_s=snapshot.time_s)
    usages = {"heap": HeapUsages(now, first)}
    return replace(snapshot, facets=usages, rss_bytes=now.account.own_bytes)


def test_growth_is_named() -> None:
    first = usage(in_use=300, files=2)
    found = account(walked(usage(in_use=20, free=378, top=2, files=2), first))
    assert found.sentence == (
        "RSS 402 MiB, +100 MiB since tracing began: +378 MiB freed, between blocks in use, "
        "-280 MiB heap blocks in use"
    )
    assert found.traced_share == 1.0
    found = account(walked(usage(in_use=20, tracelloc=19), usage(in_use=20)))
    assert found.sentence == "RSS 20.0 MiB, 0 B since tracing began"
    assert list(part_lines(usage(in_use=20, tracelloc=19).account))[-1].endswith(
        "RSS; besides, 4.00 KiB of page tables, 19.0 MiB tracelloc's library and probes"
    )
    # A program that tracelloc has launched begins with nothing, not even its code.
    found = account(walked(usage(in_use=2, files=4, data=1), usage()))
    assert found.traced_share == 1.0
    # What its files take is explained, and hides nothing else.
    snapshot = walked(usage(in_use=3, files=10, data=2, other=8), usage())
    assert account(snapshot).traced_share == 15 / 23
    sentence = alert_of(snapshot).sentence
    assert sentence.startswith("35 % of memory growth (34.8 MiB) is memory that the program maps")
    snapshot = walked(usage(in_use=20, stacks=90), usage(in_use=20))
    found = account(snapshot)
    assert found.traced_share < 0.005, "a few traced blocks"
    alert = alert_of(snapshot, found)
    assert alert.sentence.startswith("100 % of memory growth (99.7 MiB) is stacks of threads;")
    now = usage(in_use=20, stacks=90)
    now = replace(now, account=replace(now.account, stacks=12, stack_space_bytes=96 * MIB))
    alert = alert_of(walked(now, usage(in_use=20)))
    assert "is stacks of threads that were never joined; stacks with pthread" in alert.sentence
    mapped = alert_of(walked(usage(in_use=20, other=90), usage(in_use=20)))
    assert "memory that the program maps itself; --mmap traces mappings" in mapped.sentence
    # A program that only maps memory: nothing was allocated, and there is no heap to walk.
    whole = walked(usage(other=120, arenas=()), usage(other=20, arenas=()))
    idle = alert_of(replace(whole, events=0))
    assert "is memory that the program maps itself; --mmap traces mappings" in idle.sentence
    # It uses a malloc library that keeps memory, maybe.
    assert "maps itself, thread stacks or fragmentation" in alert_of(whole).sentence
    now = usage(shared=110, arenas=())
    items = (("memfd:frames\x1b", 100 * MIB), ("small", MIB))
    now = replace(now, account=replace(now.account, items={MemoryPart.SHARED: items}))
    snapshot = with_memory()
    memory = replace(snapshot.memory, now=replace(snapshot.memory.now, shared=100 * MIB))
    snapshot = replace(snapshot, facets={"heap": HeapUsages(now, usage(arenas=()))}, memory=memory)
    alert = alert_of(snapshot)
    assert alert.sentence.endswith(
        " is shared memory, mostly memfd:frames\\x1b; --mmap traces mappings"
    )
    assert alert.short == "100 % of the growth: shared memory: memfd:frames\\x1b"
    traced = alert_of(replace(snapshot, memory=replace(memory, mapped_bytes=0)))
    assert traced.sentence.endswith("; pmap -X PID lists it")


def test_why_memory_is_kept() -> None:
    pinned = PinnedPages(40 * MIB, BlockSum(1400, 90_000), ((56, BlockSum(1300, 83_200)),))
    arenas = tuple(arena(f"arena {n}", 30 * MIB) for n in range(4))
    found = usage(
        in_use=20, free=40, top=60, arenas=arenas, trimmable_bytes=30 * MIB, pinned=pinned
    )
    first, trim, pins, cure = kept_sentences(found)
    assert first == (
        "100 MiB (83 %) of RSS is freed memory that glibc keeps in 4 arenas: 60.0 MiB at the ends "
        "of arenas, 40.0 MiB between blocks in use"
    )
    assert trim == (
        "malloc_trim(0) would return 30.0 MiB to the kernel now; the rest shares pages with blocks "
        "in use, or is at the ends of arenas"
    )
    assert pins == (
        "40.0 MiB lie in pages of which a quarter or less is in use, by 1,400 blocks, most of them "
        "of up to 56 bytes (1,300)"
    )
    assert cure.startswith("MALLOC_ARENA_MAX=2 in the environment may help")
    cached = usage(in_use=20, cached=80, arenas=arenas, trimmable_bytes=0)
    assert "tcache_count=0" in list(kept_sentences(cached))[-1]
    peak = usage(in_use=20, free=80, arenas=arenas, trimmable_bytes=79 * MIB)
    assert "the program can call malloc_trim(0)" in list(kept_sentences(peak))[-1]
    alert = alert_of(replace(with_memory(), facets={"heap": HeapUsages(found, found)}))
    assert alert.short == "100 MiB freed, but kept by glibc"
    jemalloc = usage(in_use=20, free=90, arenas=(arena("all arenas", 0, MallocLibrary.JEMALLOC),))
    assert list(kept_sentences(jemalloc))[-1].startswith("MALLOC_CONF=background_thread:true")
    assert not list(kept_sentences(usage(in_use=5, free=3)))
    assert not list(kept_sentences(usage(in_use=90, free=10)))


def runtime_account(heap: int, before: int = 0) -> HeapUsage:
    """A program of 100 MiB whose Java heap takes ``heap`` MiB, and other items little."""
    found = usage(in_use=10, runtime=heap + 1, other=80 - heap, shared=9)
    items = {
        MemoryPart.RUNTIME: (("Java heap", heap * MIB), ("Java metaspace", MIB)),
        MemoryPart.OTHER: (("glibc: \x1b", (80 - heap) * MIB),),
        MemoryPart.SHARED: (("memfd:a", 4 * MIB), ("memfd:b", 3 * MIB)),
    }
    return replace(found, account=replace(found.account, items=items))


def test_rows_and_tables_of_parts() -> None:
    lines = list(part_lines(runtime_account(60).account, runtime_account(50).account))
    assert [line.split("  ")[-1] for line in lines[1:-1]] == [
        "heap blocks in use",
        "heap of a language runtime: Java heap",
        "other heap of a language runtime",
        "other memory without a file: glibc: \\x1b",
        "shared memory (memfd:a 4.00 MiB, memfd:b 3.00 MiB)",
    ]
    assert "  60.0 MiB   60.0 %    +10.0 MiB  heap of a language runtime: Java heap" in lines
    assert "  1.00 MiB    1.0 %          0 B  other heap of a language runtime" in lines
    facts = account_facts(runtime_account(60))
    assert facts["items"][0] == {"part": "runtime", "name": "Java heap", "bytes": 60 * MIB}
    assert len(facts["items"]) == 5
    snapshot = walked(usage(in_use=90), usage(in_use=20))
    assert account_age(replace(snapshot, rss_bytes=91 * MIB)) == ""
    assert account_age(replace(snapshot, rss_bytes=120 * MIB, time_s=snapshot.time_s + 3)) == (
        " (3 s ago)"
    )
    assert account_age(replace(snapshot, rss_bytes=90 * MIB, time_s=snapshot.time_s + 20)) == (
        " (20 s ago)"
    )
    lines = list(part_lines(usage(in_use=30, files=10).account, usage(in_use=10, files=10).account))
    assert lines == [
        "     bytes   of RSS       change  resident memory",
        "  30.0 MiB   75.0 %    +20.0 MiB  heap blocks in use",
        "  10.0 MiB   25.0 %          0 B  pages of mapped files (libc.so.6 1.00 MiB)",
        "  40.0 MiB             +20.0 MiB  RSS; besides, 4.00 KiB of page tables",
    ]
    lines = list(part_lines(usage(in_use=30).account, usage(in_use=30, free=10).account))
    assert "       0 B    0.0 %    -10.0 MiB  freed, between blocks in use" in lines
    facts = account_facts(usage(in_use=30, cached=1, free=2, top=3, tracelloc=4))
    assert facts["rss_bytes"] == sum(facts["parts"].values()) == 40 * MIB
    assert facts["kept_bytes"] == 6 * MIB


def sentences(first: HeapUsage | None = None, *, time_s: float = 0.0, **fields: Any) -> list[str]:
    found = usage(time_s, in_use=80, stacks=20)
    found = replace(found, account=replace(found.account, **fields))
    return list(account_sentences(found, first))


def test_what_a_jvm_says() -> None:
    figures = RuntimeFigures("Java heap", 3 * MIB, 4 * MIB, 8 * MIB, MIB, 2 * MIB)
    assert sentences(runtime=figures) == [
        (
            "Java heap: 3.00 MiB used, 4.00 MiB of 8.00 MiB committed; metaspace 1.00 MiB used, "
            "2.00 MiB committed, at the last collection"
        )
    ]
    peak = usage(in_use=20, free=80, trimmable_bytes=79 * MIB)
    peak = replace(peak, account=replace(peak.account, runtime=figures))
    assert list(kept_sentences(peak))[-1].startswith(
        "-XX:TrimNativeHeapInterval=5000 makes the JVM"
    )
    assert account_facts(peak)["runtime"]["used_bytes"] == 3 * MIB


def test_stacks_of_threads_and_forks() -> None:
    """Up to 40 MiB of address space are kept for new threads."""
    assert sentences(stacks=5, threads=5, stack_space_bytes=96 * MIB) == []
    assert sentences(stacks=5, threads=1, stack_space_bytes=50 * MIB) == [
        (
            "20.0 MiB in 5 stacks (50.0 MiB of address space), 2 threads live: 4 stacks are kept "
            "for new threads"
        )
    ]
    assert sentences(stacks=12, threads=0, stack_space_bytes=96 * MIB) == [
        (
            "20.0 MiB in 12 stacks (96.0 MiB of address space), 1 thread lives: 12 stacks are of "
            "threads that were never joined"
        )
    ]
    grown = sentences(
        usage(stacks=5), time_s=30.0, stacks=12, threads=0, stack_space_bytes=96 * MIB
    )
    assert "(96.0 MiB of address space), +30.0 MiB a minute, 1 thread lives" in grown[0]
    # It has had 40 of 100 MiB for itself, and has 70 half a minute later.
    first = usage(0.0, in_use=80, stacks=20)
    inherited = {MemoryPart.IN_USE: 60 * MIB}
    first = replace(first, account=replace(first.account, inherited=inherited))
    inherited = {MemoryPart.IN_USE: 28 * MIB, MemoryPart.STACKS: 2 * MIB}
    words = (
        "70.0 MiB of 100 MiB without a file is no longer shared with the parent or its children{}: "
        "copied or new since the fork; still shared: 28.0 MiB in the heap, 2.00 MiB in stacks of "
        "threads"
    )
    assert sentences(first, time_s=30.0, inherited=inherited) == [
        words.format(", +60.0 MiB a minute")
    ]
    assert sentences(first, time_s=9.0, inherited=inherited) == [words.format("")]
    assert sentences(inherited={MemoryPart.IN_USE: 4 * MIB}) == []
