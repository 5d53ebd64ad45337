"""Accounts of resident memory, against the kernel's figures and programs of known parts."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness import LIBRARIES, Target, Targets, Tracelloc, run_tracelloc, wait_until
from tests.integration.test_heapwalk import READ, await_pauses, resident_bytes, threads_in
from tracelloc.model.heapusage import HeapUsage, MemoryAccount, MemoryPart
from tracelloc.record.heapwalk.measuring import measure_memory
from tracelloc.record.process.procfs import Process
from tracelloc.show.presentation.memoryparts import account_sentences

MIB = 1 << 20
BLOCKS, BLOCK, CHUNK, EVERY = 20_000, 1000, 1008, 32
ATTEMPTS = 10
TCMALLOC = next(LIBRARIES.glob("libtcmalloc_minimal.so.*")).name
MIMALLOC = next((path.name for path in LIBRARIES.glob("libmimalloc.so.*.*")), "libmimalloc.so")


def usage_of(pid: int) -> HeapUsage:
    """The account, which equals the kernel's sum before and after it was made.

    A program that has just said that it is ready may touch another page before it waits.
    """
    for _ in range(ATTEMPTS):
        before, found, after = (
            resident_bytes(pid),
            measure_memory(Process(pid)),
            resident_bytes(pid),
        )
        if before == after:
            break
    assert found.account.rss_bytes == before == after
    return found


@pytest.fixture
def parts(targets: Targets, tmp_path: Path) -> Target:
    data = tmp_path / "mapped"
    data.write_bytes(bytes(6 * MIB))
    target = targets.c("memoryparts", str(data), flags=("-pthread",))
    await_pauses(target.pid, 4)  # until then, its threads may still fault code in
    return target


def near(size_bytes: int, wanted: int, more: int = 128 << 10) -> bool:
    """At least as much as wanted, and not much more."""
    return wanted <= size_bytes <= wanted + more


def test_known_parts(parts: Target) -> None:
    usage = usage_of(parts.pid)
    found, items = usage.account.parts, usage.account.items
    assert found[MemoryPart.IN_USE] >= BLOCKS * CHUNK
    assert near(found[MemoryPart.IN_USE], BLOCKS * CHUNK)
    assert near(found[MemoryPart.STACKS], 4 * MIB, 256 << 10)
    assert near(found[MemoryPart.DATA], 8 * MIB, 512 << 10)
    assert near(dict(items[MemoryPart.DATA])[Path(parts.process.args[0]).name], 8 * MIB, 256 << 10)  # type: ignore[index]
    own = "memfd:parts, of this process only"
    assert dict(items[MemoryPart.SHARED])[own] == found[MemoryPart.SHARED] == 2 * MIB
    assert near(found[MemoryPart.OTHER], 7 * MIB)
    assert dict(items[MemoryPart.FILES])["mapped"] == 6 * MIB
    assert usage.account.page_table_bytes > 0


def test_freed_memory_that_is_kept(parts: Target) -> None:
    before = usage_of(parts.pid)
    parts.ask("free")
    usage = usage_of(parts.pid)
    freed = BLOCKS - -(-BLOCKS // EVERY)
    assert before.account.kept_bytes < 256 << 10
    kept = usage.account.kept_bytes - before.account.kept_bytes
    assert abs(kept - freed * CHUNK) <= 4096
    # Each of the blocks that are left is alone in its page, or in two.
    pinned = usage.pinned
    assert abs(pinned.blocks.count - BLOCKS // EVERY) <= 8
    assert pinned.largest[0][0] == BLOCK
    trimmable = usage.trimmable_bytes
    assert trimmable is not None
    rss_bytes = resident_bytes(parts.pid)
    parts.ask("trim")
    assert rss_bytes - resident_bytes(parts.pid) == trimmable
    after = usage_of(parts.pid)
    assert after.trimmable_bytes == 0
    # What a trim can't return lies in pages that blocks pin, and at their edges.
    assert after.account.kept_bytes < pinned.kept_bytes + before.account.kept_bytes + 256 * 4096


def reports_of(target: Target, *options: str) -> list[dict[str, Any]]:
    done = run_tracelloc(
        "-p", target.pid, "--json", "--json-full", "--count", "1", *options, status=0
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.bpf
def test_a_trace_has_the_account(parts: Target) -> None:
    rss_bytes = resident_bytes(parts.pid)
    (report,) = reports_of(parts)
    account = report["memory"]["account"]
    assert sum(account["parts"].values()) == account["rss_bytes"]
    # The kernel maps a page for the probes.
    assert 0 <= account["rss_bytes"] - rss_bytes <= 256 << 10
    assert near(account["parts"]["in_use"], BLOCKS * CHUNK)


@pytest.mark.bpf
def test_who_pins_pages(parts: Target) -> None:
    """The blocks from before tracing that are left, one in 32, are the stack that keeps most."""
    parts.ask("free")
    (report,) = reports_of(parts, "--earlier", "on")
    pins = report["pinned_by"]
    assert abs(pins[0]["allocations"] - BLOCKS // EVERY) <= 8
    assert pins[0]["kept_bytes"] <= report["memory"]["account"]["pinned_bytes"]
    assert pins[0]["kept_bytes"] >= 0.9 * report["memory"]["account"]["pinned_bytes"]
    assert pins[0]["stack"][0]["symbol"] == "blocks of 1,000 B"


@pytest.mark.bpf
def test_text_has_it_once(parts: Target) -> None:
    title = "==> resident memory:"
    tracer = Tracelloc("-p", parts.pid, "--text", "--interval", "0.3")
    tracer.await_text(title)
    assert tracer.stop() == 0
    # As soon as it is known, and in the last report, which is complete.
    assert tracer.text().count(title) == 2


@contextmanager
def running(*command: str, **environment: str) -> Iterator[int]:
    """A program that is idle; it has said so."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.PIPE,
        env=os.environ | environment,
    ) as process:  # fmt: skip
        assert process.stdout.readline()
        wait_until(lambda: threads_in(process.pid, READ) == 1)
        yield process.pid
        process.kill()


