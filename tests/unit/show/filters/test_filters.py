"""What filters do to stacks: actions, layers, groups, and what may change at run time."""

import random

import pytest

from tracelloc.errors import UsageError
from tracelloc.model.frames import Frame
from tracelloc.show.export.listings import fold
from tracelloc.show.filters import REVEALED, Filters, NamedStack
from tracelloc.show.filters.rules import (
    LONGEST_SUBJECT,
    Action,
    Match,
    Rule,
    function_name,
    parse_rules,
    trait_name,
)
from tracelloc.show.presentation.facts import stack_facts as json_stack
from tracelloc.show.presentation.facts import stack_lines as text_stack


def frame(name: str | None, module: str = "/opt/app", file: str | None = None) -> Frame:
    return Frame(0x1000, name, name, 4, 16, module, 0x34, file=file)


def named(*names: str | None) -> list[Frame]:
    """Frames whose names may end in ``@module``."""
    pairs = [(name or "").partition("@") for name in names]
    return [frame(name or None, module or "/opt/app") for name, _, module in pairs]


def filters(*texts: str) -> Filters:
    return Filters([parse_rules(text, f"{n}.toml") for n, text in enumerate(texts)])


def rule(pattern: str, **keys: str) -> str:
    lines = [f"{key.rstrip('_')} = '{value}'" for key, value in keys.items()]
    return "\n".join(["[[rule]]", f"pattern = '{pattern}'", *lines, ""])


def shown(stack: NamedStack) -> list[str | int]:
    """Names of frames, ``[label]count`` of runs, numbers of filtered frames."""
    result: list[str | int] = []
    for part in stack.parts():
        if part.frame is None:
            result.append(part.count)
        elif part.label is not None:
            result.append(f"[{part.label}]{part.count}")
        else:
            result.append(part.frame.symbol or "???")
    return result


RULES = rule("h") + rule("a", action="collapse", as_="A") + rule("b", action="collapse", as_="B")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("x y", ["x", "y"]),
        ("h x h h y h", [1, "x", 2, "y", 1]),
        ("x a a a y", ["x", "[A]3", "y"]),
        ("x a y a", ["x", "[A]1", "y", "[A]1"]),
        ("x a b a", ["x", "[A]1", "[B]1", "[A]1"]),
        # What is hidden between two frames of a run goes with it, what is beside it does not.
        ("x h a h h a h y", ["x", 1, "[A]4", 1, "y"]),
        ("x a h b y", ["x", "[A]1", 1, "[B]1", "y"]),
        # Something always stays.
        ("h h", ["h", "h"]),
        ("h1 h2 h3 h4 h5", ["h1", "h2", "h3", 2]),
        ("a1 a2 a3 a4 a5", ["a1", "a2", "a3", "[A]2"]),
        # Which of a library's functions it is tells more than what is hidden outright.
        ("h h a1 h a2 a3 h a4 b h", [2, "a1", 1, "a2", "a3", 1, "[A]1", "[B]1", 1]),
        ("h a1 h b1 h h h", [1, "a1", 1, "b1", 3]),
        # libc's frames say nothing of who allocates, whether a rule hides them or not.
        ("hm@/lib/libc.so.6 h1 h2 h3 h4", [1, "h1", "h2", "h3", 1]),
        ("h1 h2 x@/lib/libc.so.6", ["h1", "h2", "x"]),
        ("h1 h2 x", [2, "x"]),
        ("h1@/lib/libc.so.6 h2@/lib/libc.so.6", ["h1", "h2"]),
        ("", []),
    ],
)
def test_actions(names: str, expected: list[str | int]) -> None:
    assert shown(filters(RULES).apply(named(*names.split()))) == expected


@pytest.mark.parametrize(
    ("keys", "hidden"),
    [
        ({"pattern": "a.c"}, ["a.cd"]),
        ({"pattern": "^a.c", "match": "regex"}, ["a.cd", "abc"]),
        ({"pattern": "cd|bc", "match": "regex"}, ["a.cd", "abc", "bcd"]),
        ({"pattern": "/lib/x", "on": "module"}, ["in a module"]),
        ({"pattern": "/src/", "on": "file"}, ["in a file"]),
        ({"pattern": "my::", "on": "trait"}, ["<T as my::X>::f"]),
    ],
)
def test_matches(keys: dict[str, str], hidden: list[str]) -> None:
    frames = [
        frame("a.cd"), frame("abc"), frame("bcd"), frame("in a module", "/lib/x.so"),
        frame("in a file", file="/src/a.c"), frame("<T as my::X>::f"), frame(None),
    ]  # fmt: skip
    stack = filters(rule(**keys)).apply(frames)
    assert [f.symbol for f, h in zip(frames, stack.hidden, strict=True) if h] == hidden


