"""What the stacks of one suspect share, and where it is said that they part."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tracelloc.model.frames import Frame
from tracelloc.model.verdicts import Member, Suspect
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.suspects import SharedFunction, shared_function

MAIN = 1


def frame(address: int, name: str, line: int | None = None) -> Frame:
    file = None if line is None else "/src/shop.c"
    return Frame(address, name, name, 4, 16, "/opt/app", 0x34, file=file, line=line)


def shared(stacks: list[list[Frame]], address: int, hidden: str = "") -> SharedFunction | None:
    """What is found for stacks of shares that halve."""
    named = [NamedStack(frames, [frame.symbol == hidden for frame in frames]) for frames in stacks]
    namer = SimpleNamespace(stack=lambda _snapshot, index: named[index])
    shares = [0.5 ** (n + 1) for n in range(len(stacks))]
    members = tuple(Member(n, 100 * share, share) for n, share in enumerate(shares))
    suspect = Suspect(cast(Any, None), members, address)
    return shared_function(cast(Any, None), cast(Namer, namer), suspect)


def said(stacks: list[list[Frame]], address: int, hidden: str = "") -> tuple[str | None, list[str]]:
    found = shared(stacks, address, hidden)
    return found.frame.symbol, list(found.sentences())


def test_parts_of_one_object() -> None:
    """Its return addresses differ, so that the innermost shared one is main's."""
    main = frame(MAIN, "main", 40)
    stacks = [[frame(10 + n, "order_new", 12 + n), main] for n in range(3)]
    assert said(stacks, MAIN) == (
        "order_new",
        ["at shop.c:12 50 %, shop.c:13 25 %, shop.c:14 12 %"],
    )
    # One of them through a function of its own.
    stacks[1] = [frame(7, "strdup", 3), *stacks[1]]
    assert said(stacks, MAIN)[1] == ["at shop.c:12 50 %, shop.c:13 25 %, shop.c:14 12 %"]
    main = frame(MAIN, "main", 40)
    stacks = [[frame(10 + n, f"part_{n}", 1), frame(20 + n, "order_new", 5), main] for n in (0, 1)]
    assert said(stacks, MAIN) == ("order_new", ["through part_0 50 %, part_1 25 %"])
    # Nothing is known of lines or names: the two are told apart by nothing.
    bare = [[frame(10 + n, "order_new"), main] for n in range(3)]
    assert said(bare, MAIN) == ("order_new", [])
    stacks = [
        [frame(10 + n, f"part_{n}", 1), frame(30 + n, "plumbing"), frame(20 + n, "order_new"), main]
        for n in (0, 1)
    ]
    assert said(stacks, MAIN, "plumbing") == ("order_new", ["through part_0 50 %, part_1 25 %"])
    stacks = [[frame(10 + n, "order_new"), frame(MAIN, "main")] for n in range(2)]
    assert shared(stacks, 99) is None
    assert shared(stacks[:1], MAIN) is None


@pytest.mark.parametrize(
    ("callers", "words"),
    [
        (["checkout", "basket"], "called by checkout 50 %, basket 25 %"),
        (["checkout", "checkout"], "called by checkout at shop.c:20 50 %, shop.c:21 25 %"),
    ],
)
def test_one_function_that_leaks_for_several_callers(callers: list[str], words: str) -> None:
    """Its stacks are equal down to the allocation: the function is the one that they share."""
    inner = [frame(3, "strdup"), frame(2, "order_new", 12)]
    stacks = [
        [*inner, frame(10 + n, name, 20 + n), frame(MAIN, "main")] for n, name in enumerate(callers)
    ]
    assert said(stacks, 2) == ("order_new", [words])
