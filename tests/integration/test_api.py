"""``import tracelloc``: exact figures of a process that is traced by the functions."""

import json
import sys
from dataclasses import fields

import pytest

import tracelloc
from tests.commands import outcome
from tests.harness import DATA, Targets, wait_until

RECORDING = DATA / "recordings" / "v2.rec"


@pytest.mark.bpf
def test_attach(targets: Targets) -> None:
    target = targets.c("lineage")
    with tracelloc.attach(target.pid, "--earlier", "off") as trace:
        count, size = json.loads(target.ask("alloc 1000 123"))
        wait_until(lambda: trace.snapshot.live_bytes == size)
        (stack,) = trace.stacks
        assert (stack.bytes, stack.allocations) == (size, count)
        # Names are looked up in the background.
        wait_until(lambda: "keep" in [frame.symbol for frame in trace.stacks[0].stack.frames])
        assert trace.losses.events == 0
        assert trace.memory is not None
        assert trace.suspects == []
    assert target.ask("free 990") == "[10, 1230]", "it runs on"
    lost = tracelloc.leaks(target.pid)
    assert lost.lost.count == 0
    assert lost.in_use.count > 0
    assert tracelloc.heap_usage(target.pid).in_use.count == lost.in_use.count
    assert tracelloc.holders(target.pid).heap.time_s > 0


@pytest.mark.bpf
def test_launch() -> None:
    with tracelloc.launch(["sh", "-c", "exit 7"]) as trace:
        assert trace.wait() == 7
        assert trace.snapshot.target.command == "sh"


def test_errors_say_what_to_do() -> None:
    with pytest.raises(tracelloc.TracellocError, match=r"^there is no process 2147483647$"):
        tracelloc.attach(2147483647)
    with pytest.raises(tracelloc.TracellocError, match=r"^there is no process 2147483647$"):
        tracelloc.leaks(2147483647)
    with pytest.raises(tracelloc.TracellocError, match="is no recording; tracelloc diff"):
        tracelloc.open(__file__)


def test_open() -> None:
    with tracelloc.open(RECORDING) as trace:
        figures = [(one.bytes, one.allocations) for one in trace.stacks]
        held = [(one.live_bytes, one.live_count) for one in trace.snapshot.top_stacks()]
        assert figures == held != []
        assert {one.name for one in fields(trace.stacks[0])} >= {"stack_id", "verdict"}
        (suspect, *_) = trace.suspects
        assert suspect.judgement.rate_bytes_per_min > 0


def test_the_module_imports_nothing_until_it_is_used() -> None:
    done = outcome(
        sys.executable, "-Ic",
        f"import sys; sys.path[:0] = {sys.path}; before = set(sys.modules); import tracelloc\n"
        "print(*set(sys.modules) - before); print(*tracelloc.__all__)\n"
        "print(all(callable(getattr(tracelloc, name)) for name in tracelloc.__all__))",
    )  # fmt: skip
    new, names, are_there = done.stdout.splitlines()
    assert new == "tracelloc"
    assert names == "Trace attach heap_usage holders launch leaks open"
    assert are_there == "True"