def test_rules_decide_and_frames_are_remembered() -> None:
    some = filters(
        rule("p1") + rule("p2") + rule("s1$", match="regex") + rule("s2$", match="regex")
        + rule("m", on="module") + rule("p3")
    )  # fmt: skip
    names = ["p1", "p2", "p3", "xs1", "xs2", "s1x", "q@m"]
    assert some.apply(named(*names, "own")).hidden == [True] * 5 + [False, True, False]
    frames = named("std::a", "std::b", "own")
    hide_all = rule("std::")
    show_b = rule("std::b", action="show")
    assert shown(filters(hide_all).apply(frames)) == [2, "own"]
    assert shown(filters(hide_all, show_b).apply(frames)) == [1, "std::b", "own"]
    assert shown(filters(show_b, hide_all).apply(frames)) == [2, "own"]
    assert shown(filters(hide_all + show_b, hide_all).apply(frames)) == [2, "own"]
    again = rule("std::", action="collapse", as_="C++")
    assert shown(filters(hide_all, again).apply(frames)) == ["[C++]2", "own"]
    frames = named("std::a", "own")
    texts = (rule("std::", group="one"), rule("std::a", group="two", action="show"))
    some = filters(*texts)
    assert some.groups == {"one": True, "two": True}
    assert shown(some.apply(frames, 1)) == ["std::a", "own"]
    some.set_group("two", False)
    assert shown(some.apply(frames, 1)) == [1, "own"]
    some.set_group("one", False)
    assert shown(some.apply(frames, 1)) == ["std::a", "own"]
    assert some.version == 2
    some.set_group("one", False)
    assert some.version == 2
    assert filters(*texts, "[groups]\none = false").groups == {"one": False, "two": True}
    # A later file has its say on the groups of earlier ones.
    assert filters(*texts, "groups.one = false", "groups.one = true").groups["one"]
    with pytest.raises(UsageError, match="there is no filter group 'tow'; did you mean 'two'"):
        some.set_group("tow", True)
    # A file that could not be read at first can have names later.
    some = filters(rule("h"))
    first = some.apply([frame(None), frame("x")], 5)
    assert some.apply([frame(None), frame("x")], 5) is first
    assert shown(some.apply(named("h", "x"), 5)) == [1, "x"]
    assert shown(some.apply(named("x"), 5)) == ["x"]
    inlined = [
        Frame(0x10, name, name, 4, 16, "/opt/app", 4, file="a.rs", line=n, inlined=n < 2)
        for n, name in enumerate(["h", "a", "x"])
    ]
    assert shown(filters(RULES).apply(inlined)) == [1, "[A]1", "x"]


def test_rules_at_run_time() -> None:
    frames = named("x", "y", "z")
    some = filters(rule("x"))
    assert shown(some.apply(frames, 7)) == [1, "y", "z"]
    added = Rule("y", group="mine")
    some.add(added)
    assert some.version == 1
    assert shown(some.apply(frames, 7)) == [2, "z"]
    assert some.groups == {"mine": True}
    some.add(Rule("x", action=Action.SHOW))
    assert shown(some.apply(frames, 7)) == ["x", 1, "z"]
    assert some.added == (added, Rule("x", action=Action.SHOW))
    assert some.rules == (Rule("x"), *some.added)
    some.remove(added)
    assert shown(some.apply(frames, 7)) == ["x", "y", "z"]
    with pytest.raises(UsageError, match="this is not a regular expression: missing \\)"):
        some.add(Rule("(", Match.REGEX))
    with pytest.raises(ValueError, match="not in list"):
        some.remove(added)
    assert shown(some.apply(frames, 7)) == ["x", "y", "z"]


def test_text_json_and_folded_agree() -> None:
    stack = filters(RULES).apply(named("h", "x", "a", "h", "a", "y", "h"))
    at = "0x0000000000001000"
    assert list(text_stack(stack, 1)) == [
        "         (1 frame hidden)",
        f"        {at}: x+0x4/0x10 in /opt/app",
        f"        {at}: [A] (3 frames)",
        f"        {at}: y+0x4/0x10 in /opt/app",
        "         (1 frame hidden)",
    ]
    assert [(f["symbol"], f["hidden"], f["label"]) for f in json_stack(stack)] == [
        ("h", True, None), ("x", False, None), ("a", False, "A"), ("h", True, "A"),
        ("a", True, "A"), ("y", False, None), ("h", True, None),
    ]  # fmt: skip
    assert fold(stack, 1) == "app;y;[A];x"
    assert [
        f.symbol for f, hidden in zip(stack.frames, stack.hidden, strict=True) if not hidden
    ] == ["x", "a", "y"]
    hostile = filters(rule("a", action="collapse", as_="a;b‮")).apply(named("x", "a"))
    assert list(text_stack(hostile, 1))[1] == f"        {at}: [a;b\\u202e] (1 frame)"
    assert fold(hostile, 1) == "app;[a:b\\u202e];x"


