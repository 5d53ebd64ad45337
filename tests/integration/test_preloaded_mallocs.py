"""The preloaded library before other malloc libraries than the C library's: exact, and no harm."""

import json
import os

import pytest

from tests.commands import outcome
from tests.harness import LIBRARIES, PRELOADED, Builder, Target, Targets, run_tracelloc
from tests.integration.test_allocators import PRELOADS, assert_lives, assert_totals
from tests.integration.test_exact import OPERATIONS
from tests.integration.test_launch import PROGRAM, QUIET, by_function, last_report
from tests.integration.test_preloaded import BY_ITSELF, BY_PROBES, books_traced, said, traced

pytestmark = [pytest.mark.bpf, pytest.mark.long]

OTHERS = ("jemalloc", "tcmalloc", "mimalloc")


def file_of(malloc: str) -> str:
    """The name of a malloc library's file, as programs are linked with it."""
    return min(LIBRARIES.glob(PRELOADS[malloc])).name


def linked(malloc: str) -> tuple[str, ...]:
    """The linker's options for a program that has a malloc library."""
    return "-Wl,--no-as-needed", f"-l:{file_of(malloc)}"


def begun(command: list, targets: Targets, preloaded: str) -> Target:
    """A target that has these preloaded, of which ``{ours}`` stands for the library."""
    environment = os.environ | {"LD_PRELOAD": preloaded.format(ours=PRELOADED)}
    return targets.start(*command, env=environment)


@pytest.mark.parametrize(
    ("malloc", "kind"),
    [
        *((malloc, "linked") for malloc in OTHERS),
        ("jemalloc", "preloaded"),
        ("tcmalloc", "shadowed"),
    ],
)
def test_books(builder: Builder, targets: Targets, malloc: str, kind: str) -> None:
    """Also where the C library's malloc comes before another one that the program has."""
    options = () if kind == "preloaded" else linked(malloc)
    program = builder.c("books", "-DNO_PVALLOC", *options)
    behind = {"linked": "", "preloaded": file_of(malloc), "shadowed": "libc.so.6"}[kind]
    preloaded = f"{{ours}}:{behind}"
    target = begun([program, 4, OPERATIONS, 12, 300], targets, preloaded)
    assert_totals(*books_traced(traced(target), target, BY_ITSELF))
    assert target.end() == 0


@pytest.mark.parametrize("malloc", ["glibc", *OTHERS])
def test_operators_that_throw(builder: Builder, targets: Targets, malloc: str) -> None:
    """Exceptions pass, and what follows them is exact."""
    meek = ["meek"] if malloc == "mimalloc" else []
    command = [builder.cpp("operators", "-pthread"), 0, *meek]
    behind = "" if malloc == "glibc" else file_of(malloc)
    target = begun(command, targets, f"{{ours}}:{behind}")
    tracer = traced(target)
    target.ask("go")
    report, books = books_traced(tracer, target, BY_ITSELF)
    assert books["caught"] > 20 or meek
    assert_lives(report, books)
    json.loads(target.ask("more"))
    assert target.end() == 0


def test_jemallocs_own_functions(builder: Builder, targets: Targets) -> None:
    """Resizes in place as well."""
    target = begun([builder.c("prefixed", "-DLINKED", *linked("jemalloc"))], targets, "{ours}")
    assert_lives(*books_traced(traced(target), target, BY_ITSELF))
    assert target.end() == 0


@pytest.mark.parametrize("malloc", ["jemalloc", "mimalloc"])
def test_launched(builder: Builder, malloc: str) -> None:
    program = builder.c("early", *linked(malloc))
    done = run_tracelloc(*QUIET, "--preload", "on", "--", program, 7, status=7)
    assert BY_ITSELF in done.stderr
    assert by_function(last_report(done.stderr)) == PROGRAM


@pytest.mark.parametrize(
    ("flags", "malloc", "preloaded", "why"),
    [
        ((), "glibc", "libjemalloc.so.2:{ours}", "another malloc comes before it"),
        (("-Dmalloc=__libc_malloc",), "glibc", "{ours}", " calls __libc_malloc directly"),
        (("-Dmalloc=mi_malloc",), "mimalloc", "{ours}", " calls mi_malloc directly"),
        (("-Dfree=tc_free",), "tcmalloc", "{ours}", " calls tc_free directly"),
    ],
)  # fmt: skip
def test_calls_past_it_have_probes(
    builder: Builder, targets: Targets, flags: tuple[str, ...],
    malloc: str, preloaded: str, why: str,
) -> None:  # fmt: skip
    with_malloc = () if malloc == "glibc" else linked(malloc)
    program = builder.c("books", "-DNO_PVALLOC", *flags, "-Wno-all", *with_malloc)
    target = begun([program, 4, OPERATIONS, 12, 300], targets, preloaded)
    tracer = traced(target)
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert any(BY_PROBES in line and line.endswith(why) for line in tracer.messages)
    report = tracer.last()
    assert report["live_allocations"] == sum(count for count, _ in books.values())
    assert report["live_bytes"] == sum(size for _, size in books.values())


def test_what_was_opened_before_has_probes(targets: Targets) -> None:
    """By somebody who calls it by its address."""
    code = (
        "import ctypes, sys\n"
        f"late = ctypes.CDLL('{file_of('mimalloc')}')\n"
        "late.malloc.restype = ctypes.c_void_p\n"
        "def answer(word): print(word, flush=True); sys.stdin.readline()\n"
        "answer('ready')\n"
        "blocks = [late.malloc(1234) for _ in range(60)]\n"
        "for block in blocks[:20]: late.free(ctypes.c_void_p(block))\n"
        "answer('done')\n"
    )
    target = begun(["python3", "-c", code], targets, "{ours}")
    tracer = traced(target)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    assert any(BY_PROBES in line and "libmimalloc" in line for line in tracer.messages)
    sizes = [block["size_bytes"] for block in tracer.last()["top_allocations"]]
    assert sizes.count(1234) == 40


def test_libraries_that_call_past_it_later(builder: Builder, targets: Targets) -> None:
    """Probes take over; what it allocated until then may be missing, which is said."""
    plugin = builder.c("plugin", "-shared", "-fPIC", "-Dmalloc=__libc_malloc")
    target = begun([builder.c("libraries", "-ldl"), "once", plugin], targets, "{ours}")
    tracer = traced(target)
    assert said(tracer, BY_ITSELF)
    assert target.ask("go") == "done"
    called = f"the program has loaded a library: {plugin.name} calls __libc_malloc directly"
    tracer.wait_for(BY_PROBES + called)
    assert target.ask("end") == "closed"
    assert tracer.stop() == 0
    gap = tracer.last()["completeness"]["gaps"][0]
    assert (gap["reason"], gap["lost_events"]) == (called, None)


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        ("", ""),
        ("libstdc++.so.6", "_Znwm _ZdlPv __cxa_allocate_exception "),
        ("libjemalloc.so.2", "_Znwm _ZdlPv __cxa_allocate_exception "),
    ],
)
def test_what_nobody_has(builder: Builder, behind: str, found: str) -> None:
    """Operators are not found, and jemalloc's functions work."""
    environment = os.environ | {"LD_PRELOAD": f"{PRELOADED}:{behind}"}
    done = outcome(builder.c("weakly", "-ldl"), env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{found}fails: none\n", "")
