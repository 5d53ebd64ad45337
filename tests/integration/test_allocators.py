"""Whatever malloc library a process has, live figures equal the target's own books."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import (
    LIBRARIES,
    PATIENCE_S,
    TARGETS,
    Builder,
    Target,
    Targets,
    Tracelloc,
    traced,
)

pytestmark = [pytest.mark.bpf, pytest.mark.long]

PRELOADS = {
    "glibc": "",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.*",
}
OPERATIONS = 6000


def preloaded(allocator: str) -> dict[str, str]:
    """The environment with an allocator's library in it."""
    pattern = PRELOADS[allocator]
    if not pattern:
        return dict(os.environ)
    return {**os.environ, "LD_PRELOAD": str(min(LIBRARIES.glob(pattern)))}


def files_of(report: dict) -> set[str]:
    return {Path(found["file"]).name.split(".so")[0] for found in report["malloc_libraries"]}


def assert_no_loss(report: dict) -> None:
    assert report["lost_events"] == 0
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    assert report["unmatched_frees"] == 0
    assert report["allocations"] - report["frees"] == report["live_allocations"]


def assert_lives(report: dict, books: dict[str, int]) -> None:
    """What the target says that it keeps, and nothing lost."""
    assert_no_loss(report)
    assert (report["live_allocations"], report["live_bytes"]) == (books["blocks"], books["bytes"])


def assert_totals(report: dict, books: dict[str, list[int]]) -> None:
    assert_no_loss(report)
    assert report["live_allocations"] == sum(count for count, _ in books.values())
    assert report["live_bytes"] == sum(size for _, size in books.values())


@pytest.mark.parametrize(
    ("allocator", "attach"),
    [("jemalloc", "auto"), ("tcmalloc", "auto"), ("mimalloc", "auto"), ("tcmalloc", "perf")],
)
def test_every_function_of_malloc(targets: Targets, allocator: str, attach: str) -> None:
    target = targets.c(
        "books", 4, OPERATIONS, 5, 1500, flags=("-DNO_PVALLOC",), env=preloaded(allocator)
    )
    tracer = Tracelloc("-p", target.pid, "--json", "--attach", attach)
    books = json.loads(target.ask("run"))
    report = tracer.final_report()
    assert_totals(report, books)
    assert any(name.startswith(f"lib{allocator}") for name in files_of(report))
    assert any(
        f"lib{allocator}" in line and "malloc libraries: " in line for line in tracer.messages
    )
    assert target.end() == 0


@pytest.mark.parametrize(
    ("allocator", "limit_mib"),
    [
        ("glibc", 0),
        ("jemalloc", 0),
        ("tcmalloc", 0),
        ("jemalloc", 700),
        ("tcmalloc", 700),
        ("mimalloc", 0),
    ],
)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="alone"),
        pytest.param(("--follow",), marks=pytest.mark.long, id="with-descendants"),
    ],
)
def test_operators_that_throw(
    builder: Builder, targets: Targets, allocator: str, limit_mib: int, more: tuple[str, ...]
) -> None:
    """C++ under each of them lives on, traced, when it catches std::bad_alloc."""
    meek = ["meek"] if allocator == "mimalloc" else []
    command = [builder.cpp("operators", "-pthread"), limit_mib, *meek]
    # The kernel asks everybody's probes in that file: others' must not put return probes there.
    beside, target = (Target(command, env=preloaded(allocator)) for _ in range(2))
    targets.extend([beside, target])
    other = Tracelloc("-p", beside.pid, "--json")
    tracer = Tracelloc("-p", target.pid, "--json", *more)
    target.ask("go")
    books = json.loads(target.ask("again"))
    assert tracer.stop() == 0
    assert other.stop() == 0
    report = tracer.last_of(target.pid)
    assert books["caught"] > 20 or meek
    assert_lives(report, books)
    # Untraced it goes on as well.
    json.loads(target.ask("more"))
    assert target.end() == 0


def test_prefixed_jemalloc(targets: Targets) -> None:
    """Found by its names' ending, as in Rust programs; with resizes in place."""
    books, report = traced(targets.c("prefixed"), "go")
    assert_lives(report, books)
    (found,) = [found for found in report["malloc_libraries"] if found["name"] == "jemalloc"]
    assert "_rjem_sdallocx" in found["functions"]
    assert "_rjem_nallocx" not in found["functions"]


@pytest.mark.parametrize("flags", [[], ["-static"]], ids=["dynamic", "static"])
def test_musl(builder: Builder, targets: Targets, flags: list[str]) -> None:
    program = builder.c("books", "-DNO_PVALLOC", *flags, compiler="musl-gcc")
    target = targets.start(program, 4, OPERATIONS, 5, 1500)
    tracer = Tracelloc("-p", target.pid, "--json")
    books = json.loads(target.ask("run"))
    assert_totals(tracer.final_report(), books)


POOLS = """
[[allocator]]
name = "slices"
module = "pool-*"
functions = [
    { name = "pool_take", kind = "alloc", size = 3 },
    { name = "pool_give", kind = "free", block = 2 },
    { name = "node_take", kind = "alloc", size_bytes = 112 },
]
[[allocator]]
name = "chunks"
functions = [
    { name = "chunk_t*", kind = "calloc", throws = false },
    { name = "chunk_give", kind = "free" },
]
"""


