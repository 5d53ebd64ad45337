"""Reading the memory of a process that ends meanwhile, or whose threads do (fault injection)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelloc.errors import TargetError
from tracelloc.record.heapwalk.walk import while_alive
from tracelloc.record.heapwalk.walked import NotWalkableError
from tracelloc.record.process.procfs import Process

PID = 70


class Proc:
    """A /proc with one process, whose main thread has ended."""

    def __init__(self, root: Path, threads: list[int]) -> None:
        self.root = root
        for thread in (PID, *threads):
            self._add(thread, threads)
        for thread in threads:
            for each in (PID, *threads):
                (root / f"{each}/task/{thread}/exe").symlink_to("/bin/true")

    def _add(self, thread: int, threads: list[int]) -> None:
        folder = self.root / str(thread)
        for each in (PID, *threads):
            (folder / f"task/{each}").mkdir(parents=True)
        (folder / "stat").write_text(f"{thread} (a) {'Z' if thread == PID else 'S'} 1")
        (folder / "maps").write_text("" if thread == PID else "1000-2000 r--p 0 00:00 0\n")

    def end(self, thread: int) -> None:
        for each in self.root.glob(f"*/task/{thread}"):
            (each / "exe").unlink()
            each.rmdir()
        for name in ("maps", "stat"):
            (self.root / f"{thread}/{name}").unlink()


def read(root: Path, threads: list[int], ends: int, error: Exception) -> str:
    """Reads while so many threads end, each with an error."""
    proc, left = Proc(root, threads), threads[:ends]

    def through(thread: Process) -> str:
        if left:
            assert thread.pid == left[0]
            proc.end(left.pop(0))
            raise error
        return f"read through {thread.pid}"

    return while_alive(Process(PID, root), through)


@pytest.mark.parametrize(
    "error", [ProcessLookupError(), TargetError("no process"), NotWalkableError("no heap")]
)
def test_another_thread_takes_over(tmp_path: Path, error: Exception) -> None:
    assert read(tmp_path, [71, 72, 73], 2, error) == "read through 73"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ProcessLookupError(), "process 70 has ended"),
        (TargetError("there is no process 72"), "there is no process 72"),
    ],
)
def test_the_process_ends(tmp_path: Path, error: Exception, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        read(tmp_path, [71, 72], 2, error)


def test_a_heap_that_can_not_be_walked(tmp_path: Path) -> None:
    Proc(tmp_path, [71])

    def through(_thread: Process) -> None:
        raise NotWalkableError("no heap")

    with pytest.raises(NotWalkableError, match="no heap"):
        while_alive(Process(PID, tmp_path), through)
