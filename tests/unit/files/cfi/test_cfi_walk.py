"""Stacks followed by the full rules, and by rows alone, against libgcc's own unwinder."""

import random
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import Builder
from tests.unit.references import open_elf
from tests.unit.unwindrows import (
    BP_AT_BP,
    BP_UNCHANGED,
    FRAME_POINTER,
    RBP,
    RBX,
    RIP,
    RSP,
    SIGNAL_IP,
    Kind,
    decode,
)
from tracelloc.files.cfi import core
from tracelloc.files.cfi.core import MASK, RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.walk import End, Walk
from tracelloc.files.elf import ElfFile
from tracelloc.record.process.procfs import AddressMap, parse_maps

# -- real stacks

RECORD = struct.Struct("<16s17Q17QQ128QQQ")


@dataclass
class Sample:
    """One stack as tests/targets/frames.c writes it."""

    name: str
    registers: dict[int, int]
    interrupted: dict[int, int]
    # What backtrace() found; the first one is in the function that called it.
    expected: tuple[int, ...]
    stack: StackCopy


class Program:
    """A run of tests/targets/frames.c: its samples and the files that were mapped."""

    def __init__(self, path: Path, out: Path) -> None:
        run(path, out)
        data = out.read_bytes()
        (size,) = struct.unpack_from("<Q", data)
        self.maps = AddressMap(parse_maps(data[8 : 8 + size].decode()).values())
        self.files: dict[str, tuple[ElfFile, Cfi]] = {}
        self.samples = []
        self.kinds: Counter[str] = Counter()
        at = 8 + size
        while at < len(data):
            fields = RECORD.unpack_from(data, at)
            at += RECORD.size
            end = at + fields[-1]
            self.samples.append(
                Sample(
                    fields[0].rstrip(b"\0").decode(),
                    dict(enumerate(fields[1:18])),
                    dict(enumerate(fields[18:35])),
                    fields[36 : 36 + fields[35]],
                    StackCopy(fields[-2], data[at:end]),
                )
            )
            at = end

    def find(self, address: int) -> tuple[Cfi, int] | None:
        """What knows about an address, and the address in that file's own space."""
        mapping = self.maps.find(address)
        if mapping is None or not mapping.is_file or not mapping.executable:
            return None
        if mapping.path not in self.files:
            elf = open_elf(mapping.path)
            self.files[mapping.path] = elf, Cfi(elf)
        elf, cfi = self.files[mapping.path]
        own = elf.address_of(address - mapping.start + mapping.offset)
        return None if own is None else (cfi, own)

    def lookup(self, address: int) -> RuleSet | None:
        """As libgcc sees it, code without information is not code."""
        found = self.find(address)
        known = found[0].rules(found[1]) if found else None
        return None if known is None or known.is_fallback else known

    def walk_by_rows(self, sample: Sample, *, is_interrupted: bool) -> tuple[list[int], str]:
        """What the probes will do: the frames, and what ended them."""
        registers = sample.interrupted if is_interrupted else sample.registers
        sp, bp, ip = registers[RSP], registers[RBP], registers[RIP]
        frames = [ip]

        def word(address: int) -> int:
            at = address - sample.stack.address
            assert 0 <= at <= len(sample.stack.data) - 8
            return int.from_bytes(sample.stack.data[at : at + 8], "little")

        while True:
            found = self.find(ip - (not is_interrupted))
            if ip == 0 or not found:
                return (frames, "NOWHERE") if ip else (frames[:-1], "END")
            row = decode(found[0].row(found[1]))
            self.kinds[row.reason.name if row.reason else row.kind.name] += 1
            is_interrupted = row.kind is Kind.SIGNAL
            if is_interrupted:
                ip = word(sp + SIGNAL_IP)
                bp, sp = word(sp + row.bp_slot), word(sp + row.cfa_offset)
                frames.append(ip)
                continue
            if row.kind is Kind.SP:
                cfa = sp + row.cfa_offset
            elif row.kind is Kind.BP:
                cfa = bp + row.cfa_offset
            elif row.kind is Kind.REALIGNED:
                cfa = word(bp + row.cfa_offset)
            else:
                return frames, row.kind.name
            if row.bp_slot != BP_UNCHANGED:
                bp = word(bp if row.bp_slot == BP_AT_BP else cfa + row.bp_slot)
            ip, sp = word(cfa - 8), cfa
            frames.append(ip)


LAZY = ("-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")


