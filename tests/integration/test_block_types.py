"""Types of blocks: from names of functions, and from virtual tables in memory."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness import Targets, Tracelloc
from tests.unit.show.export.test_export_formats import go_pprof

pytestmark = [pytest.mark.bpf, pytest.mark.long]  # they take Rust and Go

COUNT = 300
# Types of which there are `COUNT`, with the bytes of each.
NODES = {
    "std::pair<int const, shop::Item> (tree node)": 32 + 48,
    "std::pair<int const, shop::Item> (hash node)": 8 + 48,
    "shop::Item (list node)": 16 + 40,
    "std::string": 101,
    "shop::Item": 40,
    "shop::Item (shared)": 16 + 40,
    "shop::Session": 16,
}
# Types of one block with `COUNT` elements.
ARRAYS = {
    "shop::Item[]": 40,
    "std::string[]": 32,
    "std::unique_ptr<shop::Item>[]": 8,
    "std::shared_ptr<shop::Item>[]": 16,
}


def test_types_equal_what_the_program_allocates(targets: Targets, tmp_path: Path) -> None:
    target = targets.cpp("typed", str(COUNT))
    profile = tmp_path / "t.pb.gz"
    tracer = Tracelloc(
        "-p", target.pid, "--json", "--show", "types", "--top", 30, "--interval", "0.2s",
        "--output", profile,
    )  # fmt: skip
    assert target.ask("go") == "done"

    def has_classes(report: dict[str, Any]) -> bool:
        return any(row["type"] == "shop::Session" for row in report["types"]["types"])

    tracer.await_report(has_classes)
    found = {row["type"]: row for row in tracer.final_report()["types"]["types"]}
    for name, size_bytes in NODES.items():
        assert (found[name]["bytes"], found[name]["allocations"]) == (COUNT * size_bytes, COUNT), (
            name
        )
    for name, size_bytes in ARRAYS.items():
        assert (found[name]["bytes"], found[name]["allocations"]) == (COUNT * size_bytes, 1), name
    assert found[None]["allocations"] >= COUNT, "objects of no class, allocated by the program"
    assert set(found) == {*NODES, *ARRAYS, "hash buckets", None}
    tags = go_pprof(tmp_path, "-tags", "-sample_index=inuse_objects", profile)
    assert "shop::Session\n" in tags
    assert "std::unique_ptr<shop::Item>[]\n" in tags
    assert target.end() == 0


@pytest.mark.parametrize("flags", [(), ("-C", "symbol-mangling-version=v0")])
def test_rust(targets: Targets, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Rust's older symbols have no types: these come from debug information."""
    target = targets.rust("kept", str(COUNT), flags=("-g", *flags))
    folded = tmp_path / "rows.folded"
    tracer = Tracelloc("-p", target.pid, "--json", "--show", "types", "--top", 30, "-o", folded)
    assert target.ask("go") == "done"
    assert tracer.stop() == 0
    # A row begins with the program's function, whichever of std's functions are below it.
    stacks = [line.rpartition(" ")[0].split(";") for line in folded.read_text().splitlines()]
    assert {stack[-1] for stack in stacks if "allocated before tracing" not in stack} == {
        "kept::fill",
        "kept::main",
    }
    found = {row["type"]: row for row in tracer.last()["types"]["types"]}
    for name, size_bytes in {"kept::Item": 40, "kept::Item (shared)": 56}.items():
        assert (found[name]["bytes"], found[name]["allocations"]) == (COUNT * size_bytes, COUNT)
    assert found["kept::Item[]"]["allocations"] == 1
    assert found["(u64, kept::Item) (hash table)"]["allocations"] == 1
    assert target.end() == 0
