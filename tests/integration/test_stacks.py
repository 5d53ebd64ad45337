"""Call chains that are known from the source come out name by name."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run
from tests.harness import TARGETS, USES_LIBRARY, Builder, Target, Targets, Tracelloc, traced

pytestmark = pytest.mark.bpf


def trace_once(
    target: Target, *options: str
) -> tuple[dict[int, list[dict[str, Any]]], dict[str, Any]]:
    """The stacks by the size of their blocks, and the report, of what "go" allocates."""
    _, report = traced(target, "go", "--top", 100, *options)
    assert report["lost_events"] == 0
    return {b["size_bytes"]: b["stack"] for b in report["top_allocations"]}, report


def symbols(stack: list[dict[str, Any]]) -> list[str | None]:
    """Names innermost first. Below main and thread functions are frames of the C library,
    here one "libc": how many, and whether they have names, depends on the installed libc."""
    names = [frame["symbol"] for frame in stack]
    while names and (names[-1] == "_start" or "libc.so" in (stack[len(names) - 1]["module"] or "")):
        names.pop()
    if len(names) < len(stack):
        names.append("libc")
    return names


def test_c(builder: Builder, targets: Targets) -> None:
    stacks, report = trace_once(targets.start(builder.c("chain")))
    assert symbols(stacks[1111]) == ["innermost", "middle", "outermost", "main", "libc"]
    assert symbols(stacks[2222]) == ["innermost", "middle", "main", "libc"]
    assert symbols(stacks[4096]) == ["recurse"] * 5 + ["main", "libc"]
    assert symbols(stacks[333]) == ["innermost", "middle", "outermost", "in_thread", "libc"]
    assert len(stacks) == report["live_stacks"] == 4
    assert report["truncated_stacks"] == report["broken_stacks"] == 0
    innermost = stacks[1111][0]
    assert innermost["module"].endswith(builder.c("chain").name)
    assert 0 < innermost["offset"] <= innermost["size"]
    # What calls main is filtered, if it has a name.
    assert {frame["hidden"] for frame in stacks[1111][:4]} == {False}
    # Offsets are those of the return address, as addr2line and gdb count them.
    maps = Path(f"/proc/{targets[0].pid}/maps").read_text().splitlines()
    for frame in stacks[1111][:4]:
        low, high = next(
            (int(line.split("-")[0], 16), int(line.split()[0].split("-")[1], 16))
            for line in maps
            if "x" in line.split()[1] and line.endswith(frame["module"])
        )
        assert low < frame["address"] <= high


@pytest.mark.parametrize("flags", [("-O2", "-fomit-frame-pointer"), ("-fno-omit-frame-pointer",)])
def test_twins(targets: Targets, flags: tuple[str, ...]) -> None:
    """Stacks that differ in one word of memory, far up, are told apart each time."""
    _, report = trace_once(targets.c("twins", flags=(*flags,)))
    assert {
        symbols(entry["stack"])[-3]: entry["allocations"] for entry in report["top_allocators"]
    } == {"one": 500, "two": 500, "left": 500, "right": 500}


def test_call_at_the_end_of_a_function(targets: Targets) -> None:
    """The return address of a call that never returns may lie in the next function."""
    stacks, _ = trace_once(targets.c("noreturn", flags=("-O2", "-fno-reorder-functions")))
    assert symbols(stacks[888]) == ["never_returns", "ends_with_a_call", "main", "libc"]
    caller = stacks[888][1]
    assert caller["offset"] == caller["size"]


def test_depths_around_the_limit(targets: Targets) -> None:
    """main, two of libc and _start are four more: 123 recursions fill the 127 frames exactly."""
    depths = 122, 123, 124, 300
    stacks, report = trace_once(targets.c("chain", *depths))
    for size, depth in zip(range(4096, 5000, 64), depths, strict=False):
        names = [frame["symbol"] for frame in stacks[size]]
        assert names[: depth + 1][:127] == (["recurse"] * depth + ["main"])[:127]
        assert len(names) == min(depth + 4, 127) + int(depth > 123)
        assert (names[-1] == "[partial: deeper than --max-frames]") == (depth > 123)
    assert (report["truncated_stacks"], report["broken_stacks"]) == (2, 0)


def test_more_frames(targets: Targets) -> None:
    stacks, report = trace_once(targets.c("chain", 500), "--max-frames", "512")
    assert symbols(stacks[4096]) == ["recurse"] * 500 + ["main", "libc"]
    assert report["truncated_stacks"] == report["partial_allocations"] == 0


def test_frame_pointers_alone(targets: Targets) -> None:
    """The same without call-frame information: one frame of libc's, which has no frame pointer."""
    depths = 120, 125, 126
    stacks, report = trace_once(targets.c("chain", *depths), "--stacks", "fp")
    for size, depth in zip(range(4096, 5000, 64), depths, strict=False):
        names = symbols(stacks[size])
        assert names[:127] == (["recurse"] * depth + ["main", "libc"])[:127]
        assert (len(names) > 127) == (depth > 125)
    assert report["truncated_stacks"] == 1
    assert symbols(stacks[1111]) == ["innermost", "middle", "outermost", "main", "libc"]


