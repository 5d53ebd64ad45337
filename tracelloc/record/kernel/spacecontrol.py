"""Control words of one address space, in memory shared with the probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tracelloc.record.abi import GENERATION_MASK, TAG_BITS
from tracelloc.record.kernel.rowtable import RowMemory


class _Word:
    """A control word that others read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, space: SpaceControl, owner: type) -> int:
        return int(space._words[self._name][0])


class SpaceControl:
    """Control words of one address space: an element of ``spaces`` (``struct space``)."""

    image = _Word("image")  # The number of the memory image, which changes at each exec
    moves = _Word("moves")  # Number of times that a thread other than the first has called exec
    loader_calls = _Word("loader_calls")  # A counter that grows when the loader changes mappings
    loader_state = _Word("loader_state")  # The address of the dynamic linker's state; 0: unknown

    def __init__(self, spaces: npt.NDArray[Any], slot: int, rows: RowMemory | None = None) -> None:
        """``spaces`` is an array of ``abi.SPACE_DTYPE``; ``rows``: where its unwind rows are."""
        self.rows = rows
        self._words = spaces[slot : slot + 1]
        # The words that tell which rows are valid, wherever stacks are walked
        self._rows_words = self._words
        self.slot = slot

    def walk_elsewhere(self, words: npt.NDArray[Any] | None) -> None:
        """Lets the preloaded library, which reads ``words``, walk stacks; None: the probes."""
        generation, tag = self.generation, int(self._rows_words["tag"][0])
        if words is not None:
            words["image"][0], words["lineage"][0] = self.image, self._words["lineage"][0]
        self._rows_words = self._words if words is None else words
        loads = int(self._rows_words["loads"][0])
        self._rows_words["changes"][0] = generation - loads & GENERATION_MASK
        self._rows_words["tag"][0] = tag
        self._rows_words["tag_image"][0] = self._rows_words["image"][0]

    def begin(self, image: int, parent: SpaceControl | None = None) -> None:
        """Resets the words for a new memory image; the process must be stopped.

        ``parent``: words of the process that forked this one, with a copy of its memory and stacks.
        The kernel sends hijacked returns of both to the same address: the highest free one.
        """
        words = self._words
        for name in ("loader_state", "first_library", "sent_library", "unloading", "tag"):
            words[name][0] = 0
        words["changes"][0] += 1
        words["image"][0] = image
        if parent is None:
            words["trampoline"][0] = words["python"]["interpreter"][0] = 0
            words["lineage"][0] = image
        else:
            for name in ("trampoline", "python", "lineage"):
                words[name][0] = parent._words[name][0]

    @property
    def generation(self) -> int:
        """Number of changes of the mappings; a change outdates unwind rows."""
        words = self._rows_words
        return int(words["loads"][0]) + int(words["changes"][0]) & GENERATION_MASK

    def note_change(self) -> None:
        """Outdates all rows after a change of mappings that the loader did not report."""
        self._rows_words["changes"][0] += 1

    def publish_tag(self, generation: int, tag: int) -> None:
        """Publishes that rows whose keys have ``tag`` are valid in this generation."""
        words = self._rows_words
        words["tag"][0] = generation << TAG_BITS | tag
        words["tag_image"][0] = words["image"][0]

    def note_exec(self) -> None:
        """Notes that the process has executed another program."""
        self._words["image"][0] += 1

    def set_trampoline(self, address: int) -> None:
        """Sets where hijacked returns go, which lets the probes detect abandoned calls."""
        self._words["trampoline"][0] = address

    def set_loader(self, state: int, library: int) -> None:
        """Sets the addresses of the loader's state (``r_debug.r_state``, link.h) and of a record.

        That is of the last library that stays mapped (``struct link_map``).
        """
        self._words["loader_state"][0], self._words["first_library"][0] = state, library

    def set_python(
        self, interpreter: int, namespace: tuple[int, int], offsets: Mapping[str, int]
    ) -> None:
        """Sets where CPython stores its frames (``struct python``, probes/event.h)."""
        python = self._words["python"]
        python["namespace_device"][0], python["namespace_inode"][0] = namespace
        for name, offset in offsets.items():
            python[name][0] = offset
        # The probes extract the byte from its word.
        python["entry"][0] = offsets["entry"] & ~7
        python["entry_shift"][0] = offsets["entry"] % 8 * 8
        # This enables it.
        python["interpreter"][0] = interpreter
