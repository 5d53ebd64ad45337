"""Call stacks that a worker walks by full unwind rules, from registers and a copy of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native
from tracelloc.files.cfi.walk import End, Walk
from tracelloc.record.worker.client import CODE_WORKER, AskedFile, FileWorker
from tracelloc.record.worker.handle import NUMBERS, odd_answers, whole_number
from tracelloc.record.worker.walklayout import CODE_DTYPE, miss_dtype

U64 = npt.NDArray[np.uint64]

_MOST_AT_ONCE: Final = 64
"""Most stacks per question: some megabytes."""


class CopiedStack(Protocol):
    """A stack as sent by the probes."""

    @property
    def generation(self) -> int:
        """Generation of the mappings."""

    @property
    def registers(self) -> tuple[int, ...]:
        """Values in the order of ``Architecture.miss_registers``."""

    @property
    def stack_address(self) -> int:
        """Address of the copied memory."""

    @property
    def stack(self) -> bytes:
        """The copied memory."""

    @property
    def stack_holes(self) -> int:
        """A bit for each missing page."""


@dataclass(frozen=True, slots=True)
class FollowedStack:
    """The result for one stack."""

    walk: Walk
    met_unmapped: bool
    """Whether the walk met an address where nothing is mapped."""


class StackWalker:
    """Walks stacks of one process; after it has ended the worker twice, it is not asked again."""

    def __init__(self, pid: int) -> None:
        self.number = next(NUMBERS)
        self.missing = f"call stacks of process {pid} that the probes can't follow"
        self.generation = 0
        self.failure: str | None = None
        self._code = np.empty(0, CODE_DTYPE)
        self._files: list[AskedFile] = []

    def beginning(self) -> list[tuple[list[Any], list[int]]]:
        """Returns nothing: each question is self-contained."""
        return []

    def renew(
        self, code: Iterable[tuple[int, int, int, int, int]], files: Iterable[AskedFile]
    ) -> None:
        """Sets the current mappings: rows of ``CODE_DTYPE``, by address, and their files."""
        self._code = np.array(list(code), CODE_DTYPE)
        self._files = list(files)

    def fork(self, pid: int, generation: int) -> StackWalker:
        """Returns a walker for a copy of the address space, mapped since this generation."""
        child = StackWalker(pid)
        child._code, child._files = self._code.copy(), self._files
        child._code["since"] = generation
        return child

    def follow(
        self, stacks: Sequence[CopiedStack], limit: int, worker: FileWorker = CODE_WORKER
    ) -> tuple[list[FollowedStack], dict[int, int]]:
        """Returns one walk per stack, and the rows made during the walks, by address.

        Raises FileReadError.
        """
        found: list[FollowedStack] = []
        rows: dict[int, int] = {}
        for first in range(0, len(stacks), _MOST_AT_ONCE):
            some = stacks[first : first + _MOST_AT_ONCE]
            heads = np.zeros(len(some), miss_dtype(native()))
            for number, each in enumerate(some):
                heads[number] = (
                    each.registers, each.generation, each.stack_address, each.stack_holes,
                    len(each.stack),
                )  # fmt: skip
            data = b"".join((self._code.tobytes(), heads.tobytes(), *(s.stack for s in some)))
            question = ["stacks", limit, len(self._code), len(some)]
            answer, words = worker.exchange(self, question, data, beside=self._files)
            with odd_answers("stacks"):
                walks, more = _taken(answer, np.frombuffer(words, np.uint64), len(some), limit)
                found += walks
                rows.update(more)
        return found, rows


def _taken(
    answer: Any, words: U64, count: int, limit: int
) -> tuple[list[FollowedStack], dict[int, int]]:
    """Returns (walks, rows by address) of a checked answer. Raises ValueError, TypeError."""
    found = []
    at = 0
    for end, fallbacks, length, met_unmapped in answer:
        if not 0 < whole_number(length) <= min(limit, len(words) - at):
            raise ValueError("frames")
        frames = tuple(words[at : at + length].tolist())
        at += length
        walk = Walk(frames, End(end), whole_number(fallbacks))
        found.append(FollowedStack(walk, bool(met_unmapped)))
    pairs = len(words) - at
    if len(found) != count or pairs % 2:
        raise ValueError("stacks")
    addresses, rows = words[at : at + pairs // 2], words[at + pairs // 2 :]
    return found, dict(zip(addresses.tolist(), rows.tolist(), strict=True))
