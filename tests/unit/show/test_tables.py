"""Tables as data, records as JSON fields, and what a search of memory says it may have missed."""

from dataclasses import dataclass

from tracelloc.model.blocks import BlockSum, HeapCoverage, PathStep, TopHolders
from tracelloc.model.lostmemory import LostGroup, LostMemory, Shape
from tracelloc.model.process import Target
from tracelloc.show import tables
from tracelloc.show.presentation.blockholders import missing_lines
from tracelloc.show.report.pointers import leak_lines, top_holder_lines
from tracelloc.ui.tableview import sorted_rows
from tracelloc.ui.view import Sorting

TARGET = Target(7, "server")


@dataclass(frozen=True)
class Fruit:
    name: str
    count: int
    size_bytes: int


FRUITS = [Fruit("apple", 1200, 3 << 20), Fruit("fig", 7, 0), Fruit("pear", 7, 512)]
COLUMNS: tables.Columns[Fruit] = (
    tables.Column("count", "fruits", 8, lambda fruit: fruit.count, tables.count_with("~")),
    tables.Column(
        "bytes", "bytes", 10, lambda fruit: fruit.size_bytes, tables.or_blank(tables.size_with("~"))
    ),
    tables.Column(
        "name", "kind", 0, lambda fruit: fruit.name, draw=lambda fruit: fruit.name.upper()
    ),
)


def test_order_and_columns() -> None:
    items = {fruit.name: fruit for fruit in FRUITS}
    rows = sorted_rows(items, COLUMNS, Sorting("count"), 2, empty="none")
    assert (list(rows.order), rows.sorted_by, rows.empty) == (["apple", "fig"], "count", "none")
    rising = sorted_rows(items, COLUMNS, Sorting("count", descending=False))
    assert list(rising.order) == ["fig", "pear", "apple"]
    cells = [rows.cells("pear", key) for key in ("count", "bytes", "name")]
    assert cells == ["~7", "~512 B", "PEAR"]
    assert rows.cells("gone", "count") == ""
    assert [column.right for column in COLUMNS] == [True, True, False]
    assert not tables.Column("name", "kind", 8, left=True).right


def test_text_and_json() -> None:
    lines = list(tables.table_lines(COLUMNS, FRUITS, more=2000, below=lambda fruit: fruit.name[3:]))
    assert lines == [
        "  fruits      bytes  kind",
        "  ~1,200  ~3.00 MiB  APPLE",
        "le",
        "      ~7             FIG",
        "      ~7     ~512 B  PEAR",
        "r",
        "                     and 2,000 more",
    ]
    assert tables.row_line(COLUMNS, FRUITS[1]) == lines[3]
    assert list(tables.table_lines(COLUMNS, [], more=-3)) == lines[:1]
    assert tables.table_json(COLUMNS, FRUITS[:2]) == [
        {"count": 1200, "bytes": 3 << 20, "name": "apple"},
        {"count": 7, "bytes": 0, "name": "fig"},
    ]
    lines = tables.table_lines(tables.sum_columns("kind"), [(BlockSum(1200, 3 << 20), "fig")])
    assert list(lines) == ["     bytes       blocks  kind", "  3.00 MiB        1,200  fig"]
    blocks = BlockSum(3, 120)
    group = LostGroup(Shape.LIST, "app::Node", 56, 2, 1, 4, blocks, 0x1000, b"\xff\x00")
    found = LostMemory(1.5, BlockSum(9, 900), blocks, (group,), 2, BlockSum(), BlockSum())
    assert tables.json_of(found, {"class_name": "class", "time_s": None, "notes": "gaps"}) == {
        "in_use_blocks": 9, "in_use_bytes": 900, "lost_blocks": 3, "lost_bytes": 120,
        "known_blocks": 0, "known_bytes": 0, "suppressed_blocks": 0, "suppressed_bytes": 0,
        "searches": 2, "coverage": 1.0, "swapped_bytes": 0, "pointers_left_out": 0, "gaps": [],
        "probably_lost_blocks": 0, "probably_lost_bytes": 0, "probable": [],
        "groups": [
            {
                "shape": "list", "class": "app::Node", "usable_bytes": 56, "structures": 2,
                "least_nodes": 1, "most_nodes": 4, "blocks": 3, "bytes": 120, "example": 0x1000,
                "contents": "ff00",
            }
        ],
    }  # fmt: skip
    assert tables.json_of(PathStep("A", 8, 1)) == {"class": "A", "usable_bytes": 8, "count": 1}


def test_what_a_search_missed() -> None:
    words = "heap: {}", "pointers: {}", "swapped: {}"
    assert list(missing_lines(words)) == []
    assert list(missing_lines(words, 0.5, ["a \x1b note"], 1234, 3 << 20)) == [
        "heap: 50.0 % of the heap was understood",
        "a \\x1b note",
        "pointers: 1,234 pointers did not fit into memory",
        "swapped: 3.00 MiB of the process are swapped out and were not read",
    ]
    assert list(missing_lines(words, 0.9995)) == []
    gaps = {"coverage": 0.5, "swapped_bytes": 1024, "pointers_left_out": 3}
    none = BlockSum()
    lost = LostMemory(0.0, none, none, (), 1, none, none, **gaps)  # type: ignore[arg-type]
    lines = list(leak_lines(TARGET, lost, 3))
    said = [
        ("50.0 % of the heap was understood, ", "and each address in the rest counts as a pointer"),
        ("3 pointers did not fit into memory, ", "and what they point to counts as in use"),
        ("1.00 KiB of the process are swapped ", "out and were not read: what only they point"),
    ]
    for line, (begin, end) in zip(lines[1:4], said, strict=True):
        assert line.removeprefix("there may be more: ").startswith(begin + end)
    assert lines[4:] == [""]
    coverage = HeapCoverage(0.0, none, none, **gaps)  # type: ignore[arg-type]
    lines = list(top_holder_lines(TARGET, TopHolders(coverage, (), none, 0, none)))
    assert [line.partition(": ")[0] for line in lines[1:4]] == ["holders may be missing"] * 3
