"""Leaves out of the terminal's output what is on the screen already.

Textual writes all lines of a widget that was refreshed, changed or not: 18 KB a second for a few
figures. Its pictures consist of cursor movements, and of text with styles (ECMA-48: CUP and SGR);
anything else passes as it is.
"""

from __future__ import annotations

import re
import time
from itertools import groupby
from operator import itemgetter
from typing import Final

from rich.cells import get_character_cell_size

# A movement to (line, column), and what is written there.
_PIECE: Final = re.compile(r"\x1b\[(\d+);(\d+)H((?:\x1b\[[\d;]*m|[^\x00-\x1f\x7f])*)(?:\r?\n)?")
_WORD: Final = re.compile(r"(\x1b\[[\d;]*m)|([^\x1b]+)")
_SYNCHRONIZED: Final = "\x1b[?2026"  # Begins and ends a picture (DEC mode 2026); changes no cell
_PLAIN: Final = "\x1b[0m"
_NEAR: Final = 10  # Equal cells between two changed ones that are cheaper to write than to skip
# Everything is written again this often: another program may have written over it.
_REPAINT_S: Final = 30.0

Cell = tuple[str, str]  # (style, character)


class ScreenChanges:
    """What is on the screen, as far as it is known."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[int, Cell]] = {}
        # The last piece of each line, (column, content): most are written again unchanged
        self._latest: dict[int, tuple[int, str]] = {}
        self._painted_s = time.monotonic()

    def forget(self) -> None:
        """Takes nothing for known, as after another size."""
        self._lines.clear()
        self._latest.clear()
        self._painted_s = time.monotonic()

    def reduce(self, output: str) -> str:
        """Returns output that leads to the same screen."""
        if output.startswith(_SYNCHRONIZED):
            return output
        if time.monotonic() - self._painted_s > _REPAINT_S:
            self.forget()
        kept: list[str] = []
        at = 0
        while at < len(output):
            piece = _PIECE.match(output, at)
            if piece is None:
                self.forget()
                return output
            kept.append(self._changed(int(piece[1]), int(piece[2]), piece[3]))
            at = piece.end()
        return "".join(kept)

    def _changed(self, line: int, column: int, content: str) -> str:
        if not content:
            return _move(line, column)
        if self._latest.get(line) == (column, content):
            return ""
        self._latest[line] = column, content
        cells = _cells(content)
        if cells is None:
            # How wide the terminal takes these characters for is not certain.
            del self._latest[line]
            self._lines.pop(line, None)
            return _move(line, column) + content
        known = self._lines.setdefault(line, {})
        changed = [n for n, cell in enumerate(cells) if known.get(column + n) != cell]
        known.update(enumerate(cells, column))
        return "".join(
            _move(line, column + first) + _styled(cells[first:end]) for first, end in _runs(changed)
        )


def _move(line: int, column: int) -> str:
    return f"\x1b[{line};{column}H"


def _cells(content: str) -> list[Cell] | None:
    """Returns a cell per character; None if one may take more or less than a cell."""
    cells: list[Cell] = []
    style = ""
    for word in _WORD.finditer(content):
        if word[1]:
            style = "" if word[1] == _PLAIN else style + word[1]
        elif word[2].isascii() or all(get_character_cell_size(c) == 1 for c in word[2]):
            cells += [(style, character) for character in word[2]]
        else:
            return None
    return cells


def _runs(changed: list[int]) -> list[tuple[int, int]]:
    """Returns (first, end) of changed cells that are near each other."""
    runs: list[tuple[int, int]] = []
    for n in changed:
        if runs and n - runs[-1][1] <= _NEAR:
            runs[-1] = runs[-1][0], n + 1
        else:
            runs.append((n, n + 1))
    return runs


def _styled(cells: list[Cell]) -> str:
    runs = (
        (style, "".join(map(itemgetter(1), run))) for style, run in groupby(cells, itemgetter(0))
    )
    return "".join(f"{style}{text}{_PLAIN}" if style else text for style, text in runs)
