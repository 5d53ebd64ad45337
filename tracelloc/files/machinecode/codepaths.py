"""Paths through the code of a function, to its exits.

Functions that may throw get no return probe (an exception could not pass it) but a probe on
each exit: their ret instructions, and those of the code that they jump to. Code is followed
from the entry along every branch; calls are assumed to return. Jumps out of the function, to
a split-off part or to another function, are followed as well, through the procedure linkage
table if it leads back into the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from functools import cached_property
from typing import Final

from tracelloc.architecture import Architecture, elf_architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.dataclass import dataclass, field
from tracelloc.errors import UnsupportedError
from tracelloc.files.cfi.core import OFFSET, UNDEFINED
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.machinecode import armcode, probeoffsets
from tracelloc.files.machinecode.instruction import CodeFlow, Instruction, ProbeOffset


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The functions of one architecture's module, which has their documentation."""

    find_probe_offset: Callable[[bytes, Iterable[str]], ProbeOffset | None]
    at_entry: Callable[[bytes], ProbeOffset | None]
    nop_at: Callable[[bytes], tuple[int, bool]]
    decode: Callable[[bytes, int], Iterator[Instruction]]


_RULES: Final = {
    machine: CodeRules(code.find_probe_offset, code.at_entry, code.nop_at, code.decode)
    for machine, code in ((X86_64, probeoffsets), (AARCH64, armcode))
}


def rules_for(architecture: Architecture | None) -> CodeRules:
    """Returns an architecture's rules. Raises UnsupportedError for an unknown one."""
    if architecture is None:
        raise UnsupportedError("its code is of an unknown machine")
    return _RULES[architecture]


_MOST_INSTRUCTIONS: Final = 8192
# Most instructions to follow in one file: some seconds. jemalloc needs a tenth of them.
_MOST_IN_FILE: Final = 1 << 18
_WORD_BYTES: Final = 8
_NO_RULE: Final = (UNDEFINED, 0, b"")
_READ_BYTES: Final = 512  # Bytes of code decoded at once
# Functions that do not return: the code after a call of them is not part of the path.
_NEVER_BACK: Final = (
    "abort", "exit", "__stack_chk_fail", "__assert_fail", "__cxa_throw", "__cxa_rethrow",
    "__cxa_bad_typeid", "__cxa_call_unexpected", "_Unwind_Resume", "_ZSt9terminatev",
    "_ZSt17__throw_bad_allocv", "_ZSt28__throw_bad_array_new_lengthv",
)  # fmt: skip


@dataclass(slots=True)
class CodePaths:
    """The exits found on the paths through a function."""

    # Functions whose calls end a path, by address in the file and by name
    stop_addresses: Set[int] = frozenset()
    stop_names: Set[str] = frozenset()
    rets: set[int] = field(default_factory=set)  # Addresses of ret instructions
    calls: set[int] = field(default_factory=set)  # Addresses to which calls return
    stopped: bool = False  # Whether a path ended at one of these
    has_refused: bool = False  # Whether a ret instruction can't have a probe
    trouble: str = ""  # Reasons why there may be more rets; empty if these are all