@pytest.mark.parametrize("seed", range(20))
def test_every_frame_is_accounted_for(seed: int) -> None:
    rng = random.Random(seed)
    some = filters(RULES)
    for _ in range(200):
        names = rng.choices(["x", "y", "h", "a", "b", "m@libc.so.6"], k=rng.randrange(12))
        frames = named(*names)
        stack = some.apply(frames)
        parts = list(stack.parts())
        assert sum(part.count for part in parts) == len(frames)
        assert [p.frame for p in parts if p.frame is not None] == [
            frame for frame, hidden in zip(stack.frames, stack.hidden, strict=True) if not hidden
        ]
        filtered = sum(p.count for p in parts if p.frame is None)
        labels = stack.all_labels
        assert filtered == sum(
            h and label is None for h, label in zip(stack.hidden, labels, strict=True)
        )
        # A user's frame is there, and nothing is ever empty.
        assert [n for n in names if n in "xy"] == [
            p.frame.symbol for p in parts if p.frame and p.frame.symbol in ("x", "y")
        ]
        if frames:
            assert any(p.frame is not None and p.label is None for p in parts)
        if not any(n in "xy" for n in names):
            assert sum(p.frame is not None and p.label is None for p in parts) <= REVEALED + 12


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("main", "main"),
        ("shop::f(int) const", "shop::f(int) const"),
        ("void* shop::apply<shop::Clerk<int> >(shop::Clerk<int>)",
         "shop::apply<shop::Clerk<int> >(shop::Clerk<int>)"),
        ("std::vector<int> shop::make<int>(int)", "shop::make<int>(int)"),
        ("std::vector<int> (anonymous namespace)::g<int>(int)",
         "(anonymous namespace)::g<int>(int)"),
        ("(anonymous namespace)::g(int)", "(anonymous namespace)::g(int)"),
        ("operator new(unsigned long)", "operator new(unsigned long)"),
        ("bool std::operator< <char>(std::pair<char> const&)",
         "std::operator< <char>(std::pair<char> const&)"),
        ("shop::X::operator std::string() const", "shop::X::operator std::string() const"),
        ("decltype ((f)({parm#1})) std::__1::__invoke<X>(X&&)", "std::__1::__invoke<X>(X&&)"),
        ("f(int)::{lambda(int)#1} std::for_each<int>(int)", "std::for_each<int>(int)"),
        ("auto shop::f() const::{lambda(auto:1)#1}::operator()<int>(int) const",
         "shop::f() const::{lambda(auto:1)#1}::operator()<int>(int) const"),
        ("std::enable_if<(4>2), int>::type shop::k<int>(int)", "shop::k<int>(int)"),
        ("void shop::f[abi:cxx11]<int>(int)", "shop::f[abi:cxx11]<int>(int)"),
        ("foo(int) [clone .cold]", "foo(int) [clone .cold]"),
        ("<T as core::convert::Into<U>>::into", "<T as core::convert::Into<U>>::into"),
        ("a<b c", "a<b c"),
    ],
)  # fmt: skip
def test_function_names(symbol: str, name: str) -> None:
    assert function_name(symbol) == name


@pytest.mark.parametrize(
    ("symbol", "trait"),
    [
        ("<alloc::vec::Vec<<a::B as c::D>::E> as shop::Stock<x>>::stock::<<q as r>::s>",
         "shop::Stock<x>"),
        ("<&mut dyn Fn() -> u8 as x::Y>::z", "x::Y"),
        ("<shop::A>::f::<<b as c>::d>", None),
        ("shop::f::<<b as c>::d>", None),
        ("<a as ", None),
        ("<a as b", None),
    ],
)  # fmt: skip
def test_trait_names(symbol: str, trait: str | None) -> None:
    assert trait_name(symbol) == trait


def test_a_regex_sees_a_bounded_name() -> None:
    long = "a" * (LONGEST_SUBJECT - 1)
    some = filters(rule("b", match="regex"), rule("c$", match="regex"))
    frames = named(long + "b", long + "ab", long + "ac", "own")
    assert some.apply(frames).hidden == [True, False, False, False]
