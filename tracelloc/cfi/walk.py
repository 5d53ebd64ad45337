"""Following a stack by the full rules, from registers and a copy of its memory.

What the copy does not hold is not guessed: the stack ends there, and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from mmap import PAGESIZE
from typing import Final

from tracelloc.cfi import rules
from tracelloc.cfi.encoding import MASK, CfiError
from tracelloc.cfi.expressions import UnknownRegisterError, evaluate
from tracelloc.cfi.rules import CALLEE_SAVED, RBP, RIP, RSP, Rule, RuleSet

WORD_BYTES: Final = 8


class End(Enum):
    """Why a stack ends where it does. Only ``OUTERMOST`` ones are whole."""

    OUTERMOST = "there is no caller"
    LIMIT = "more frames than were asked for"
    OUTSIDE_COPY = "memory that was not copied"
    NO_MODULE = "an address where no file is mapped"
    DAMAGED = "call-frame information that makes no sense"
    UNKNOWN_REGISTER = "a register that was not recorded"
    NO_PROGRESS = "a caller that is not further up the stack"


@dataclass(frozen=True, slots=True)
class Walk:
    """A stack as far as it could be followed."""

    frames: tuple[int, ...]
    """Where execution was, then return addresses, innermost first."""
    end: End
    fallback_count: int
    """Of these, how many had no call-frame information: their callers were found by the
    frame pointer, if they had one."""


@dataclass(frozen=True, slots=True)
class StackCopy:
    """Memory of a stack as it was."""

    address: int
    data: bytes
    holes: int = 0
    """Pages that are missing: a bit for each."""

    def word(self, address: int) -> int:
        """The 64-bit number at an address. Raises OutsideCopyError."""
        at = address - self.address
        if not 0 <= at <= len(self.data) - WORD_BYTES:
            raise OutsideCopyError
        last = at + WORD_BYTES - 1
        if (self.holes >> at // PAGESIZE | self.holes >> last // PAGESIZE) & 1:
            raise OutsideCopyError
        return int.from_bytes(self.data[at : at + WORD_BYTES], "little")


class OutsideCopyError(Exception):
    """Memory is needed that was not copied."""


Lookup = Callable[[int], RuleSet | None]
"""The rules at an address of the running program; None where no file is mapped.

Asked for the byte before a return address. May raise CfiError."""


def unwind(
    registers: Mapping[int, int],
    stack: StackCopy,
    lookup: Lookup,
    *,
    limit: int = 127,
    is_interrupted: bool = False,
) -> Walk:
    """The call stack from ``registers``: by DWARF number, at least ``RIP`` and ``RSP``.

    ``is_interrupted`` says that execution was at any instruction, not just behind a call.
    Registers that are missing are only missed where a rule needs them.
    """
    known = dict(registers)
    frames = [known[RIP]]
    fallbacks = 0
    end = End.LIMIT
    try:
        while len(frames) < limit:
            found = lookup(frames[-1] - (not is_interrupted))
            if found is None:
                end = End.NO_MODULE
                break
            fallbacks += found.is_fallback
            if found.is_fallback and known.get(RBP) == 0:
                end = End.OUTERMOST  # AMD64 supplement, section 3.4.1
                break
            caller = step(found, known, stack)
            if caller is None or not caller[RIP]:
                end = End.OUTERMOST
                break
            if caller[RSP] <= known[RSP] and not found.is_signal:
                end = End.NO_PROGRESS
                break
            known = caller
            is_interrupted = found.is_signal
            frames.append(known[RIP])
    except OutsideCopyError:
        end = End.OUTSIDE_COPY
    except UnknownRegisterError:
        end = End.UNKNOWN_REGISTER
    except CfiError:
        end = End.DAMAGED
    return Walk(tuple(frames), end, fallbacks)


def step(found: RuleSet, known: Mapping[int, int], stack: StackCopy) -> dict[int, int] | None:
    """The caller's registers, as far as they can be known; None if there is no caller.

    Raises OutsideCopyError, UnknownRegisterError or CfiError if the caller can't be found.
    """
    address_rule = found.registers.get(found.return_register)
    if address_rule is None:
        raise UnknownRegisterError
    if address_rule[0] == rules.UNDEFINED:
        return None
    if found.cfa_expression:
        cfa = evaluate(found.cfa_expression, known, stack.word, None)
    else:
        cfa = _register(known, found.cfa_register) + found.cfa_offset & MASK
    caller = {n: known[n] for n in CALLEE_SAVED if n in known}
    caller[RSP] = cfa
    for register, rule in found.registers.items():
        if register == found.return_register or rule[0] == rules.SAME:
            continue
        try:
            caller[register] = _value(rule, cfa, known, stack)
        except (OutsideCopyError, UnknownRegisterError, CfiError):
            # May never be needed.
            caller.pop(register, None)
    if RSP not in caller:
        raise UnknownRegisterError
    caller[RIP] = _value(address_rule, cfa, known, stack)
    return caller


def _register(known: Mapping[int, int], register: int) -> int:
    if register not in known:
        raise UnknownRegisterError
    return known[register]


def _value(rule: Rule, cfa: int, known: Mapping[int, int], stack: StackCopy) -> int:
    how, number, expression = rule
    if how == rules.OFFSET:
        return stack.word(cfa + number & MASK)
    if how == rules.VAL_OFFSET:
        return cfa + number & MASK
    if how == rules.REGISTER:
        return _register(known, number)
    if how == rules.EXPRESSION:
        return stack.word(evaluate(expression, known, stack.word, cfa))
    if how == rules.VAL_EXPRESSION:
        return evaluate(expression, known, stack.word, cfa)
    raise UnknownRegisterError
