"""Processes of 64-bit Arm as data: addresses of 48 bits, tags, stacks, threads, large pages."""

import random
import struct
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tests.marked import bits_of, finished
from tests.unit.armfiles import library
from tests.unit.conftest import OnMachine
from tests.unit.files.elf.test_elf import libc
from tests.unit.references import open_cfi, open_elf
from tracelloc import architecture
from tracelloc.architecture import Architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.core import RuleSet, StackCopy, unwind
from tracelloc.files.cfi.module import built_in_rules
from tracelloc.files.cfi.walk import End
from tracelloc.model.codefiles import CodePlace, Mapping
from tracelloc.model.stacks import StackFlag
from tracelloc.record.kernel.registers import ThreadRegisters
from tracelloc.record.process.regions import Region
from tracelloc.record.reachability import heaproots
from tracelloc.record.reachability.blockbits import BlockBits, place_shift, select_words
from tracelloc.record.reachability.links import Links
from tracelloc.record.runtimes.cpython import pools
from tracelloc.record.unwinding import framechecker
from tracelloc.record.unwinding.framechecker import FrameChecker
from tracelloc.record.worker import codefilereader
from tracelloc.record.worker.symbolfilereader import (
    CODE_DTYPE,
    GENERATED,
    KnownFiles,
    SymbolFileReader,
    miss_dtype,
)

LIBRARIES_AT = 0xFFFF_8000_0000
PROGRAM_AT = 0xAAAA_C000_0000
TAG = 0xB5 << 56  # A pointer's highest byte, which the processor ignores
SIGNATURE = 0x2F << 48  # An authentication code in a pointer


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


@pytest.mark.parametrize(
    ("word", "bits", "reached"),
    [
        (PROGRAM_AT + 8, 48, [0]), (LIBRARIES_AT + 127, 48, [1]), (LIBRARIES_AT + 128, 48, []),
        (PROGRAM_AT | TAG, 48, [0]), (LIBRARIES_AT | SIGNATURE, 48, [1]),
        ((PROGRAM_AT + 8) & (1 << 47) - 1, 48, []),
    ],
)  # fmt: skip
def test_pointers_of_48_bits(word: int, bits: int, reached: list[int]) -> None:
    starts = u64(PROGRAM_AT, LIBRARIES_AT)
    ends = starts + np.uint64(128)
    found = bits_of(starts, ends, 10, bits)
    found.scan(u64(word), 8)
    assert np.flatnonzero(finished(found, starts)).tolist() == reached
    packed = np.empty(300, np.uint64)
    spans = np.array([[PROGRAM_AT, PROGRAM_AT + 128], [LIBRARIES_AT, LIBRARIES_AT + 128]])
    count = select_words(u64(0, 0, word), spans.astype(np.uint64), u64().astype(np.uint8), packed,
                         bits)  # fmt: skip
    assert count == len(reached)
    assert (packed[:count] >> np.uint64(place_shift(bits))).tolist() == [2] * count
    found = bits_of(starts, ends, 10, bits)
    found.scan_packed(packed[:count].copy(), 8)
    assert np.flatnonzero(finished(found, starts)).tolist() == reached
    links = Links(starts, ends, 10, bits)
    links.scan(u64(word), 8, 1)
    assert links.root_count == len(reached)