PYTHON = (
    "import sys\nfew = [bytes(n % 3000) for n in range(20000)]\nmany = {n: str(n) for n in "
    "range(50000)}\ndel few[::2]\nprint('idle', flush=True)\nsys.stdin.read()\n"
)
PERL = '$| = 1; $a{$_} = "x" x ($_ % 500) for 1..50000; print "idle\\n"; <STDIN>'


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ([sys.executable, "-c", PYTHON], {}),
        ([sys.executable, "-c", PYTHON], {"PYTHONMALLOC": "malloc"}),
        (["/usr/bin/perl", "-e", PERL], {"LD_PRELOAD": "libjemalloc.so.2"}),
        (["/usr/bin/perl", "-e", PERL], {"LD_PRELOAD": MIMALLOC}),
        (["/usr/bin/perl", "-e", PERL], {"LD_PRELOAD": TCMALLOC}),
    ],
    ids=["python", "python-malloc", "jemalloc", "mimalloc", "tcmalloc"],
)
def test_parts_add_up(command: list[str], environment: dict[str, str]) -> None:
    with running(*command, **environment) as pid:
        usage = usage_of(pid)
        parts = usage.account.parts
        assert usage.coverage == 1.0
        assert parts[MemoryPart.IN_USE] > 5 * MIB
        is_pymalloc = "python" in command[0] and not environment
        assert (parts.get(MemoryPart.RUNTIME, 0) > 3 * MIB) == is_pymalloc


TWICE = (
    "import mmap, os, sys\n"
    "file = os.memfd_create('twice'); os.ftruncate(file, 4 << 20)\n"
    "maps = [mmap.mmap(file, 4 << 20) for _ in range(2)]\n"
    "maps[0].write(b'a' * (3 << 20)); maps[1].write(b'b' * (2 << 20))\n"
    "if sys.argv[1:] == ['forked'] and not os.fork():\n"
    "  child = mmap.mmap(file, 4 << 20); child[:]; sys.stdin.read()\n"
    "print('idle', flush=True)\nsys.stdin.read()\n"
)


