"""Names of all stacks for tables and search, computed within a time limit per picture.

Only the refresher's thread computes names. While symbols are being read, names change
several times a second. Each update names the stacks on the screen first, then the largest
ones until its time is up.
"""

import re
import time
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.model.codefiles import base_name
from tracelloc.model.figures import I64, Mask
from tracelloc.model.frames import Frame
from tracelloc.show.filters.rules import LONGEST_SUBJECT
from tracelloc.show.presentation.naming import Namer, frame_name, stack_title
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import printable
from tracelloc.ui.tableview import clean

Ids = npt.NDArray[np.intp]

# Time limit per picture for names that nothing waits for and that may still change.
SPARE_S: Final = 0.003
# Time limit per picture once no symbols are being read; the next picture goes on.
QUIET_S: Final = 0.05
EVERY_S: Final = 0.1  # Time limit per picture if rows are searched or sorted by name
# Stacks that are named although nothing waits for it, the heaviest ones.
_MOST_NAMED: Final = 1 << 15
FIRST: Final = 32  # Stacks that are named whatever the time: a screenful
_SPARE_TEXTS: Final = 1024  # Labels no longer in use that are kept, beside two per stack
_NO_IDS: Final = np.zeros(0, np.intp)


class Labels(dict[int, str]):
    """One-line names of the stacks that have been named so far.

    The refresher's thread writes them; the drawing thread reports which ones it shows.
    """

    def __init__(self, asked: Callable[[], None]) -> None:
        super().__init__()
        self.fresh = np.zeros(0, np.bool_)  # Per stack whether its label is up to date
        # Per stack the number of its label; equal labels have equal numbers
        self.numbers = np.zeros(0, np.int64)
        self.texts = [""]  # Labels by number; stacks without a label have number 0
        self._number_of = {"": 0}
        self.wanted: set[int] = set()  # Stacks on the screen whose labels are not up to date
        self._asked = asked

    def shown(self, stack: int) -> str:
        if stack >= len(self.fresh) or not self.fresh[stack]:
            self.wanted.add(stack)
            if stack not in self:
                self._asked()
        return self.get(stack, "…")

    def put(self, stack: int, label: str) -> None:
        number = self._number_of.setdefault(label, len(self.texts))
        if number == len(self.texts):
            self.texts.append(label)
        # Equal labels share one string.
        self[stack] = self.texts[number]
        self.numbers[stack] = number
        self.fresh[stack] = True

    def grow(self, stacks: int) -> None:
        more = stacks - len(self.fresh)
        self.fresh = np.pad(self.fresh, (0, more))
        self.numbers = np.pad(self.numbers, (0, more))

    def expire(self) -> None:
        """Marks all labels as out of date; they are shown until the stacks have new ones."""
        self.fresh[:] = False
        if len(self.texts) > _SPARE_TEXTS + 2 * len(self.numbers):
            used, numbers = np.unique(np.append(0, self.numbers), return_inverse=True)
            self.numbers = numbers[1:]
            self.texts = [self.texts[number] for number in used.tolist()]
            self._number_of = {text: number for number, text in enumerate(self.texts)}


class Search:
    """A search by a regular expression, or by plain text if that is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Smart case, as in less and vim: capitals in the search make it case-sensitive.
        flags = 0 if any(letter.isupper() for letter in text) else re.IGNORECASE
        try:
            self.pattern = re.compile(text, flags)
        except (re.error, OverflowError, RecursionError):
            self.pattern = re.compile(re.escape(text), flags)

    def matches(self, text: str) -> bool:
        return self.pattern.search(text, 0, LONGEST_SUBJECT) is not None


class Names:
    """The labels of stacks, and the stacks that a search finds."""

    def __init__(
        self, namer: Namer, now_s: Callable[[], float] = time.monotonic,
        asked: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``asked``: called when a stack is shown that has no name yet."""
        self._namer = namer
        self._now_s = now_s
        # Labels per stack: the program's own innermost function and its caller
        self.labels = Labels(asked)
        # Version of the namer that the names come from
        self._version: tuple[int, int] | None = None
        # Per stack whether a search sees its current names
        self._searchable = np.zeros(0, np.bool_)
        self._ids: dict[int, Ids] = {}
        self._words: dict[tuple[str | None, str | None, str | None], int] = {}
        self._texts: list[str] = []
        self._found: tuple[str, list[bool]] = "", []
        self.pending = 0  # Number of stacks whose names are still to be computed
        self.asks_again = False  # Whether something else in the picture is left to the next one

    def update(
        self, snapshot: Snapshot, order: I64, *, every: bool = False, search: bool = False
    ) -> None:
        """Names stacks in ``order``. ``every``: for longer; ``search``: makes them searchable."""
        self._begin(snapshot)
        labels = self.labels
        wanted, labels.wanted = labels.wanted, set()
        done = self._searchable if search else labels.fresh
        needs_all, is_quiet = every or search, self._namer.symbols.waiting == 0
        order = order if needs_all else order[:_MOST_NAMED]
        left = order[~done[order]]
        first = [stack for stack in wanted if stack < len(snapshot.totals)]
        limit_s = EVERY_S if needs_all else QUIET_S if is_quiet else SPARE_S
        end_s = self._now_s() + limit_s
        count = 0
        for count, stack in enumerate((*first, *left[:FIRST].tolist(), *left[FIRST:].tolist()), 1):
            if not labels.fresh[stack]:
                self._name(snapshot, stack)
            if search and not self._searchable[stack]:
                frames = self._namer.stack(snapshot, stack).frames
                words = sorted({self._word(frame) for frame in frames})
                self._ids[stack] = np.array(words, np.intp)
                self._searchable[stack] = True
            if count >= len(first) + FIRST and self._now_s() > end_s:
                break
        missing = len(first) + len(left) - count
        self.pending = missing if needs_all else 0
        # Rows with equal names are one row, so all names are needed sooner or later.
        self.asks_again = missing > 0 and is_quiet

    def _begin(self, snapshot: Snapshot) -> None:
        labels, stacks = self.labels, len(snapshot.totals)
        if self._version != self._namer.version:
            self._version = self._namer.version
            labels.expire()
            self._searchable[:] = False
        if (more := stacks - len(labels.fresh)) > 0:
            labels.grow(stacks)
            self._searchable = np.pad(self._searchable, (0, more))

    def label(self, snapshot: Snapshot, stack: int) -> str:
        if not self.labels.fresh[stack]:
            self._name(snapshot, stack)
        return self.labels[stack]

    def _name(self, snapshot: Snapshot, stack: int) -> None:
        title = stack_title(self._namer.stack(snapshot, stack), stack, with_line=True)
        self.labels.put(stack, clean(title))

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
        indices = list(order)
        text, hits = self._found
        if text != search.text:
            hits = []
        # Names are only ever added: match just the new ones.
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
            # A label may contain text that is no frame's name: that of a collapsed run.
            if "[" in (line := labels.get(indices[at], "")):
                result[at] = search.matches(line)
        return result


def frame_place(frame: Frame) -> str:
    """Returns ``file:line``, or the module if the file is unknown."""
    if frame.file is not None:
        line = f":{frame.line}" if frame.line is not None else ""
        return clean(frame.file) + line
    return clean(base_name(frame.module)) if frame.module else ""
