"""Short names: exact for each kind, and without surprises on whole libraries' names."""

import random
from pathlib import Path

import pytest

from tests.harness import Builder
from tests.unit.files.demangle.test_demangle import library, symbols
from tests.unit.names import names_in
from tracelloc.files.demangle import demangle
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.text import LONGEST_TEXT


@pytest.mark.parametrize(
    ("name", "short"), [*names_in("short"), *((odd, odd) for odd in ("", "operator "))]
)
def test_each_kind(name: str, short: str) -> None:
    assert shorten(name) == short
    assert shorten(short) == short


def names_of(path: Path, *options: str) -> list[str]:
    return sorted(map(demangle, symbols(path, *options)))


@pytest.mark.long
def test_whole_programs(builder: Builder) -> None:
    names = names_of(library("libstdc++.so.6"), "-D")
    names += names_of(builder.rust("names", "-C", "symbol-mangling-version=v0"))
    names += names_of(builder.rust("names"))
    assert len(names) > 5000
    unchanged = 0
    for name in names:
        short = shorten(name)
        assert len(short) <= len(name)
        assert shorten(short) == short
        # Its last words are still there.
        assert short.count("{closure") <= name.count("{closure")
        unchanged += short == name and "(" in name.replace("(anonymous namespace)", "")
    # Types of functions and conversions to them.
    assert unchanged <= len(names) // 200


def test_broken_names_do_no_harm() -> None:
    chance = random.Random(3)
    pieces = ["<", ">", "(", ")", "[", "]", "{", "}", "::", " ", "a", "operator", "->", " as ",
              "impl ", "'", '"', "\\", "operator<", " const", "decltype ", "\x1b", "\udcff",
              "…"]  # fmt: skip
    for _ in range(20_000):
        name = "".join(chance.choices(pieces, k=chance.randrange(1, 14)))
        short = shorten(name)
        assert len(short) <= len(name) + 3 * name.count("<")
        assert shorten(short) == short, name
    for bomb in ("<" * 60_000, "(" * 60_000, "a<" * 20_000 + ">" * 20_000, "<>" * 30_000,
                 "<" * 9000 + "a" + ">" * 9000 + "::f", '"\\' * 20_000 + "<",
                 "operator a" * 6000 + "(",
                 "x" * (LONGEST_TEXT + 1) + "()"):  # fmt: skip
        assert isinstance(shorten(bomb), str)
