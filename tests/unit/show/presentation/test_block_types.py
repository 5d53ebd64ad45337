"""Types of blocks by the names of the functions that allocate them."""
# ruff: noqa: E501

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.unit.names import stacks_in
from tests.unit.show.presentation.test_views import frame
from tracelloc.heap.stacks import Stacks
from tracelloc.model.frames import Frame
from tracelloc.model.stacks import StackFlag
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.blocktypes import BlockTypes, readable_class, type_in_names
from tracelloc.show.presentation.naming import Namer, Symbols
from tracelloc.snapshots.snapshot import Snapshot

STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"


@pytest.mark.parametrize(("names", "expected"), [([], None), *stacks_in("blocktypes")])
def test_types_in_names(names: list[str | None], expected: str | None) -> None:
    malloc = [frame("malloc"), frame("operator new(unsigned long)")]
    assert type_in_names([*malloc, *map(frame, names)]) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop::Session", "shop::Session"),
        (f"shop::Box<{STRING}, std::allocator<int> >", "shop::Box<std::string>"),
        ("std::_Sp_counted_ptr_inplace<shop::Item, std::allocator<void>, (__gnu_cxx::_Lock_policy)2>",
         "shop::Item (shared)"),
        ("shop::<lambda(int)>", "shop::<lambda(int)>"),
    ],
)  # fmt: skip
def test_names_of_classes(name: str, expected: str) -> None:
    assert readable_class(name) == expected


def test_some_stacks_at_once() -> None:
    """Stacks without a type yet count as unknown until the next sums; each is named only once."""
    names = {
        1: "std::vector<shop::A>::push_back(shop::A)",
        2: "main",
        3: "std::make_unique<shop::B>()",
    }
    asked: list[int] = []

    class FewNames:
        version = waiting = 0

        def peek(self, addresses: tuple[int, ...]) -> list[Frame]:
            asked.extend(addresses)
            return [frame(names[address]) for address in addresses]

    stacks = Stacks()
    order = [stacks.add(n, (n, 2), StackFlag(0)) for n in (1, 3)]
    snapshot = cast("Snapshot", SimpleNamespace(
        frames=lambda index: stacks.frames(index) or (), usage=None, findings=None,
        totals=np.zeros(len(stacks)), growth_per_min=np.zeros(len(stacks), np.int64),
    ))  # fmt: skip
    namer = Namer(cast("Symbols", FewNames()), Filters())
    live_bytes = np.zeros(len(stacks), np.int64)
    live_bytes[order] = 200, 100
    types = BlockTypes()
    sums = [types.sums(snapshot, namer, live_bytes, live_bytes // 100, 1) for _ in range(2)]
    found = [[(each.name, each.size_bytes, each.stacks) for each in some] for some in sums]
    assert found[0] == [("shop::A[]", 200, (order[0],)), (None, 100, (order[1],))]
    assert found[1] == [("shop::A[]", 200, (order[0],)), ("shop::B", 100, (order[1],))]
    assert types.left == 0
    types.sums(snapshot, namer, live_bytes, live_bytes // 100, 1)
    assert asked == [1, 3], "of each stack the frames that tell, once"

    # Frames may come later than a stack's id: others need not wait for them.
    late, more = (stacks.indices(np.array([n], np.uint64))[0] for n in (4, 5))
    stacks.add(5, (3, 2), StackFlag(0))
    snapshot.totals, snapshot.growth_per_min = np.zeros((2, len(stacks)), np.int64)  # type: ignore[misc]
    live_bytes = np.zeros(len(stacks), np.int64)
    live_bytes[[*order, late, more]] = 200, 100, 400, 300
    lefts = []
    for _ in range(3):
        last = types.sums(snapshot, namer, live_bytes, live_bytes // 100, 1)
        lefts.append(types.left)
    assert lefts == [1, 0, 0]
    assert [(each.name, each.size_bytes) for each in last] == [
        (None, 400), ("shop::B", 400), ("shop::A[]", 200),
    ]  # fmt: skip
    stacks.add(4, (1, 2), StackFlag(0))
    (first, *_) = types.sums(snapshot, namer, live_bytes, live_bytes // 100, 1)
    assert (first.name, first.size_bytes) == ("shop::A[]", 600)
