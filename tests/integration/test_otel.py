"""Programs that report allocations by themselves, against their own books."""

import json
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import Builder, Targets, Tracelloc, run_tracelloc, wait_until
from tests.integration.test_attach import WAYS
from tests.integration.test_record import Recorder, reports
from tests.unit.otlpmessages import decoded_file, resource_of, sums

pytestmark = [pytest.mark.bpf, pytest.mark.long]

Books = dict[str, list[float]]
NOP5 = '-DUSDT_NOP=".byte 0x0f, 0x1f, 0x44, 0, 0\\n"'


def assert_equal(report: dict, books: Books) -> None:
    """Bytes are exact; halves of blocks are rounded."""
    assert report["sample_bytes"] == 0
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    found = {}
    for entry in report["top_allocators"]:
        names = [frame["symbol"] for frame in entry["stack"]]
        assert names[0].startswith("by_"), names
        assert {"work", "start_thread"} & set(names), names
        found[names[0]] = [entry["allocations"], entry["bytes"]]
    *_, allocations = (books.pop("all"),)
    assert set(found) == {site for site, (count, _) in books.items() if count}
    for site, (count, size_bytes) in found.items():
        assert size_bytes == books[site][1], site
        assert abs(count - books[site][0]) <= 0.5, site
    assert report["live_bytes"] == sum(size for _, size in books.values())
    assert report["allocated_bytes"] == allocations[1]
    assert abs(report["allocations"] - allocations[0]) <= 0.5 * len(found)
    assert report["partial_allocations"] == report["unmatched_frees"] == 0


@pytest.mark.parametrize("attach", WAYS)
def test_books(targets: Targets, attach: str) -> None:
    target = targets.c("reporter", 4, 20_000)
    options = ["--source", "otel", "--json", "--top", 100, "--attach", attach]
    tracer = Tracelloc("-p", target.pid, *options)
    # Each place that an alloc probe has raises the counter.
    assert target.ask("counters") in ("4 1", "1 1")
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert target.ask("counters") == "0 0"
    assert "malloc libraries: otel_memory in" in "".join(tracer.messages)
    assert_equal(tracer.last(), books)
    sizes = [entry["size_bytes"] for entry in tracer.last()["top_allocations"]]
    assert max(sizes) <= 6002, "sizes are those of the blocks"


@pytest.mark.parametrize(
    "flags", [('-DUSDT_CONSTRAINT="m"', "-O0"), ("-O2",)], ids=["in memory", "optimized"]
)
def test_wherever_arguments_are(builder: Builder, targets: Targets, flags: tuple[str, ...]) -> None:
    program = builder.c("reporter", *flags)
    assert ("(%rbp)" in run("readelf", "-n", program)) == (len(flags) == 2)
    target = targets.start(program, 2, 5000)
    options = ["--source", "otel", "--json", "--top", 100]
    tracer = Tracelloc("-p", target.pid, *options)
    books = json.loads(target.ask("run"))
    assert_equal(tracer.final_report(), books)


def test_more_than_the_ring_holds(targets: Targets) -> None:
    target = targets.c("reporter", 4, 60_000)
    options = ["--source", "otel", "--json", "--top", 100, "--events-size", "4k"]
    tracer = Tracelloc("-p", target.pid, *options)
    books = json.loads(target.ask("run"))
    assert tracer.final_report()["overflow_map_events"] > 0
    assert_equal(tracer.last(), books)


def test_recordings(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("reporter", 2, 5000)
    path = tmp_path / "heap.rec"
    recorder = Recorder(path, "-p", target.pid, "--source", "otel")
    books = json.loads(target.ask("run"))
    assert recorder.end() == 0
    live = sum(size for site, (_, size) in books.items() if site != "all")
    report = reports(path)[-1]
    assert (report["sample_bytes"], report["live_bytes"]) == (0, live)
    otlp = tmp_path / "heap.otlp"
    run_tracelloc("report", path, "-o", otlp, status=0)
    message = decoded_file(otlp.read_bytes())
    assert sums(message)["inuse_space"] == live
    (one,) = message.resource_profiles
    assert (
        resource_of(one.resource)["process.executable.name"] == targets.builder.c("reporter").name
    )


def test_counters_drop_when_we_are_killed(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100)
    options = ["-p", target.pid, "--source", "otel", "--json"]
    tracer = Tracelloc(*options)
    target.ask("run")
    assert target.ask("counters") != "0 0"
    tracer.kill()
    # Processes that it was starting may have its descriptors for a moment longer.
    wait_until(lambda: target.ask("counters") == "0 0")
    assert json.loads(target.ask("run"))


def test_forked_children_live(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100)
    tracer = Tracelloc("-p", target.pid, "--source", "otel", "--json")
    target.ask("run")
    assert target.ask("fork") == "20"
    assert tracer.stop() == 0
    # What children do is not the parent's.
    assert tracer.last()["unmatched_frees"] == 0
    assert target.ask("fork") == "20"


def test_when_there_is_nothing_else(targets: Targets) -> None:
    """A static program without symbols."""
    target = targets.c("reporter", 2, 1000, flags=("-static", "-s"))
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 100)
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert "its own sampled reports are used instead" in "".join(tracer.messages)
    report = tracer.last()
    assert report["live_bytes"] == sum(size for site, (_, size) in books.items() if site != "all")


def test_harmful_places_and_programs_without_probes_are_refused(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100, flags=(NOP5,))
    result = run_tracelloc("-p", target.pid, "--source", "otel", "--text", status=1)
    assert "a nop of five bytes or more" in result.stderr
    assert "leave --source out" in result.stderr
    assert target.ask("counters") == "0 0"
    target = targets.c("chain")
    result = run_tracelloc("-p", target.pid, "--source", "otel", "--text", status=1)
    assert "has no probes otel_memory:alloc; leave --source out" in result.stderr


def test_programs_that_are_started(builder: Builder, tmp_path: Path) -> None:
    """From the first allocation on, with the children that they fork."""
    path = tmp_path / "reports"
    command = [builder.c("reporter"), 2, 1000]
    options = ["--source", "otel", "--follow", "--json", "--interval", "1h", "--report", path]
    orders = tmp_path / "orders"
    orders.write_text("run\nfork\n")
    with orders.open() as stream:
        result = run_tracelloc(*options, "--top", 100, "--", *command, stdin=stream)
    assert result.returncode == 0, result.stderr
    _, books, whole = result.stdout.splitlines()
    assert whole == "20"
    live = sum(size for site, (_, size) in json.loads(books).items() if site != "all")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    parent, *children = [one for one in found if one.get("pid")][-21:]
    assert len(children) == 20
    for one in (parent, *children):
        assert (one["live_bytes"], one["unmatched_frees"], one["lost_events"]) == (live, 0, 0)
    # 100 blocks that stand for three each.
    assert {child["frees"] for child in children} == {300}
