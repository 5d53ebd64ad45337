"""What a program maps by itself: equal to its books, and apart from blocks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Targets, Tracelloc

pytestmark = [pytest.mark.bpf, pytest.mark.long]
MIB = 1 << 20


def books_of(answer: str) -> dict[str, int]:
    """What the target says it has mapped, by function."""
    books: dict[str, int] = json.loads(answer)
    del books["pid"]
    return books


def by_site(report: dict) -> dict[str, int]:
    """Mapped bytes by the function of ``mapper.c`` that asked for them."""
    sites: dict[str, int] = {}
    for entry in report["mappings"]["top"]:
        name = entry["stack"][0]["symbol"]
        sites[name] = sites.get(name, 0) + entry["bytes"]
    return sites


@pytest.mark.parametrize("attach", ["auto", "perf"])
def test_mappings_equal_the_books(targets: Targets, attach: str) -> None:
    target = targets.c("mapper")
    tracer = Tracelloc("-p", target.pid, "--json", "--mmap", "--top", 100, "--attach", attach)
    target.ask("go")
    books = books_of(target.ask("again"))
    report = tracer.final_report()
    assert by_site(report) == {site: size for site, size in books.items() if size}
    assert report["mappings"]["bytes"] == sum(books.values())
    # Blocks that malloc maps are blocks, and all of them were freed.
    assert report["live_allocations"] == report["lost_events"] == report["unmatched_frees"] == 0
    assert report["lost"]["lost_mappings"] == 0
    (found,) = [found for found in report["malloc_libraries"] if found["name"] == "mmap"]
    assert {"mmap", "munmap", "mremap", "sbrk"} <= set(found["functions"])
    assert target.end() == 0


def test_mappings_in_text_and_not_unless_asked_for(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("mapper")
    plain = Tracelloc("-p", target.pid, "--json")
    flames = tmp_path / "app.folded"
    tracer = Tracelloc("-p", target.pid, "--text", "--mmap", "--flamegraph", flames)
    books = books_of(target.ask("go"))
    assert tracer.stop() == plain.stop() == 0
    assert "mappings" not in plain.last()
    lines = tracer.text().splitlines()
    assert any(line.startswith("==> 2 top mappings' stacks out of ") for line in lines)
    mapped = [line for line in flames.read_text().splitlines() if ";[mmap];" in line]
    assert sum(int(line.rpartition(" ")[2]) for line in mapped) == sum(books.values())


def test_what_is_mapped_explains_growth(targets: Targets) -> None:
    """40 MiB in memory of 64 MiB that are mapped, and a block that malloc has mapped.

    Without accounts of memory by part, which would be the explanation once they are there.
    """
    target = targets.c("reserve")
    arguments = ("-p", target.pid, "--json", "--interval", "100ms", "--no-search")
    plain = Tracelloc(*arguments)
    tracer = Tracelloc(*arguments, "--mmap")
    assert target.ask("go") == "done"

    def is_whole(report: dict[str, Any]) -> bool:
        """The size of resident memory is read at another moment than that of mappings."""
        memory = report["memory"]
        mapped_bytes = memory.get("mapped_bytes")
        return bool(mapped_bytes == 40 * MIB and memory["growth_bytes"] > 0.95 * 48 * MIB)

    report = tracer.await_report(is_whole)
    memory = report["memory"]
    assert report["mappings"]["bytes"] == 64 * MIB
    assert memory["traced_bytes"] == 8 * MIB
    assert memory["traced_share"] == pytest.approx(48 * MIB / memory["growth_bytes"], abs=0.01)
    # The kernel may have taken back some of its other pages meanwhile.
    assert 0.9 < memory["traced_share"] < 1.1
    assert "of it in traced blocks and mappings" in memory["explanation"]
    assert "anonymous memory outside" not in memory["explanation"]
    assert tracer.stop() == plain.stop() == 0
    unseen = plain.last()["memory"]
    assert unseen["mapped_bytes"] is None
    assert unseen["traced_share"] == pytest.approx(8 / 48, abs=0.05)
    assert "direct mmap" in unseen["explanation"]
    assert target.end() == 0


@pytest.mark.parametrize("attach", ["auto", "perf"])
def test_mappings_of_a_family(targets: Targets, tmp_path: Path, attach: str) -> None:
    """Children begin with what their parents have mapped, programs with nothing."""
    target = targets.c("mapper")
    flames = tmp_path / "all.folded"
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--mmap", "--follow", "--top", 100, "--interval", 60,
        "--attach", attach, "-o", flames,
    )  # fmt: skip
    target.ask("go")
    answers = [target.ask("fork 3"), *(target.hear() for _ in range(3))]
    assert target.ask("exec") == "ready"
    answers += [target.ask("fork 1"), target.hear()]
    assert tracer.stop() == 0, tracer.messages
    books = {json.loads(answer)["pid"]: books_of(answer) for answer in answers}
    assert len(books) == 5
    lines = [line.rpartition(" ") for line in flames.read_text().splitlines()]
    for pid, expected in books.items():
        report = tracer.last_of(pid)
        assert by_site(report) == {site: size for site, size in expected.items() if size}
        assert report["mappings"]["bytes"] == sum(expected.values())
        assert report["lost"]["lost_mappings"] == report["unmatched_frees"] == 0
        assert all("main" in symbols(entry) for entry in report["mappings"]["top"])
        own = [(stack, size) for stack, _, size in lines if stack.split(";")[0].endswith(f"-{pid}")]
        mapped = [int(size) for stack, size in own if ";[mmap];" in stack]
        assert sum(mapped) == sum(expected.values())


def symbols(entry: dict) -> list[str | None]:
    return [frame["symbol"] for frame in entry["stack"]]
