"""The tools that ``make bench`` compares: tracelloc, its peers, and the bounds of both.

A live tool is attached to a running program; a wrapper has to start the program itself.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.allocator import Allocator
from tests.bench.empty import empty_probes
from tests.bench.processes import PATIENCE_S, SkippedError, end, last_words
from tests.harness import PRELOADED, Tracelloc

SETTLE_S = 0.3  # After a peer's probes were seen: it may still be attaching others

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
    command: str | None = None  # What must be installed, as Debian calls its package, too
    attach: Attach | None = None  # For a live tool
    # For a live tool: words before the program's own that have it prepared.
    starts_with: tuple[str, ...] = ()
    # For a wrapper: the words before the program's own, given a scratch directory.
    wrap: Callable[[Path], list[str]] | None = None

    def why_missing(self) -> str | None:
        """Why it can't be measured, None if its command is there."""
        if self.command is None or shutil.which(self.command, path=_path()):
            return None
        return f"{self.command} is not installed"


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


@contextmanager
def _nothing(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
    yield Watcher()


@contextmanager
def _empty(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
    with empty_probes(allocator):
        yield Watcher()


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
def _bpftrace(allocator: Allocator, scratch: Path) -> Iterator[Watcher]:
    """The script, of which nothing is read but its words of error, should it fail."""
    script = BPFTRACE_SCRIPT.format(path=allocator.path, pid=allocator.pid)
    out_path = scratch / f"peer-{time.monotonic_ns()}"
    environment = os.environ | {"PATH": _path(), "BPFTRACE_MAP_KEYS_MAX": "1000000"}
    with out_path.open("wb") as stream:
        process = subprocess.Popen(
            ["bpftrace", "-p", str(allocator.pid), "-e", script],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment,
        )  # fmt: skip
    try:
        is_probed = allocator.wait_probed(lambda: process.poll() is None)
        if is_probed:
            time.sleep(SETTLE_S)
            yield Watcher(process.pid)
        if not is_probed or process.poll() is not None:
            raise SkippedError(f"bpftrace: {last_words(out_path)}")
    finally:
        # Its probes hang on its descriptors; its report is of no interest.
        end(process)
        out_path.unlink()


def _heaptrack(scratch: Path) -> list[str]:
    return ["heaptrack", "--raw", "--output", str(scratch / "heaptrack")]


def _massif(scratch: Path) -> list[str]:
    out = f"--massif-out-file={scratch / 'massif'}"
    return ["valgrind", "-q", "--fair-sched=yes", "--tool=massif", out]


_PRELOADED = ("env", f"LD_PRELOAD={PRELOADED}")

TOOLS = (
    Tool("untraced", "untraced", attach=_nothing),
    Tool("floor", "3 empty probes, best places (floor)", attach=_empty),
    Tool("tracelloc", "tracelloc", attach=_tracelloc()),
    Tool("library-idle", "tracelloc's library, idle", attach=_nothing, starts_with=_PRELOADED),
    Tool("library", "tracelloc --preload on",
         attach=_tracelloc("--preload", "on"), starts_with=_PRELOADED),
    Tool("library-sampled", "tracelloc --preload on --sample 512k",
         attach=_tracelloc("--preload", "on", "--sample", "512k"), starts_with=_PRELOADED),
    Tool("injected", "tracelloc --preload inject", attach=_tracelloc("--preload", "inject")),
    Tool("bpftrace", "bpftrace script", "bpftrace", attach=_bpftrace),
    Tool("heaptrack", "heaptrack, from the start", "heaptrack", wrap=_heaptrack),
    Tool("massif", "valgrind --tool=massif", "valgrind", wrap=_massif),
)  # fmt: skip
# What real workloads are run under.
LIVE_NAMES = "untraced", "floor", "tracelloc", "library-idle", "library", "injected", "bpftrace"
