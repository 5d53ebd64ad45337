"""Call stacks that a worker walks by full unwind rules, from registers and a copy of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracelloc.architecture import native
from tracelloc.files.cfi.walk import Walk
from tracelloc.model.events import Miss
from tracelloc.record.worker.client import CODE_WORKER, AskedFile, FileWorker
from tracelloc.record.worker.knownfiles import CODE_DTYPE, KnownFiles, miss_dtype

_MOST_AT_ONCE: Final = 64  # Most stacks per question: some megabytes


@dataclass(frozen=True, slots=True)
class FollowedStack:
    """The result for one stack."""

    walk: Walk
    met_unmapped: bool  # Whether the walk met an address where nothing is mapped


class StackWalker(AskedFile):
    """Walks stacks of one process; after it has ended the worker twice, it is not asked again."""

    def __init__(self, pid: int, worker: FileWorker = CODE_WORKER) -> None:
        super().__init__(worker, f"call stacks of process {pid} that the probes can't follow")
        self._code = np.empty(0, CODE_DTYPE)

    def renew(
        self, code: Iterable[tuple[int, int, int, int, int]], files: Iterable[AskedFile]
    ) -> None:
        """Sets the current mappings: rows of ``CODE_DTYPE``, by address, and their files."""
        self._code = np.array(list(code), CODE_DTYPE)
        self.beside = list(files)

    def fork(self, pid: int, generation: int) -> StackWalker:
        """Returns a walker for a copy of the address space, mapped since this generation."""
        child = StackWalker(pid)
        child._code, child.beside = self._code.copy(), self.beside
        child._code["since"] = generation
        return child

    def follow(
        self, stacks: Sequence[Miss], limit: int
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
            memory = b"".join(each.stack for each in some)
            walks, addresses, found_rows = self.ask(
                KnownFiles.stacks, limit, self._code, heads, memory
            )
            for frames, end, guessed, met_unmapped in walks:
                walk = Walk(tuple(frames.tolist()), end, guessed)
                found.append(FollowedStack(walk, met_unmapped))
            rows.update(zip(addresses.tolist(), found_rows.tolist(), strict=True))
        return found, rows
