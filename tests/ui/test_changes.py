"""Only changes of the screen are written."""

import random
import re

import pytest

from tracelloc.ui.driver import ScreenChanges

WIDTH, HEIGHT = 60, 12
STYLES = ("", "\x1b[1;38;5;204m", "\x1b[48;5;234m")
WORDS = ("heap", "1.25 MiB", "+8.81 MiB ▲", "verdict", "────╮", "名前", "é", "")
PART = re.compile(r"\x1b\[(\d+);(\d+)H|(\x1b\[[\d;]*m)|([^\x1b])")


class Screen:
    """The cells of a terminal, as far as pictures need one; wide characters take two."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], tuple[str, str]] = {}

    def write(self, output: str) -> None:
        line, column, style = 1, 1, ""
        for part in PART.finditer(output):
            if part[1]:
                line, column = int(part[1]), int(part[2])
            elif part[3]:
                style = "" if part[3] == "\x1b[0m" else style + part[3]
            elif part[4] not in "\r\n":
                self.cells[line, column] = style, part[4]
                column += 1
                if ord(part[4]) > 0x3000:
                    self.cells[line, column] = style, ""
                    column += 1


def piece(line: int, column: int, *texts: tuple[str, str]) -> str:
    shown = "".join(f"{style}{text}\x1b[0m" if style else text for style, text in texts)
    return f"\x1b[{line};{column}H{shown}\r\n"


def test_any_pictures_lead_to_the_same_screen() -> None:
    chance = random.Random(7)
    whole, reduced, changes = Screen(), Screen(), ScreenChanges()
    written = kept = 0
    for _ in range(300):
        picture = ""
        for line in chance.sample(range(1, HEIGHT + 1), 4):
            texts = [
                (chance.choice(STYLES), chance.choice(WORDS).ljust(10)) for _ in range(WIDTH // 12)
            ]
            picture += piece(line, chance.choice((1, 1, 1, 7)), *texts)
        rest = changes.reduce(picture + "\x1b[1;1H")
        whole.write(picture)
        reduced.write(rest)
        written, kept = written + len(picture), kept + len(rest)
        assert reduced.cells == whole.cells
        assert rest.endswith("\x1b[1;1H")
    assert kept < written


def test_only_changed_cells_are_written() -> None:
    changes = ScreenChanges()
    first = piece(3, 1, ("", " Heap "), ("\x1b[1m", "5.67 MiB"), ("", "  RSS 8.02 MiB" + " " * 40))
    assert "Heap" in changes.reduce(first)
    assert changes.reduce(first) == ""
    assert changes.reduce(first.replace("5.67", "5.68")) == "\x1b[3;10H\x1b[1m8\x1b[0m"
    changes.forget()
    assert "Heap" in changes.reduce(first)


@pytest.mark.parametrize(
    ("other", "again"),
    [
        *((other, "\x1b[1;1HHeap")
          for other in ("\x1b[2J", "\x1b[?1049h", "\x1b[31;1HA\tB", "\x1b[1;1HA\x1b7")),
        ("\x1b[?2026h", ""),
    ],
)  # fmt: skip
def test_after_anything_else_all_is_written(other: str, again: str) -> None:
    """But for what only begins a picture or ends it."""
    changes = ScreenChanges()
    shown = piece(1, 1, ("", "Heap"))
    changes.reduce(shown)
    assert changes.reduce(other) == other
    assert changes.reduce(shown) == again