def test_memory_that_is_mapped_twice_counts_once() -> None:
    """The account names it, and tells whether another process maps it, too."""
    with running(sys.executable, "-c", TWICE) as pid:
        account = usage_of(pid).account
    assert account.items[MemoryPart.SHARED] == (("memfd:twice, of this process only", 3 * MIB),)
    assert account.parts[MemoryPart.AGAIN] == 2 * MIB
    with running(sys.executable, "-c", TWICE, "forked") as pid:
        found = wait_until(lambda: usage_of(pid).account.items[MemoryPart.SHARED])
        wait_until(
            lambda: "of this process" not in usage_of(pid).account.items[MemoryPart.SHARED][0][0]
        )
    assert found[0][1] == 3 * MIB


INHERITS = (
    "import os, sys\n"
    "kept = bytearray(b'x' * (32 << 20)); out, into = os.pipe()\n"
    "if (child := os.fork()) == 0:\n"
    "  kept[: 8 << 20] = bytes(8 << 20); os.write(into, b'.'); sys.stdin.read()\n"
    "os.read(out, 1); print(child, flush=True)\nsys.stdin.read()\n"
)


def test_what_a_forked_process_still_shares() -> None:
    """The child has written to 8 of 32 MiB, so that each has those for itself.

    Looking at them, in whatever way, leaves it so: process_vm_readv(2) would make copies.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", INHERITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        child = int(process.stdout.readline())
        for pid in (process.pid, child):
            for command in ("heap", "leaks", "objects"):
                assert "error" not in run_tracelloc(command, "-p", pid).stderr
        for pid in (process.pid, child):
            account = measure_memory(Process(pid)).account
            assert near(account.inherited[MemoryPart.IN_USE], 24 * MIB, 2 * MIB)
            (sentence,) = account_sentences(HeapUsage(0.0, (), account=account))
            assert re.search(
                r"MiB of \d\d\.\d MiB without a file is no longer shared with the parent or its "
                r"children: copied or new since the fork; still shared: 2[45]\.\d MiB in the heap",
                sentence,
            )
        process.kill()
        os.kill(child, signal.SIGKILL)


def test_threads_that_were_never_joined(targets: Targets) -> None:
    target = targets.c("churn", "unjoined")
    target.ask("start 4")
    await_ended_threads(target.pid)
    account = usage_of(target.pid).account
    assert (account.stacks, account.threads) == (4, 0)
    # As many as glibc keeps for new threads
    assert list(account_sentences(HeapUsage(0.0, (), account=account))) == []
    target.ask("start 8")
    await_ended_threads(target.pid)
    done = run_tracelloc("heap", "-p", target.pid, status=0)
    assert re.search(
        r"in 12 stacks \(96\.0 MiB of address space\), 1 thread lives: 12 stacks are of threads "
        r"that were never joined",
        done.stdout,
    )


def await_ended_threads(pid: int) -> None:
    """A thread whose end the program knows of may still be there for a moment."""
    wait_until(lambda: len(Process(pid).thread_ids()) == 1)


JAVA = """public class Kept { public static void main(String[] a) throws Exception {
var kept = new byte[40][]; for (int n = 0; n < 40; n++) kept[n] = new byte[1 << 20];
System.gc(); System.out.println("idle"); System.in.read(); System.out.println(kept.length); } }"""
NODE = (
    "kept = []; for (let n = 0; n < 300000; n++) kept.push({n, text: 'x' + n});\n"
    "console.log('idle', process.memoryUsage().heapTotal); process.stdin.resume();"
)
PHP = (
    "for ($n = 0; $n < 300000; $n++) $kept[] = 'x' . $n; $large = str_repeat('y', 5000000);"
    "echo 'idle ', memory_get_usage(true), \"\\n\"; fgets(STDIN);"
)
RUBY = (
    "$kept = (0...200000).map { |n| 'x' * 30 + n.to_s }; GC.start\n"
    'puts "idle #{GC.stat(:heap_allocated_pages) * 16384}"; $stdout.flush; $stdin.read'
)
ERLANG = (
    'L = lists:seq(1, 1000000), io:format("idle ~p~n", [erlang:memory(total)]), '
    'io:get_line(""), io:format("~p", [length(L)]).'
)
GO = """package main
import ("bufio"; "fmt"; "os"; "runtime")
var kept [][]byte
func main() {
	for n := 0; n < 20000; n++ {
		b := make([]byte, 1000); for i := range b { b[i] = 1 }; kept = append(kept, b) }
	var m runtime.MemStats; runtime.ReadMemStats(&m)
	fmt.Println("idle", m.HeapSys - m.HeapReleased + m.StackSys)
	bufio.NewReader(os.Stdin).ReadString('\\n'); fmt.Println(len(kept)) }
