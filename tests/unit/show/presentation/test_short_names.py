"""Short names: exact for each kind; broken names do no harm."""

import random

import pytest

from tests.unit.names import names_in
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.text import LONGEST_TEXT


@pytest.mark.parametrize(
    ("name", "short"), [*names_in("short"), *((odd, odd) for odd in ("", "operator "))]
)
def test_each_kind(name: str, short: str) -> None:
    assert shorten(name) == short
    assert shorten(short) == short


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
