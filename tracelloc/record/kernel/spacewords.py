"""What the probes are told of one address space, in memory that both sides share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tracelloc.record.abi import GENERATION_MASK, TAG_BITS


class SpaceWords:
    """One element of the probes' ``spaces`` (``struct space``, probes/event.h)."""

    def __init__(self, spaces: npt.NDArray[Any], slot: int) -> None:
        """``spaces``: an array of ``abi.SPACE_DTYPE``."""
        self._words = spaces[slot : slot + 1]
        self._rows_words = self._words
        """What says which rows are valid: where stacks are walked."""
        self.slot = slot

    def walk_elsewhere(self, words: npt.NDArray[Any] | None) -> None:
        """Stacks are walked by who reads these words (an element of ``abi.SPACE_DTYPE``).

        None: by the probes. The generation stays as it is.
        """
        generation, tag = self.generation, int(self._rows_words["tag"][0])
        if words is not None:
            words["image"][0], words["lineage"][0] = self.image, self._words["lineage"][0]
        self._rows_words = self._words if words is None else words
        loads = int(self._rows_words["loads"][0])
        self._rows_words["changes"][0] = generation - loads & GENERATION_MASK
        self._rows_words["tag"][0] = tag

    @property
    def image(self) -> int:
        """The number of the memory image: another one after each exec."""
        return int(self._words["image"][0])

    def begin(self, image: int, parent: SpaceWords | None = None) -> None:
        """Another program, in memory that nothing is known of. It must be stopped.

        ``parent``: of the process whose memory it has a copy of, and so its stacks. The kernel
        sends its hijacked returns to the same address, too: the highest that is free.
        """
        words = self._words
        words["trampoline"][0] = 0 if parent is None else parent._words["trampoline"][0]
        words["loader_state"][0] = words["unloading"][0] = 0
        if parent is None:
            words["python"]["interpreter"][0] = 0
        else:
            words["python"][0] = parent._words["python"][0]
        words["changes"][0] += 1
        words["image"][0] = image
        words["lineage"][0] = image if parent is None else parent._words["lineage"][0]

    @property
    def moves(self) -> int:
        """How often another thread than the first has begun a program."""
        return int(self._words["moves"][0])

    @property
    def loader_calls(self) -> int:
        """Grows when the loader changes what is mapped."""
        return int(self._words["loader_calls"][0])

    @property
    def generation(self) -> int:
        """How often what is mapped has changed, so that rows may be outdated."""
        words = self._rows_words
        return int(words["loads"][0]) + int(words["changes"][0]) & GENERATION_MASK

    def note_change(self) -> None:
        """Outdates all rows: something else is mapped now, without the loader's telling."""
        self._rows_words["changes"][0] += 1

    def publish_tag(self, generation: int, tag: int) -> None:
        """Rows whose keys carry ``tag`` are for what is mapped in this generation."""
        self._rows_words["tag"][0] = generation << TAG_BITS | tag

    def set_trampoline(self, address: int) -> None:
        """Where hijacked returns go: lets the probes spot abandoned calls."""
        self._words["trampoline"][0] = address

    def set_loader_state(self, address: int) -> None:
        """Where the loader says what it is doing (``r_debug.r_state``, link.h)."""
        self._words["loader_state"][0] = address

    def set_python(
        self, interpreter: int, namespace: tuple[int, int], offsets: Mapping[str, int]
    ) -> None:
        """Where CPython has its frames (``struct python``, probes/event.h)."""
        python = self._words["python"]
        python["namespace_device"][0], python["namespace_inode"][0] = namespace
        for name, offset in offsets.items():
            python[name][0] = offset
        # The byte is taken out of its word.
        python["entry"][0] = offsets["entry"] & ~7
        python["entry_shift"][0] = offsets["entry"] % 8 * 8
        # From here on it is used.
        python["interpreter"][0] = interpreter
