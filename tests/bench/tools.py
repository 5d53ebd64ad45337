"""The tools that ``make bench`` compares: tracelloc, its peers, and the bounds of both.

A live tool is attached to a running program; a wrapper has to start the program itself.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.allocator import Allocator
from tests.bench.empty import empty_probes
from tests.bench.processes import PATIENCE_S, SkippedError, end, last_words
from tests.harness import PRELOADED, Tracelloc

SETTLE_S = 0.3  # After a peer's probes were seen: it may still be attaching others
ATTEMPTS = 3  # How often a peer is started before it is given up

BPFTRACE_SCRIPT = """
uprobe:{path}:malloc /pid == {pid}/ {{ @size[tid] = arg0; }}
uretprobe:{path}:malloc /pid == {pid} && @size[tid]/ {{
    @block_size[retval] = @size[tid];
    @block_time[retval] = nsecs;
    @bytes[ustack] = sum(@size[tid]);
    delete(@size[tid]);
}}
uprobe:{path}:free /pid == {pid} && @block_size[arg0]/ {{
    delete(@block_size[arg0]);
    delete(@block_time[arg0]);
}}
"""


@dataclass
class Watcher:
    """A tool at work."""

    pid: int | None = None  # Of its process, if it has one that is ours to look at
    # tracelloc's last report, once it has ended.
    report: dict[str, Any] = field(default_factory=dict)


Attach = Callable[[Allocator, Path], AbstractContextManager[Watcher]]


@dataclass(frozen=True)
class Tool:
    """One row of the tables."""

    name: str
    label: str
    command: str | None = None  # What must be installed
    package: str = ""  # Debian's package that has it
    attach: Attach | None = None  # For a live tool
    # For a live tool: words before the program's own that have it prepared.
    starts_with: tuple[str, ...] = ()
    # For a wrapper: the words before the program's own, given a scratch directory.
    wrap: Callable[[Path], list[str]] | None = None

    def why_missing(self) -> str | None:
        """Why it can't be measured, None if its command is there."""
        if self.command is None or shutil.which(self.command, path=_path()):
            return None
        return f"{self.command} is not installed (Debian package {self.package})"


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