def test_pools_that_the_user_names(targets: Targets, tmp_path: Path) -> None:
    """Their blocks count, each once, be their memory from malloc or not."""
    names = tmp_path / "pools.toml"
    names.write_text(POOLS)
    books, report = traced(targets.c("pool"), "go", "--top", 10, "--allocators", names)
    assert_totals(report, books)
    # One stack each: where `work` calls them.
    seen = sorted([site["allocations"], site["bytes"]] for site in report["top_allocators"])
    assert seen == sorted(books.values())
    assert {found["name"] for found in report["malloc_libraries"]} == {"slices", "chunks", "malloc"}


def test_sizes_that_cannot_be_are_left_out_and_counted(targets: Targets, tmp_path: Path) -> None:
    """The pool's first argument is a pointer."""
    names = tmp_path / "pools.toml"
    names.write_text(POOLS.replace("size = 3", "size = 1"))
    books, report = traced(targets.c("pool"), "go", "--allocators", names)
    blocks, _ = books.pop("pool_take")
    assert report["lost"]["impossible_sizes"] > blocks > 0
    assert report["live_allocations"] == sum(count for count, _ in books.values())
    assert report["live_bytes"] == sum(size for _, size in books.values())


def test_exceptions_pass_through_a_pool_of_the_users(targets: Targets, tmp_path: Path) -> None:
    names = tmp_path / "pools.toml"
    names.write_text(
        '[[allocator]]\nfunctions = [{ name = "*cellar_take*", kind = "alloc", size = 2 }]\n'
    )
    target = targets.cpp("cellar")
    books, report = traced(target, "go", "--allocators", names)
    assert books["caught"] == 7
    assert_lives(report, books)
    assert target.end() == 0


def test_allocator_that_is_loaded_later(targets: Targets, tmp_path: Path) -> None:
    """Nobody calls malloc after it is there: the loader alone tells."""
    library = tmp_path / "liblate.so"
    run("gcc", "-shared", "-fPIC", "-O1", "-Dmain=unused", "-o", library, TARGETS / "prefixed.c")
    code = (
        "import ctypes, sys\n"
        "def answer(word): print(word, flush=True); sys.stdin.readline()\n"
        "answer('ready')\n"
        f"late = ctypes.CDLL('{library}')\n"
        "answer('loaded')\n"
        "late._rjem_mallocx.restype = ctypes.c_void_p\n"
        "blocks = [late._rjem_mallocx(1234, 0) for _ in range(60)]\n"
        "for block in blocks[:20]: late._rjem_free(ctypes.c_void_p(block))\n"
        "answer('done')\n"
    )
    target = targets.start("python3", "-c", code)
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 500, "--interval", "200ms")
    assert target.ask("load") == "loaded"
    tracer.wait_for("liblate.so (11 functions)")
    assert target.ask("go") == "done"
    report = tracer.final_report()
    assert [block["size_bytes"] for block in report["top_allocations"]].count(1234) == 40
    assert report["lost_events"] == 0


def test_python_under_other_allocators(targets: Targets) -> None:
    """Blocks of a telling size, made through ctypes in a large program."""
    code = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype = ctypes.c_void_p\n"
        "libc.free.argtypes = [ctypes.c_void_p]\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "kept = [libc.malloc(123457) for _ in range(500)]\n"
        "for block in kept[::2]: libc.free(block)\n"
        "print('done', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    for allocator in ("tcmalloc", "mimalloc"):
        target = targets.start("python3", "-c", code, env=preloaded(allocator))
        _, report = traced(target, "go", "--top", 400)
        assert [block["size_bytes"] for block in report["top_allocations"]].count(123457) == 250
        assert report["lost_events"] == 0
        assert target.end() == 0


def test_redis_on_its_own_jemalloc(tmp_path: Path) -> None:
    """Values of a telling size: as many blocks as keys, before and after some are deleted."""
    server, client = shutil.which("redis-server"), shutil.which("redis-cli")
    assert server is not None
    assert client is not None
    socket = tmp_path / "redis.sock"
    process = subprocess.Popen(
        [server, "--port", "0", "--unixsocket", socket, "--save", "", "--daemonize", "no"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )  # fmt: skip
    try:
        for line in process.stdout:
            if b"ready to accept" in line.lower():
                break
        tracer = Tracelloc("-p", process.pid, "--json", "--top", 5000)
        commands = "".join(f"SET key:{n} {'v' * 7000}\n" for n in range(600))
        commands += "".join(f"DEL key:{n}\n" for n in range(0, 600, 3))
        subprocess.run(
            [client, "-s", socket], input=commands.encode(), stdout=subprocess.DEVNULL,
            check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        report = tracer.final_report()
        # A string of Redis's: a head of five bytes, the characters, and a zero.
        sizes = [block["size_bytes"] for block in report["top_allocations"]]
        assert sizes.count(5 + 7000 + 1) == 400
        assert report["lost_events"] == 0
        assert "libjemalloc" in files_of(report)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()