"""


# Title, command ({} is a file with the program), program, and how much of the runtime's own figure
# is resident, at least and at most
RUNTIMES: dict[str, tuple[str, str, str, float, float]] = {
    "node": ("V8 heap", "node -e", NODE, 0.5, 1.01),
    "php": ("PHP heap", "php -r", PHP, 0.8, 1.0),
    "ruby": ("Ruby heap pages", "ruby -e", RUBY, 0.9, 1.01),
    "erl": ("Erlang carriers", "erl -noshell -eval", ERLANG, 0.8, 2.5),
    "go": ("Go heap", "go", GO, 0.8, 1.02),
}


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("node", "php", "go")),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ruby", "erl")),
    ],
)
def test_heaps_of_runtimes(name: str, tmp_path: Path) -> None:
    """The parts add up; the runtime's own figure beside, and hardly anything is left."""
    title, command, program, least, most = RUNTIMES[name]
    words = [*command.split(), program]
    if name == "go":
        (tmp_path / "kept.go").write_text(program)
        words = [str(tmp_path / "kept")]
        subprocess.run(["go", "build", "-o", *words, "kept.go"], cwd=tmp_path, check=True)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told = int(process.stdout.readline().split()[1])
        account = usage_when_idle(process.pid)
        process.kill()
    assert least * told <= dict(account.items[MemoryPart.RUNTIME])[title] <= most * told
    # Ruby has another mapping of 4 MiB, whatever the program does.
    assert account.parts[MemoryPart.OTHER] <= max(0.1 * account.rss_bytes, 4.5 * MIB)


@pytest.mark.nightly
@pytest.mark.parametrize("collector", ["G1", "Serial", "Parallel", "Z", "Shenandoah"])
def test_java(collector: str, tmp_path: Path) -> None:
    (tmp_path / "Kept.java").write_text(JAVA)
    words = ["java", f"-XX:+Use{collector}GC", "-Xmx128m", "Kept.java"]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": tmp_path}
    with subprocess.Popen(words, **options) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"idle\n"
        account = usage_when_idle(process.pid)
        process.kill()
    figures = account.runtime
    assert figures.limit_bytes == 128 * MIB
    assert 40 * MIB <= figures.used_bytes <= figures.committed_bytes <= 128 * MIB
    part = MemoryPart.SHARED if collector == "Z" else MemoryPart.RUNTIME
    names = ("Java heap", "Java heap, of this process only")
    (size_bytes,) = [size for name, size in account.items[part] if name in names]
    assert 40 * MIB <= size_bytes <= figures.committed_bytes
    assert account.parts[MemoryPart.OTHER] <= 0.1 * account.rss_bytes
    assert (account.parts.get(MemoryPart.AGAIN, 0) > 0) == (collector == "Z")


def usage_when_idle(pid: int) -> MemoryAccount:
    """The account once the process has stopped, so that its own threads change nothing."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: Process(pid).state() == "T")
    return usage_of(pid).account