@contextmanager
def _nothing(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
    yield Watcher()


def _empty(*, shifted: bool) -> Attach:
    @contextmanager
    def attach(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
        with empty_probes(allocator, shifted=shifted):
            yield Watcher()

    return attach


def _tracelloc(*options: str) -> Attach:
    @contextmanager
    def attach(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
        words = ["-p", str(allocator.pid), "--json", "--interval", "1h", *options]
        try:
            tracer = Tracelloc(*words)
        except (AssertionError, TimeoutError) as error:
            raise SkippedError(f"tracelloc: {error}") from error
        watcher = Watcher(tracer.process.pid)
        try:
            yield watcher
            # Not SIGINT, which programs started in the background may have to ignore.
            tracer.process.terminate()
            tracer.process.wait(PATIENCE_S)
            tracer.finish()
            watcher.report = tracer.last()
        finally:
            end(tracer.process)

    return attach


@contextmanager
def _unread(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
    """tracelloc that is stopped meanwhile: all events go to the spill map."""
    with _tracelloc("--events-size", "64k")(allocator, scratch) as watcher:
        os.kill(watcher.pid, signal.SIGSTOP)
        try:
            yield watcher
        finally:
            os.kill(watcher.pid, signal.SIGCONT)


def _runs(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None


def _start_peer(command: list[str], allocator: Allocator, out: Path) -> subprocess.Popen[bytes]:
    """A tool whose probes are in place. Raises SkippedError.

    Debian's bcc leaves libbcc's last argument, the offset of a probe's reference counter,
    to chance, and the kernel refuses a second offset for one instruction, be it in another
    process. So an attempt may fail while other probes are still going away: tried again.
    """
    environment = {
        **os.environ,
        "PATH": _path(),
        "PYTHONUNBUFFERED": "1",
        "BPFTRACE_MAP_KEYS_MAX": "1000000",
    }
    for _ in range(ATTEMPTS):
        with out.open("wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
            )
        try:
            if allocator.wait_probed(partial(_runs, process)):
                time.sleep(SETTLE_S)
                if process.poll() is None:
                    return process
        except BaseException:
            end(process)
            raise
        end(process)
    raise SkippedError(f"{command[0]}: {last_words(out)}")


def _peer(words: Callable[[Allocator], list[str]]) -> Attach:
    """A tool of which nothing is read but its words of error, should it fail."""

    @contextmanager
    def attach(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
        command = words(allocator)
        out_path = scratch / f"peer-{time.monotonic_ns()}"
        process = _start_peer(command, allocator, out_path)
        try:
            yield Watcher(process.pid)
            if process.poll() is not None:
                raise SkippedError(f"{command[0]} ended: {last_words(out_path)}")
        finally:
            # Its probes hang on its descriptors; its report is of no interest.
            end(process)
            out_path.unlink()

    return attach


def _memleak(allocator: Allocator) -> list[str]:
    return ["memleak-bpfcc", "-p", str(allocator.pid), "-O", allocator.path, "3600"]


def _bpftrace(allocator: Allocator) -> list[str]:
    script = BPFTRACE_SCRIPT.format(path=allocator.path, pid=allocator.pid)
    return ["bpftrace", "-p", str(allocator.pid), "-e", script]


def _heaptrack(scratch: Path) -> list[str]:
    return ["heaptrack", "--raw", "--output", str(scratch / "heaptrack")]


def _massif(scratch: Path) -> list[str]:
    out = f"--massif-out-file={scratch / 'massif'}"
    return ["valgrind", "-q", "--fair-sched=yes", "--tool=massif", out]


_PRELOADED = ("env", f"LD_PRELOAD={PRELOADED}")

TOOLS = (
    Tool("untraced", "untraced", attach=_nothing),
    Tool("entry-probes", "3 empty probes at the entries", attach=_empty(shifted=False)),
    Tool("floor", "3 empty probes, best places (floor)", attach=_empty(shifted=True)),
    Tool("tracelloc", "tracelloc", attach=_tracelloc()),
    Tool("tracelloc-no-spill", "tracelloc --overflow-entries 0",
         attach=_tracelloc("--overflow-entries", "0")),
    Tool("tracelloc-unread", "tracelloc, stopped: all spilled", attach=_unread),
    Tool("tracelloc-fp", "tracelloc --stacks fp", attach=_tracelloc("--stacks", "fp")),
    Tool("library-idle", "tracelloc's library, idle", attach=_nothing, starts_with=_PRELOADED),
    Tool("library", "tracelloc --preload on",
         attach=_tracelloc("--preload", "on"), starts_with=_PRELOADED),
    Tool("library-sampled", "tracelloc --preload on --sample 512k",
         attach=_tracelloc("--preload", "on", "--sample", "512k"), starts_with=_PRELOADED),
    Tool("injected", "tracelloc --preload inject", attach=_tracelloc("--preload", "inject")),
    Tool("tracelloc-perf", "tracelloc --attach perf", attach=_tracelloc("--attach", "perf")),
    Tool("memleak", "memleak (bcc)", "memleak-bpfcc", "bpfcc-tools", attach=_peer(_memleak)),
    Tool("bpftrace", "bpftrace script", "bpftrace", "bpftrace", attach=_peer(_bpftrace)),
    Tool("heaptrack", "heaptrack, from the start", "heaptrack", "heaptrack", wrap=_heaptrack),
    Tool("massif", "valgrind --tool=massif", "valgrind", "valgrind", wrap=_massif),
)  # fmt: skip
# What real workloads are run under.
LIVE_NAMES = (
    "untraced", "floor", "tracelloc", "library-idle", "library", "injected", "memleak", "bpftrace",
)  # fmt: skip