@pytest.fixture(
    scope="module",
    params=[LAZY, ("-Os", *LAZY[1:]), ("-O2", "-static")],
    ids=["O2", "Os", "static"],
)
def program(
    request: pytest.FixtureRequest, builder: Builder, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    path = builder.c("frames", *request.param)
    return Program(path, tmp_path_factory.mktemp("frames") / "out")


NAMES = {
    "plain", "alloca", "realigned", "realigned twice", "qsort", "raise", "fault", "thread", "step",
}  # fmt: skip


def test_equals_libgcc(program: Program) -> None:
    """Every return address, to the program's start or the thread's."""
    assert {sample.name for sample in program.samples} == NAMES
    ends: Counter[tuple[bool, End]] = Counter()
    for sample in program.samples:
        walk = unwind(sample.registers, sample.stack, program.lookup)
        assert walk.frames[1:] == sample.expected[1:], sample.name
        ends[sample.name == "step", walk.end] += 1
    assert ends[False, End.OUTERMOST] == len(NAMES) - 1
    assert ends[True, End.OUTERMOST] > 100
    # In some steps there is no more to know: the PLT of static programs has no information.
    assert ends[True, End.NO_MODULE] <= 4
    assert len(ends) <= 3
    # From registers at any instruction, the ones inside of prologues and the PLT included.
    steps = [sample for sample in program.samples if sample.interrupted[RIP]]
    assert len(steps) > 100
    for sample in steps:
        at = sample.expected.index(sample.interrupted[RIP])
        walk = unwind(sample.interrupted, sample.stack, program.lookup, is_interrupted=True)
        assert walk.frames == sample.expected[at:]
    # Among the steps are ones that no row can say; static programs have no such linker.
    found = [program.maps.find(sample.interrupted[RIP]) for sample in program.samples]
    inside = [mapping for mapping in found if mapping and "ld-linux" in mapping.path]
    is_static = not any("libc.so" in path for path in program.files)
    assert (len(inside) > 100) == (not is_static)


def test_rows_alone(program: Program) -> None:
    """Wherever rows don't lead further they say so; up to there they lead to the same."""
    ends: Counter[str] = Counter()
    for sample in program.samples:
        for is_interrupted in (False, True):
            if is_interrupted and not sample.interrupted[RIP]:
                continue
            frames, end = program.walk_by_rows(sample, is_interrupted=is_interrupted)
            start = sample.expected.index(sample.interrupted[RIP]) if is_interrupted else 1
            expected = list(sample.expected[start:])
            found = frames if is_interrupted else frames[1:]
            assert found == expected[: len(found)], sample.name
            assert end != "END" or found == expected
            ends[end] += 1
    assert {"SP", "BP", "REALIGNED", "SIGNAL", "END"} <= set(program.kinds)
    assert ends["END"] > 100
    assert ends["NOWHERE"] + ends["FRAME_POINTER"] <= 8
    assert set(ends) <= {"END", "UNENCODABLE", "NOWHERE", "FRAME_POINTER"}


def test_short_copies_and_junk(program: Program) -> None:
    """A copy cut anywhere: the same frames as far as it goes, and the reason."""
    for sample in program.samples[:8]:
        whole = unwind(sample.registers, sample.stack, program.lookup)
        ends = set()
        for size in range(0, len(sample.stack.data), 40):
            stack = StackCopy(sample.stack.address, sample.stack.data[:size])
            walk = unwind(sample.registers, stack, program.lookup)
            assert walk.frames == whole.frames[: len(walk.frames)]
            assert (walk.end is End.OUTERMOST) == (walk.frames == whole.frames)
            ends.add(walk.end)
        assert End.OUTSIDE_COPY in ends
        assert ends <= {End.OUTSIDE_COPY, End.OUTERMOST, End.UNKNOWN_REGISTER}
    # Three registers lead as far as seventeen, but for frames found by another one.
    ends = set()
    for sample in program.samples:
        whole = unwind(sample.registers, sample.stack, program.lookup)
        three = {n: sample.registers[n] for n in (RIP, RSP, RBP)}
        walk = unwind(three, sample.stack, program.lookup)
        assert walk.frames == whole.frames[: len(walk.frames)]
        ends.add(walk.end)
    assert ends <= {End.OUTERMOST, End.UNKNOWN_REGISTER, End.NO_MODULE}
    sample = program.samples[0]
    whole = unwind(sample.registers, sample.stack, program.lookup)
    for limit in (1, 5, len(whole.frames), len(whole.frames) + 1):
        walk = unwind(sample.registers, sample.stack, program.lookup, limit=limit)
        assert walk.frames == whole.frames[:limit]
        assert walk.end is (End.LIMIT if limit <= len(whole.frames) else End.OUTERMOST)


def word_at(stack: StackCopy, address: int) -> int | End:
    """A word of a copy, as an expression reads it, or why it is not there."""
    return result_of(b"\x0e" + struct.pack("<Q", address) + b"\x06", stack)


def test_pages_that_were_not_copied() -> None:
    """Words that lie in one, if only in part, are not there; the others are."""
    stack = StackCopy(BASE, random.Random(4).randbytes(1 << 14), holes=0b0110)
    for at in (0, 1, 4088, 12288, 16376):
        assert word_at(stack, BASE + at) == int.from_bytes(stack.data[at : at + 8], "little")
    for at in (4089, 4096, 8192, 12281, 12287, 16377, -1, -8, 1 << 62, -BASE):
        assert word_at(stack, (BASE + at) & MASK) is End.OUTSIDE_COPY
    assert word_at(StackCopy(BASE, bytes(7)), BASE) is End.OUTSIDE_COPY
    assert word_at(StackCopy(BASE, b""), BASE) is End.OUTSIDE_COPY


# -- stacks made by hand

RA = (core.OFFSET, -8, b"")
BASE = 0x7000


def words(*values: int) -> StackCopy:
    return StackCopy(BASE, struct.pack(f"<{len(values)}Q", *values))


def walk(found: RuleSet | None, stack: StackCopy, **registers: int) -> Walk:
    """From ip 0x100, whose rules are given, to a caller that is the last one."""
    last = RuleSet(RSP, 8, registers={RIP: (core.UNDEFINED, 0, b"")})
    names = {"ip": RIP, "sp": RSP, "bp": RBP, "bx": RBX}
    values = {names[n]: v for n, v in {"ip": 0x100, "sp": BASE, **registers}.items()}
    return unwind(values, stack, lambda address: found if address == 0xFF else last)


def rule_set(register: int, offset: int, **more: object) -> RuleSet:
    registers = {RIP: more.pop("ra", RA), **more.pop("saved", {})}  # type: ignore[dict-item]
    return RuleSet(register, offset, registers=registers, **more)  # type: ignore[arg-type]


def test_walks_by_hand() -> None:
    stack = words(0x11, 0x200, 0x33, BASE + 24)
    whole = Walk((0x100, 0x200), End.OUTERMOST, 0)
    assert walk(rule_set(RSP, 16), stack) == whole
    assert walk(rule_set(RBP, 16), stack, bp=BASE) == whole
    assert walk(rule_set(RBX, 16), stack, bx=BASE) == whole
    assert walk(rule_set(RSP, 8, ra=(core.OFFSET, 0, b"")), stack) == whole
    assert walk(rule_set(RSP, 8, ra=(core.REGISTER, RBX, b"")), stack, bx=0x200) == whole
    assert walk(rule_set(RSP, 8, ra=(core.VAL_OFFSET, 0x200 - BASE - 8, b"")), stack) == whole
    at_8 = (core.EXPRESSION, 0, b"\x38\x22")  # lit8; plus, on top of the CFA
    assert walk(rule_set(RSP, 0, ra=at_8), stack).end is End.NO_PROGRESS
    assert walk(rule_set(RSP, 8, ra=(core.EXPRESSION, 0, b"\x30\x22")), stack) == whole
    assert walk(rule_set(RSP, 8, ra=(core.VAL_EXPRESSION, 0, b"\x0a\0\2")), stack) == whole
    assert walk(RuleSet(-1, 0, b"\x77\x18\x06\x38\x1c", {RIP: RA}), stack) == whole
    stack = words(0x11, 0x200, 0, 0)
    alone = (0x100,)
    assert walk(None, stack) == Walk(alone, End.NO_MODULE, 0)
    assert walk(rule_set(RBX, 16), stack) == Walk(alone, End.UNKNOWN_REGISTER, 0)
    assert walk(rule_set(RSP, 64), stack) == Walk(alone, End.OUTSIDE_COPY, 0)
    assert walk(rule_set(RSP, -8), stack) == Walk(alone, End.OUTSIDE_COPY, 0)
    assert walk(rule_set(RSP, 0, ra=(core.OFFSET, 8, b"")), stack).end is End.NO_PROGRESS
    assert walk(rule_set(RSP, 24), stack) == Walk(alone, End.OUTERMOST, 0)
    assert walk(RuleSet(RSP, 16), stack) == Walk(alone, End.UNKNOWN_REGISTER, 0)
    assert walk(RuleSet(-1, 0, b"\xe0", {RIP: RA}), stack) == Walk(alone, End.DAMAGED, 0)
    lost = rule_set(RSP, 16, saved={RSP: (core.UNDEFINED, 0, b"")})
    assert walk(lost, stack) == Walk(alone, End.UNKNOWN_REGISTER, 0)
    # A register that could not be read is missed only where it is needed.
    unread = rule_set(RSP, 16, saved={RBP: (core.OFFSET, 800, b"")})
    assert walk(unread, stack) == Walk((0x100, 0x200), End.OUTERMOST, 0)
    # Frames by the frame pointer are counted, and end where it is zero.
    stack = words(0, 0x200, 0, 0)
    assert walk(FRAME_POINTER, stack, bp=BASE) == Walk((0x100, 0x200), End.OUTERMOST, 1)
    assert walk(FRAME_POINTER, stack, bp=0) == Walk((0x100,), End.OUTERMOST, 1)
    assert walk(FRAME_POINTER, stack) == Walk((0x100,), End.UNKNOWN_REGISTER, 1)
    assert walk(FRAME_POINTER, stack, bp=0x1000) == Walk((0x100,), End.OUTSIDE_COPY, 1)
    # After one step only what a call preserves is known.
    caller_saved = 2

    def lookup(address: int) -> RuleSet:
        return rule_set(RSP, 16) if address == 0xFF else rule_set(caller_saved, 16)

    start = {RIP: 0x100, RSP: BASE, caller_saved: BASE + 16}
    found = unwind(start, words(0, 0x200, 0, 0x300), lookup)
    assert found == Walk((0x100, 0x200), End.UNKNOWN_REGISTER, 0)


# -- expressions


def result_of(code: bytes, stack: StackCopy, more: Mapping[int, int] | None = None) -> int | End:
    """What an expression for the CFA results in, or why in nothing; rsp is at ``BASE``."""
    found = RuleSet(-1, 0, code, {RIP: (core.VAL_OFFSET, 0, b"")}, is_signal=True)
    walk = unwind({RIP: 0x100, RSP: BASE, **(more or {})}, stack, lambda _: found, limit=2)
    if len(walk.frames) == 2:
        return walk.frames[1]
    return 0 if walk.end is End.OUTERMOST else walk.end


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("35", 5), ("08ff", 255), ("09ff", MASK), ("0a0102", 0x201), ("0bfeff", MASK - 1),
        ("0c01000000", 1), ("0dffffffff", MASK), ("0e0102030405060708", 0x0807060504030201),
        ("0fffffffffffffffff", MASK), ("108001", 128), ("117f", MASK), ("7708", BASE + 8),
        ("920708", BASE + 8), ("770006", 0x11), ("7700f9", None), ("77009401", 0x11), ("3512", 5),
        ("353613", 5), ("353614", 5), ("3536371502", 5), ("353616", 5), ("35363717", 6),
        ("3536371717", 5), ("091019", 16), ("09f019", 16), ("3c361a", 4), ("09f0331b", MASK - 4),
        ("35361c", MASK), ("37331d", 1), ("35361e", 30), ("311f", MASK), ("3020", MASK),
        ("343221", 6), ("353622", 11), ("352307", 12), ("313424", 16), ("3140084024", 0),
        ("09f03425", (MASK - 15) >> 4), ("09f03426", MASK), ("353627", 3), ("353529", 1),
        ("35362a", 0), ("36352b", 1), ("09ff312a", 0), ("09ff312b", 0), ("3109ff2c", 0),
        ("3109ff2d", 0), ("09ff312d", 1), ("35352c", 1), ("35352e", 0), ("352f0100ff96", 5),
        ("3531280100ff96", 5), ("353028010096", 5), ("22", None), ("35301b", None),
        ("35301d", None), ("352ffdff", None), ("2fff7f", None), ("08", None), ("9409", None),
        ("30" * 100, None), ("30" * 2000, None), ("03" + "00" * 8, None),
        ("7600", End.UNKNOWN_REGISTER), ("9280800400", End.UNKNOWN_REGISTER),
        ("772006", End.OUTSIDE_COPY),
    ],
)  # fmt: skip
def test_expressions(code: str, result: int | End | None) -> None:
    found = result_of(bytes.fromhex(code), words(0x11, 0x22))
    assert found == (End.DAMAGED if result is None else result)


def test_fuzzed_expressions() -> None:
    rng = random.Random(9)
    stack = words(*range(16))
    ends = Counter()
    for _ in range(5000):
        found = result_of(rng.randbytes(rng.randrange(1, 12)), stack, {RBP: BASE})
        ends[found if isinstance(found, End) else None] += 1
    assert set(ends) == {None, End.DAMAGED, End.UNKNOWN_REGISTER, End.OUTSIDE_COPY}
