"""Call stacks in a worker: finishes with full unwind rules what the probes could not.

``walks`` is the other side, ``walklayout`` the data layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracelloc.architecture import Architecture, native
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.rules import built_in_rules
from tracelloc.record.worker.readcode import ReadCode
from tracelloc.record.worker.walklayout import CODE_DTYPE, GENERATED, miss_dtype


class _MappedCode:
    """Mapped code, and the results of lookups in it."""

    def __init__(
        self, files: Mapping[int, ReadCode], mappings: Any, architecture: Architecture
    ) -> None:
        self._files = files
        self._generated = built_in_rules(architecture).frame_pointer
        self._starts: list[int] = mappings["start"].tolist()
        self._mappings: list[tuple[int, int, int, int, int]] = mappings.tolist()
        self.rows: dict[int, int] = {}
        """Rows made during the walks, by address."""
        self.has_unmapped = False

    def at(self, generation: int) -> Callable[[int], RuleSet | None]:
        """Returns a function from an address to its rules in a generation."""
        return lambda address: self._look_up(address, generation)

    def _look_up(self, address: int, generation: int) -> RuleSet | None:
        """Returns the rules; None if there are none. Raises CfiError."""
        at = bisect_right(self._starts, address) - 1
        start, end, since, number, offset = self._mappings[at] if at >= 0 else (0,) * 5
        if address >= end:
            self.has_unmapped = True
            return None
        # Something else may have been mapped there in that generation.
        if since > generation:
            return None
        if number == GENERATED:
            rules = self._generated
        else:
            file = self._files.get(number)
            inside = None if file is None else file.elf.address_of(offset + address - start)
            if file is None or file.cfi is None or inside is None:
                # The file can't be read, and a guess could be wrong.
                return None
            rules = file.rules(inside)
        self.rows[address] = rules.row(address)
        return rules


def finish_stacks(
    files: Mapping[int, ReadCode],
    data: bytes,
    limit: int,
    mappings: int,
    misses: int,
    *,
    architecture: Architecture | None = None,
) -> tuple[Any, bytes]:
    """Returns per stack its end, guessed frames, number of frames, whether it met unmapped code.

    The bytes are all frames, then addresses, then their rows. ``architecture``: None: this
    machine's.
    """
    architecture = architecture or native()
    code = _MappedCode(files, np.frombuffer(data, CODE_DTYPE, mappings), architecture)
    at = mappings * CODE_DTYPE.itemsize
    head = miss_dtype(architecture)
    heads = np.frombuffer(data, head, misses, at)
    at += misses * head.itemsize
    walks, frames = [], list[int]()
    for registers, generation, address, holes, size in heads.tolist():
        code.has_unmapped = False
        walk = unwind(
            dict(zip(architecture.miss_registers, registers, strict=True)),
            StackCopy(address, data[at : at + size], holes),
            code.at(generation),
            limit=limit,
            architecture=architecture,
        )
        at += size
        walks.append([int(walk.end), walk.fallback_count, len(walk.frames), code.has_unmapped])
        frames += walk.frames
    words = [*frames, *code.rows.keys(), *code.rows.values()]
    return walks, np.array(words, np.uint64).tobytes()
