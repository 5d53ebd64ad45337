"""All files of a worker, and unwinding of call stacks through them by full unwind rules."""

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import Architecture, native
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import built_in_rules
from tracelloc.files.cfi.walk import End
from tracelloc.files.elf import ElfFile
from tracelloc.record.worker.questions import Descriptor, question
from tracelloc.record.worker.symbolfilereader import SymbolFileReader

U64 = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]

# A mapping of code, by address: the generation since which it is known to be there, the number of
# its file, and the offset in the file.
CODE_DTYPE: Final = np.dtype(
    [("start", "<u8"), ("end", "<u8"), ("since", "<i8"), ("file", "<i8"), ("offset", "<u8")]
)
GENERATED: Final = -1  # In place of a file's number: code without a file
UNREADABLE: Final = -2  # In place of a file's number: a file that can't be read


@cache
def miss_dtype(architecture: Architecture) -> np.dtype[Any]:
    """Returns the layout of a stack's head in a question.

    The head has registers, in the order of ``Architecture.miss_registers``, the generation, the
    address of the copied memory, a mask of missing pages, and how many bytes of it are sent.
    """
    return np.dtype([
        ("registers", "<u8", (len(architecture.miss_registers),)),
        ("generation", "<i8"),
        ("address", "<u8"),
        ("holes", "<u8"),
        ("size", "<i8"),
    ])  # fmt: skip


# Frames, end, number of guessed frames, and whether it met unmapped code, of each stack; then the
# addresses where rows were made during the walks, and these rows.
FinishedStacks = tuple[list[tuple[U64, End, int, bool]], U64, U64]


def _are_possible(found: FinishedStacks, limit: int, _: Records, heads: Records, __: bytes) -> bool:
    walks, addresses, rows = found
    return (
        len(walks) == len(heads)
        and all(0 < len(frames) <= limit for frames, *_ in walks)
        and len(addresses) == len(rows)
    )


class KnownFiles:
    """The files that a worker knows, by numbers that tracelloc chooses."""

    def __init__(self, architecture: Architecture | None = None) -> None:
        """``architecture``: of the stacks; None: this machine's."""
        self.architecture = architecture or native()
        self.by_number: dict[int, SymbolFileReader] = {}

    @question()
    def open_file(self, number: int, descriptor: Descriptor) -> None:
        """Takes over the descriptor of a new file."""
        self.by_number[number] = SymbolFileReader(ElfFile(descriptor.number))

    @question()
    def close_file(self, number: int) -> None:
        """Closes a file, given its number, if it is known."""
        file = self.by_number.pop(number, None)
        if file is not None:
            file.close()

    @question(_are_possible)
    def stacks(
        self,
        limit: int,
        mappings: Annotated[Records, CODE_DTYPE],
        heads: Annotated[Records, miss_dtype(native())],
        memory: bytes,
    ) -> FinishedStacks:
        """Unwinds call stacks, given ``heads`` and the copied ``memory`` of all stacks."""
        code = _MappedCode(self, mappings)
        at = 0
        walks = []
        for registers, generation, address, holes, size in heads.tolist():
            code.has_unmapped = False
            frames, end, guessed = unwind(
                dict(zip(self.architecture.miss_registers, registers, strict=True)),
                StackCopy(address, memory[at : at + size], holes),
                code.at(generation),
                limit=limit,
                architecture=self.architecture,
            )
            at += size
            walks.append((np.array(frames, np.uint64), end, guessed, code.has_unmapped))
        addresses = np.array(list(code.rows), np.uint64)
        return walks, addresses, np.array(list(code.rows.values()), np.uint64)


class _MappedCode:
    def __init__(self, files: KnownFiles, mappings: Records) -> None:
        self._files = files.by_number
        self._generated = built_in_rules(files.architecture).frame_pointer
        self._starts: list[int] = mappings["start"].tolist()
        self._mappings: list[tuple[int, int, int, int, int]] = mappings.tolist()
        self.rows: dict[int, int] = {}  # Rows made during the walks, by address
        self.has_unmapped = False

    def at(self, generation: int) -> Callable[[int], RuleSet | None]:
        """Returns a function from an address to its unwind rules in a generation of mappings."""
        return lambda address: self._look_up(address, generation)

    def _look_up(self, address: int, generation: int) -> RuleSet | None:
        """Returns an address's unwind rules; None if nothing is mapped there. Raises CfiError."""
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