def test_addresses_of_48_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of x86-64 may use bit 47 as they like."""
    start = 0x5555_0000_0000
    for bits, reached in ((47, 1), (48, 0)):
        found = bits_of(u64(start), u64(start + 64), 10, bits)
        found.scan(u64(start | 1 << 47), 8)
        assert finished(found, u64(start)).tolist() == [reached]
    with pytest.raises(MemoryError):
        Links(u64(PROGRAM_AT), u64(PROGRAM_AT + 64), 10, 47)
    with pytest.raises(MemoryError):
        BlockBits(10, 47).add(u64(PROGRAM_AT), u64(PROGRAM_AT + 64))
    for bits in (47, 48):
        words = 1 << 64 - place_shift(bits)
        packed = np.empty(words + 256, np.uint64)
        memory = np.zeros(words, np.uint64)
        memory[-1] = PROGRAM_AT >> 48 - bits
        spans = np.array([[memory[-1], memory[-1] + np.uint64(8)], [0, 0]], np.uint64)
        count = select_words(memory, spans, np.zeros(0, np.uint8), packed, bits)
        assert (packed[:count] >> np.uint64(place_shift(bits))).tolist() == [words - 1]
    for machine, bits in (("x86_64", 47), ("aarch64", 48), ("riscv64", 48)):
        monkeypatch.setattr(architecture.platform, "machine", lambda name=machine: name)
        assert architecture.address_bits() == bits
    assert (X86_64.address_end, AARCH64.address_end) == (1 << 47, 1 << 48)


def test_registers_of_a_miss() -> None:
    """In the order of ``enum miss_register``; without the link register."""
    assert X86_64.miss_registers == (16, 7, 6, 3, 12, 13, 14, 15)
    assert AARCH64.miss_registers == (32, 31, 29, *range(19, 29))
    for machine in (X86_64, AARCH64):
        numbers = machine.dwarf
        assert machine.miss_registers[:3] == (
            numbers.program_counter, numbers.stack_pointer, numbers.frame_pointer
        )  # fmt: skip
        assert set(machine.miss_registers[2:]) == numbers.callee_saved
    rules = RuleSet(31, 16, architecture=AARCH64)
    registers = dict(zip(AARCH64.miss_registers, (64, 4096, 0, *[0] * 10), strict=True))
    walk = unwind(registers, StackCopy(4096, bytes(64)), lambda _: rules, architecture=AARCH64)
    assert (walk.frames, walk.end) == ((64,), End.UNKNOWN_REGISTER)


@pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=lambda each: each.name)
def test_stacks_are_followed_as_by_the_readers(
    on_machine: OnMachine, machine: Architecture
) -> None:
    """Junk with the addresses of functions, signed or not, on a stack of 16 KiB."""
    on_machine(machine, codefilereader)
    path = library("libc.so.6") if machine is AARCH64 else libc()
    cfi, elf = open_cfi(path), open_elf(path)
    sites = cfi.call_sites()[::50].tolist()
    size, end = 1 << 30, machine.address_end
    base, stack_at = end - 2 * size, end - (1 << 20)
    rng = random.Random(7)
    code = np.array([(1 << 40, 1 << 41, 0, GENERATED, 0), (base, base + size, 3, 7, 0)], CODE_DTYPE)
    called = [base + elf.offset_of(site) + 1 for site in sites]
    signed = [each | SIGNATURE if machine is AARCH64 else each for each in called]
    heads, memories = np.zeros(200, miss_dtype(machine)), []
    for head in heads:
        pc = rng.choice(called)
        words = [
            rng.choice([pc, rng.choice(signed), (1 << 40) + 64, stack_at + 8 * rng.randrange(2000)])
            for _ in range(2048)
        ]
        memories.append(struct.pack("<2048Q", *words))
        others = (rng.randrange(end) for _ in machine.miss_registers[3:])
        head["registers"] = (pc, stack_at, stack_at + 160, *others)
        head["generation"], head["address"], head["size"] = rng.randrange(2, 6), stack_at, 1 << 14
    files = KnownFiles(machine)
    files.by_number[7] = SymbolFileReader(open_elf(path))
    walks, addresses, rows = files.stacks(127, code, heads, b"".join(memories))

    def look_up(address: int, generation: int) -> RuleSet | None:
        if base <= address < base + size and generation >= 3:
            inside = elf.address_of(address - base)
            return None if inside is None else cfi.rules(inside)
        return built_in_rules(machine).frame_pointer if 1 << 40 <= address < 1 << 41 else None

    for head, memory, (frames, how, guesses, _) in zip(heads, memories, walks, strict=True):
        expected = unwind(
            dict(zip(machine.miss_registers, head["registers"].tolist(), strict=True)),
            StackCopy(stack_at, memory, 0),
            partial(look_up, generation=int(head["generation"])),
            architecture=machine,
        )
        assert (tuple(frames.tolist()), End(how), guesses) == expected
    assert len({how for _, how, *_ in walks}) > 2
    assert len({met_unmapped for *_, met_unmapped in walks}) == 2
    assert max(len(frames) for frames, *_ in walks) > 3
    for address, row in zip(addresses.tolist(), rows.tolist(), strict=True):
        assert look_up(address, 3).row(address) == row


class Space:
    """A program at 0x10000 with an entry point, and the C library at 0x40000."""

    is_static = False

    def __init__(self, entry: int) -> None:
        header = bytes(24) + entry.to_bytes(8, "little")
        elf = SimpleNamespace(
            address_of=lambda offset: offset, function_at=lambda _: None, usdt_offsets=(),
            read=lambda offset, size_bytes: header[offset : offset + size_bytes],
        )  # fmt: skip
        self._modules = [
            SimpleNamespace(path=path, elf=elf) for path in ("/opt/app", "/lib/libc.so.6")
        ]
        self._mapping = Mapping(0x10000, 0x80000, 0, True, "08:01", 7, "/opt/app", False)

    def place(self, address: int) -> CodePlace[SimpleNamespace]:
        module = self._modules[address >= 0x40000]
        return CodePlace(self._mapping, module, None, address - 0x10000)


@pytest.mark.parametrize(
    ("frames", "entry", "is_whole"),
    [
        ((0x15000, 0x41000, 0x41100, 0x11030), 0x1000, True),  # main, two of the C library, _start
        ((0x15000, 0x41000, 0x41100, 0x11081), 0x1000, False),
        ((0x15000, 0x41000, 0x41100, 0x11000), 0x1000, False),
        ((0x15000, 0x10010), 0, False),  # no entry point
        ((0x15000, 0x41000), 0x1000, True),
        ((0x41100, 0x41000), 0x1000, False),
    ],
)
def test_stacks_that_reach_the_entry_point_are_whole(
    monkeypatch: pytest.MonkeyPatch, frames: tuple[int, ...], entry: int, is_whole: bool
) -> None:
    monkeypatch.setattr(framechecker, "_follows_call", lambda *_: True)
    expected = StackFlag(0) if is_whole else StackFlag.BROKEN
    assert FrameChecker(Space(entry)).trim(frames, StackFlag(0)) == (frames, expected)


POINTER = 0xFFFF_9000_1000


def test_where_a_threads_data_is() -> None:
    below, above = X86_64.threads, AARCH64.threads
    assert below.record(POINTER) == (POINTER, POINTER + 4096)
    assert above.record(POINTER) == (POINTER - 2048, POINTER)
    assert below.variables(POINTER, 100) == (POINTER - 100, POINTER)
    assert above.variables(POINTER, 100) == (POINTER, POINTER + 116)
    for alignment, offset in ((1, 16), (16, 16), (64, 64), (4096, 4096)):
        start = POINTER + offset
        assert above.program_variables(POINTER, 100, alignment) == (start, start + 100)
        start = POINTER - -(-100 // alignment) * alignment
        assert below.program_variables(POINTER, 100, alignment) == (start, POINTER)


@pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=lambda each: each.name)
def test_memory_of_threads_data(on_machine: OnMachine, machine: Architecture) -> None:
    on_machine(machine, heaproots)
    region = Region(POINTER - (1 << 20), POINTER + (1 << 20), "rw-p", 0, 0, "")
    thread = ThreadRegisters(5, POINTER, POINTER - (1 << 18), 0, u64())
    titles = SimpleNamespace(title_of=lambda number: f"thread {number}")
    parts = heaproots.parts_of([region], [thread], titles)
    told = [(a, b) for a, b, owner in parts.split(region.start, region.end) if owner == 0]
    variables, record = machine.threads.variables(POINTER, 1 << 16), machine.threads.record(POINTER)
    assert told == [(min(variables[0], record[0]), max(variables[1], record[1]))]


@pytest.mark.parametrize("page_bytes", [1 << 12, 1 << 14, 1 << 16])
def test_pools_in_pages_of_any_size(monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    monkeypatch.setattr(pools, "PAGE_BYTES", page_bytes)
    start, end = 0x10000, 0x10000 + (1 << 18)
    present = np.zeros((end - start) // page_bytes, np.bool_)
    present[: len(present) // 2] = True

    class Memory:
        process = SimpleNamespace(maps_text=lambda: f"{start:x}-{end:x} rw-p 0 00:00 0 \n")

        def pages(self, low: int, high: int, _flag: np.uint64) -> np.ndarray:
            return present[(low - start) // page_bytes : (high - start) // page_bytes]

        def read(self, places: np.ndarray, size_bytes: int) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros((len(places), size_bytes // 8), np.uint64), np.ones(len(places), bool)

    monkeypatch.setattr(pools, "_are_headers", lambda rows: np.ones(len(rows), np.bool_))
    assert pools.find_pools(Memory()).tolist() == list(range(start, (start + end) // 2, 1 << 14))
