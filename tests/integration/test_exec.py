"""A traced process that executes another program: its table is emptied, tracing goes on."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import outcome, run
from tests.harness import PATIENCE_S, ROOT, Builder, Targets, Tracelloc
from tests.integration.test_attach import WAYS
from tests.integration.test_follow import kept

pytestmark = pytest.mark.bpf


@pytest.mark.parametrize("attach", WAYS)
@pytest.mark.parametrize("way", ["exec", "texec"])
def test_the_new_program_has_its_own_books(targets: Targets, attach: str, way: str) -> None:
    target = targets.c("lineage")
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--top", 1000, "--attach", attach, "--interval", 0.1
    )
    target.ask("alloc 50 100")
    for number in range(1, 4):
        assert target.ask(way) == "ready"
        # The files are mapped again, but perhaps nobody has looked yet.
        tracer.await_report(lambda report, number=number: report["exec_count"] == number)
        target.ask(f"alloc {number * 100} {number}")
        target.ask("free 7")
    books = json.loads(target.ask("alloc 5 1000"))
    report = tracer.final_report()
    assert kept(report) == books == [298, 5000 + 3 * 293]
    assert report["live_allocations"] == books[0]
    assert report["exec_count"] == 3
    assert report["command"] == "exe"
    assert {cause: n for cause, n in report["lost"].items() if n} == {}


def test_text_says_so(targets: Targets) -> None:
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, "--text")
    target.ask("alloc 50 100")
    target.ask("exec")
    target.ask("alloc 1 100")
    assert tracer.stop() == 0
    assert "==> 1 program executed since, now exe" in tracer.text()
    assert any("executed exe; its live table was reset" in line for line in tracer.messages)


# A program with no library: it reads a byte, and ends.
BARE = """void _start(void) {
char c; __asm__ volatile("syscall" :: "a"(0), "D"(0), "S"(&c), "d"(1) : "rcx", "r11");
__asm__ volatile("mov $60, %eax; xor %edi, %edi; syscall"); }
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bare") / "bare"
    run("gcc", "-x", "c", "-", "-nostdlib", "-static", "-o", program, input=BARE)
    return program


def test_a_program_without_an_allocator(targets: Targets, bare: Path) -> None:
    """It is said; tracing goes on, and finds nothing."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, "--json")
    target.ask("alloc 50 100")
    target.say(f"become {bare}")
    assert "has no malloc library" in tracer.wait_for("warning:")
    assert tracer.final_report()["live_allocations"] == 0
    assert tracer.last()["command"] == "bare"


IN_A_NAMESPACE = """
import json, sys
from tests.harness import Target, Tracelloc
from tracelloc.record.process.procfs import Process
from tracelloc.record.session.config import TraceConfig
from tracelloc.record.session.sessionstart import attach_to
churn, lineage = Target([sys.argv[1], 50]), Target([sys.argv[2]])
tracer = Tracelloc("-p", churn.pid, "--json")
assert churn.ask("go") == "done"
live = tracer.final_report()["live_allocations"]
session = attach_to(Process(churn.pid), TraceConfig())
dropped, forget = [], session._probes.forget_threads
session._probes.forget_threads = lambda *given: dropped.append(forget(*given)) or dropped[-1]
assert churn.ask("go") == "done"
session.root.drop_ended_threads()
session.close()
session = attach_to(Process(lineage.pid), TraceConfig())
moves = [lineage.ask(way) and session.root.words.moves for way in ("exec", "texec", "exec")]
session.close()
print(json.dumps([churn.pid, live, sum(dropped), moves]))
churn.kill()
lineage.kill()
"""


def test_tracelloc_in_a_pid_namespace(builder: Builder) -> None:
    """Below the first one, processes have the PIDs they have there; the kernel's are others.

    Probes stay at an exec unless another than the first thread executed the program.
    """
    inside = "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c"
    command = *inside, IN_A_NAMESPACE, builder.c("churn"), builder.c("lineage")
    done = outcome(*command, timeout=2 * PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    pid, live, dropped, moves = json.loads(done.stdout)
    assert (pid < 100, live >= 50, moves) == (True, True, [0, 1, 1])
    # By thread ids of that namespace; by others none would be found to have ended. Now and
    # then the session looks by itself.
    assert dropped > 0


def test_a_program_whose_libraries_are_not_mapped_yet(builder: Builder, tmp_path: Path) -> None:
    """It is not reported as having no malloc library while the dynamic linker is at work."""
    program, fifo = builder.c("early"), tmp_path / "fifo"
    os.mkfifo(fifo)
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    filling = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    # The dynamic linker waits before it maps the first library: there is no room for a message.
    with suppress(BlockingIOError):
        while True:
            os.write(filling, bytes(4096))
    tracer = Tracelloc(
        "--preload=off", "--json", "--interval", 60, "--",
        "bash", "-c", f"LD_DEBUG=files exec {program} 7 2>{fifo}",
    )  # fmt: skip
    if not any("its live table was reset" in message for message in tracer.messages):
        tracer.wait_for("its live table was reset")
    os.set_blocking(reading, True)
    os.close(filling)
    while os.read(reading, 1 << 16):
        pass
    os.close(reading)
    assert tracer.finish() == 7
    assert not any("warning" in line for line in tracer.messages)
    assert tracer.last()["allocations"] > 0


def test_a_program_that_ends_before_it_is_checked(targets: Targets, bare: Path) -> None:
    """That it had no malloc library, or none that was found, is said when it ends."""
    target = targets.c("lineage")
    tracer = Tracelloc("-p", target.pid, "--json", "--preload=off")
    target.ask("alloc 50 100")
    target.say(f"become {bare}")
    tracer.wait_for("its live table was reset")
    target.say("end")
    target.process.wait(PATIENCE_S)
    assert tracer.finish() == 0
    ends = [line for line in tracer.messages if "warning" in line]
    assert len(ends) == 1
    assert f"process {target.pid} ended before an allocator was found" in ends[0]
