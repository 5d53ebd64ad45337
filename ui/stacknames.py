"""Names of all stacks for tables and search, a bounded piece of work at a time.

Only the refresher's thread uses this. While symbols are being read, names change several
times a second; ten thousand stacks are then named over several ticks, the largest first,
so that no tick takes long.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.filters.rules import LONGEST_SUBJECT
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name
from tracelloc.text import printable
from tracelloc.ui.tableview import clean
from tracelloc.views.naming import Namer, frame_name
from tracelloc.views.titles import stack_title

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.intp]

BUDGET_S: Final = 0.02
"""How long names may take per tick."""
_AT_A_TIME: Final = 64
_NO_IDS: Final = np.zeros(0, np.intp)


class Search:
    """A search: a regular expression, or plain text if it is not one."""

    def __init__(self, text: str) -> None:
        self.text = text
        # As less and vim have it: capitals only where they are typed.
        flags = 0 if any(letter.isupper() for letter in text) else re.IGNORECASE
        try:
            self.pattern = re.compile(text, flags)
        except (re.error, OverflowError, RecursionError):
            self.pattern = re.compile(re.escape(text), flags)

    def matches(self, text: str) -> bool:
        """Whether the search finds something in the text."""
        return self.pattern.search(text, 0, LONGEST_SUBJECT) is not None


class Names:
    """One line per stack, and which stacks a search finds."""

    def __init__(self, namer: Namer, now_s: Callable[[], float] = time.monotonic) -> None:
        self._namer = namer
        self._now_s = now_s
        self.labels: dict[int, str] = {}
        """What allocated: the program's own innermost function and the one that called it."""
        self._seen: dict[int, tuple[int, int]] = {}
        self._ids: dict[int, Ids] = {}
        self._words: dict[tuple[str | None, str | None, str | None], int] = {}
        self._texts: list[str] = []
        self._found: tuple[str, list[bool]] = "", []
        self.pending = 0
        """Stacks whose names may change still."""

    def update(self, snapshot: Snapshot, order: Sequence[int]) -> None:
        """Names these, the first ones first."""
        version = self._namer.version
        outdated = [index for index in order if self._seen.get(index) != version]
        end_s = self._now_s() + BUDGET_S
        done = 0
        for index in outdated:
            if done % _AT_A_TIME == 0 and done and self._now_s() > end_s:
                break
            done += 1
            self._name(snapshot, index, version)
        self.pending = len(outdated) - done

    def _name(self, snapshot: Snapshot, index: int, version: tuple[int, int]) -> None:
        stack = self._namer.stack(snapshot, index)
        self._seen[index] = version
        self._ids[index] = np.array(sorted({self._word(frame) for frame in stack.frames}), np.intp)
        self.labels[index] = clean(stack_title(stack, index, with_line=True))

    def _word(self, frame: Frame) -> int:
        key = frame.symbol, frame.module, frame.file
        word = self._words.get(key)
        if word is None:
            word = self._words[key] = len(self._texts)
            parts = [frame.symbol or frame_name(frame)]
            parts.extend(part for part in (frame.module, frame.file) if part)
            self._texts.append("\n".join(printable(part) for part in parts))
        return word

    def found(self, search: Search, order: Iterable[int]) -> Mask:
        """Which of these stacks have a frame that the search finds."""
        indices = list(order)
        text, hits = self._found
        if text != search.text:
            hits = []
        # New names have come since, at most.
        hits.extend(search.matches(text) for text in self._texts[len(hits) :])
        self._found = search.text, hits
        labels = self.labels
        parts = [self._ids.get(index, _NO_IDS) for index in indices]
        lengths = np.array([len(part) for part in parts], np.intp)
        result: Mask = np.zeros(len(indices), np.bool_)
        some = lengths > 0
        if some.any():
            flat = np.array(hits, np.bool_)[np.concatenate(parts)]
            starts = np.concatenate(([0], np.cumsum(lengths[some])[:-1]))
            result[some] = np.logical_or.reduceat(flat, starts)
        for at in np.flatnonzero(~result).tolist():
            # What the line says without being a frame's name: labels of collapsed runs.
            if "[" in (line := labels.get(indices[at], "")):
                result[at] = search.matches(line)
        return result


def place(frame: Frame) -> str:
    """``file:line``, or the module if there is no line."""
    if frame.file is not None:
        line = f":{frame.line}" if frame.line is not None else ""
        return clean(frame.file) + line
    return clean(base_name(frame.module)) if frame.module else ""