def test_call_frame_information_that_cannot_be_read(
    targets: Targets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said why, and what is missing for that; stacks that end there are counted."""
    (tmp_path / "zstandard.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = tmp_path / "chain"
    run(
        "gcc", "-O1", "-g", "-fno-builtin", "-fomit-frame-pointer", "-pthread",
        "-fno-asynchronous-unwind-tables", "-fno-optimize-sibling-calls",
        "-Wl,--compress-debug-sections=zstd", TARGETS / "chain.c", "-o", program,
    )  # fmt: skip
    target = targets.start(program)
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 9)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    assert (
        f"tracelloc: stacks through {program}: frame pointers, for want of call-frame information:"
        " debug information is compressed by zstd: install the Python package zstandard"
    ) in tracer.messages
    report = tracer.last()
    # Different remains of frame pointers make different stacks of the same frames.
    stacks = [one["stack"] for one in report["top_allocators"]]
    assert {stack[0]["symbol"] for stack in stacks} == {"innermost", "recurse"}
    assert {len(stack) for stack in stacks} == {2}
    assert len(stacks) == report["live_stacks"]
    # A stack where the remains are 0 looks like a whole one.
    assert 0 < report["partial_allocations"] <= report["allocations"]


def test_cpp(targets: Targets) -> None:
    stacks, report = trace_once(targets.cpp("chain"))
    assert symbols(stacks[777]) == [
        "operator new(unsigned long)",
        "shop::Shelf<unsigned char, 777>::fill()",
        "shop::Shelf<unsigned char, 777>::operator+=(int)",
        "main",
        "libc",
    ]
    assert symbols(stacks[555]) == [
        "operator new(unsigned long)",
        "shop::Clerk<int>::operator()() const",
        "void* shop::apply<shop::Clerk<int> >(shop::Clerk<int>)",
        "main",
        "libc",
    ]
    # The rules that are shipped hide operator new, and nothing else of these.
    assert [frame["hidden"] for frame in stacks[777]][:4] == [True, False, False, False]
    shelves = [a for a in report["top_allocators"] if a["stack"] == stacks[777]]
    assert [(a["bytes"], a["allocations"]) for a in shelves] == [(2 * 777, 2)]


RUST_CHAINS = {
    "legacy": {
        800: [
            "<chain::store::shelf::Crate<T> as chain::store::shelf::Stock>::stock",
            "chain::store::shelf::restock",
        ],
        4400: ["chain::boxed", "chain::with"],
    },
    "v0": {
        800: [
            "<chain::store::shelf::Crate<u64> as chain::store::shelf::Stock>::stock",
            "chain::store::shelf::restock::<chain::store::shelf::Crate<u64>>",
        ],
        4400: ["chain::boxed", "chain::with::<chain::boxed>"],
    },
}


@pytest.mark.long
@pytest.mark.parametrize("mangling", ["legacy", "v0"])
def test_rust(targets: Targets, mangling: str) -> None:
    """Around the program's own frames there are only the standard library's. Which ones
    depends on its version, and whether they reach main on its having frame pointers."""
    flags = [] if mangling == "legacy" else ["-C", "symbol-mangling-version=v0"]
    stacks, _ = trace_once(targets.rust("chain", flags=(*flags,)))
    assert set(stacks) == {800, 4400}
    for size, chain in RUST_CHAINS[mangling].items():
        names = symbols(stacks[size])
        own = next(n for n, name in enumerate(names) if "chain::" in (name or ""))
        assert all("alloc::" in (name or "") for name in names[:own])
        assert names[own : own + 3] == [*chain, "chain::main"]
        start = [name for name in names[own + 3 :] if name not in ("main", "libc")]
        assert all(
            (name or "").startswith("std::") or " as core::ops::function::" in (name or "")
            for name in start
        )
        filtered = [f["symbol"] for f in stacks[size] if f["hidden"]]
        assert not any("chain::" in (name or "") for name in filtered)
        assert set(start) <= set(filtered)


BUILDS = {
    "static": ["gcc", "-static", "-pthread"],
    "musl": ["musl-gcc", "-pthread"],
    "musl-static": ["musl-gcc", "-static", "-pthread", "-Wl,-u,free"],
}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS.keys())
def test_other_c_libraries(targets: Targets, tmp_path: Path, build: list[str]) -> None:
    program = tmp_path / "chain"
    run(
        *build, "-O1", "-g", "-fno-builtin", "-fomit-frame-pointer", "-fasynchronous-unwind-tables",
        "-fno-optimize-sibling-calls", TARGETS / "chain.c", "-o", program,
    )  # fmt: skip
    stacks, _ = trace_once(targets.start(program))
    names = {size: [frame["symbol"] for frame in stack] for size, stack in stacks.items()}
    assert names[1111][:4] == ["innermost", "middle", "outermost", "main"]
    assert names[333][:4] == ["innermost", "middle", "outermost", "in_thread"]
    assert names[4096][:6] == ["recurse"] * 5 + ["main"]


@pytest.mark.parametrize(("threads", "rounds"), [(3, 10), (1, 2000)])
def test_libraries_opened_and_closed_at_once(builder: Builder, threads: int, rounds: int) -> None:
    """What the preloaded library sends is whole, whichever state of the mappings it is of.

    All of it fits into the memory that is shared, however late it is taken.
    """
    library = builder.c("plugin", "-shared", "-fPIC")
    tracer = Tracelloc(
        "--preload=on", "--json", "--top", 100, "--interval", 60, "--",
        builder.c("libraries"), "beside", rounds, threads, library,
    )  # fmt: skip
    assert tracer.finish() == 0
    report = tracer.last()
    assert {cause: count for cause, count in report["lost"].items() if count} == {}
    kept: Counter[tuple[str | None, ...]] = Counter()
    for entry in report["top_allocators"]:
        names = tuple(symbols(entry["stack"]))
        if names[0] == "keep":
            assert entry["bytes"] in (entry["allocations"] * 100, entry["allocations"] * 200)
            kept[names] += entry["bytes"]
    assert kept == {("keep", "run", "libc"): threads * rounds * (100 + 200)}
    assert report["partial_allocations"] == 0


def test_code_that_stays_mapped_has_whole_stacks_while_libraries_come_and_go(
    builder: Builder, targets: Targets
) -> None:
    """The mappings change more often than they can be read."""
    library, rounds = builder.c("plugin", "-shared", "-fPIC"), 3000
    target = targets.start(builder.c("libraries"), "told", rounds, 1, library)
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 100, "--interval", 60)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    report = tracer.last()
    kept = [each for each in report["top_allocators"] if each["stack"][0]["symbol"] == "keep"]
    assert {tuple(symbols(each["stack"])) for each in kept} == {("keep", "run", "libc")}
    assert sum(each["allocations"] for each in kept) == 2 * rounds
    assert report["partial_allocations"] == 0


TURNS = {"move": 1, "copies": 1, "two": 2}  # Libraries, by how they are opened


def leaks_through_plugins(report: dict[str, Any]) -> dict[tuple[str, ...], int]:
    """Blocks by the names of what kept them: one stack each, wherever the library was."""
    entries = [
        (tuple(symbols(entry["stack"])), entry["allocations"])
        for entry in report["top_allocators"]
        if entry["bytes"] == 4321 * entry["allocations"]
    ]
    assert len(dict(entries)) == len(entries)
    return dict(entries)


@pytest.mark.parametrize("how", TURNS)
@pytest.mark.parametrize("way", ["attached", "preloaded"])
def test_libraries_that_were_closed_keep_their_names(
    builder: Builder, targets: Targets, way: str, how: str
) -> None:
    """Each has gone long before its mappings could be read."""
    rounds = 60
    names = "plugin_inner", "plugin_other"
    libraries = [builder.c("plugin", "-shared", "-fPIC", f"-DINNER={name}") for name in names]
    host = builder.c("libraries")
    words = rounds, how.replace("two", "stay"), *libraries[: TURNS[how]]
    options = "--json", "--top", 100, "--interval", 60
    if way == "attached":
        target = targets.start(host, "turns", *words)
        tracer = Tracelloc("-p", target.pid, *options)
        assert target.ask("go") == "done"
        assert tracer.stop() == 0
    else:
        tracer = Tracelloc("--preload=on", *options, "--", host, "silent", *words)
        assert tracer.finish() == 0
    report = tracer.last()
    assert {cause: count for cause, count in report["lost"].items() if count} == {}
    if (way, how) == ("attached", "copies"):
        # Where no name leads to a file, nobody can read it once it is unmapped. (Programs wait for
        # the reader of a library's events.)
        assert report["partial_allocations"] > (0 if USES_LIBRARY else rounds // 2)
        return
    assert leaks_through_plugins(report) == {
        (name, "plugin_allocate", "use", "take_turns", "main", "libc"): rounds // TURNS[how]
        for name in names[: TURNS[how]]
    }
    assert report["partial_allocations"] == 0