class CodeReader:
    """Follows the code of one file. Addresses are the file's own."""

    def __init__(self, elf: ElfFile) -> None:
        """``elf`` must stay open. Raises UnsupportedError for a file of an unknown machine."""
        self._elf = elf
        architecture = elf_architecture(elf.machine)
        self._decode = rules_for(architecture).decode
        assert architecture is not None
        self._architecture = architecture
        self._left = _MOST_IN_FILE

    def exits(self, entry: int) -> CodePaths:
        """Finds all ret instructions that may end a function, or why some are unknown."""
        walk = self._walk(entry, CodePaths())
        if not walk.rets and not walk.trouble:
            walk.trouble = "it has no ret instruction"
        if walk.has_refused and not walk.trouble:
            walk.trouble = "it returns by an instruction that can't have a probe"
        return walk

    def always_calls(
        self, entry: int, addresses: Iterable[int] = (), names: Iterable[str] = ()
    ) -> bool:
        """Whether a function always calls one of others before it returns."""
        walk = self._walk(entry, CodePaths(frozenset(addresses), frozenset(names)))
        return walk.stopped and not walk.rets and not walk.trouble

    def return_slot(self, entry: int, addresses: Iterable[int] = ()) -> int:
        """Returns where a function stores its return address before any call, if calls leave that
        in a register: words below the stack pointer at entry. 0 if unknown, or not always so.

        The function may jump to others at ``addresses``, whose own slots count from there on.
        """
        walk = self._walk(entry, CodePaths(frozenset(addresses)))
        found = {self._stored_at(address) for address in walk.calls}
        return found.pop() if len(found) == 1 and not walk.trouble else 0

    def _stored_at(self, address: int) -> int:
        """Returns the ``return_slot`` before a call; ``address``: where the call returns to."""
        rules = None if self._cfi is None else self._cfi.rules(address - 1)
        if rules is None or rules.is_fallback:
            return 0
        how, distance, _ = rules.registers.get(self._architecture.dwarf.return_address, _NO_RULE)
        is_stored = how == OFFSET and distance < 0 and distance % _WORD_BYTES == 0
        return -distance // _WORD_BYTES if is_stored else 0

    def _walk(self, entry: int, walk: CodePaths) -> CodePaths:
        open_paths, seen = [entry], set[int]()
        while open_paths and not walk.trouble:
            self._follow(open_paths.pop(), walk, open_paths, seen)
        return walk

    def _follow(self, address: int, walk: CodePaths, open_paths: list[int], seen: set[int]) -> None:
        """Follows code straight from an address until the path ends or joins a known one."""
        start = address
        while True:
            offset = self._elf.offset_of(address)
            code = b"" if offset is None else self._elf.read(offset, _READ_BYTES)
            decoded = False
            for instruction in self._decode(code, address):
                at = instruction.address
                if at in seen or (at != start and self._is_function(at)):
                    return
                if at + 15 > address + len(code) and len(code) == _READ_BYTES:
                    break  # it may be cut off
                seen.add(at)
                decoded = True
                self._left -= 1
                if len(seen) > _MOST_INSTRUCTIONS or self._left < 0:
                    walk.trouble = "it is too long to follow"
                if walk.trouble or self._ends_path(instruction, walk, open_paths):
                    return
                address, start = at + instruction.size, -1
            if not decoded:
                walk.trouble = "its code can't be decoded"
                return

    def _ends_path(self, instruction: Instruction, walk: CodePaths, open_paths: list[int]) -> bool:
        flow, target = instruction.flow, instruction.target
        if flow is CodeFlow.NEXT:
            return False
        if flow is CodeFlow.RETURN:
            walk.rets.add(instruction.address)
            walk.has_refused |= not instruction.can_have_probe
            return True
        if flow is CodeFlow.CALL:
            walk.calls.add(instruction.address + instruction.size)
            return self._is_stop(target, walk)
        if flow is CodeFlow.TRAP:
            return True
        if target is None:
            walk.trouble = f"it continues by {instruction.text}"
            return True
        if not self._is_stop(target, walk):
            behind = self._behind_stub(target, walk)
            if behind is not None and not self._is_stop(behind, walk):
                open_paths.append(behind)
        return flow is CodeFlow.JUMP

    def _is_stop(self, target: int | None, walk: CodePaths) -> bool:
        if target is None:
            return False
        name = self._stubs.get(target, "")
        if target in walk.stop_addresses or name in walk.stop_names:
            walk.stopped = True
            return True
        return name in _NEVER_BACK

    def _behind_stub(self, target: int, walk: CodePaths) -> int | None:
        """Returns a jump's final target in this file; if that is outside, None, and a trouble."""
        name = self._stubs.get(target)
        if name is None:
            return target
        own = self._elf.find_functions([name]).get(name)
        if own:
            return next(iter(own))
        walk.trouble = f"it continues in {name} of another file"
        return None

    @cached_property
    def _stubs(self) -> dict[int, str]:
        found = plt_functions(self._elf)
        return {address: name.removesuffix("@plt") for address, _, name in found}

    def _is_function(self, address: int) -> bool:
        return self._cfi is not None and self._cfi.is_start(address)

    @cached_property
    def _cfi(self) -> Cfi | None:
        with suppress(UnsupportedError):
            return Cfi(self._elf)
        return None
