"""BPF instructions as the compiler hands them over, and how programs are loaded."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

import pytest

from tracelloc.record.kernel import programs
from tracelloc.record.kernel.compiler import with_maps
from tracelloc.system import syscalls

STACK_LIMIT_BYTES = 64  # BPF_PRIV_STACK_MIN_SIZE, include/linux/bpf_verifier.h
FRAME = 10  # The register that points behind the program's stack
HELPERS = {12: "tail_call"}  # enum bpf_func_id, include/uapi/linux/bpf.h


def instructions(code: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """(operation, destination, source, offset, immediate operand) of each; linux/bpf.h."""
    for operation, registers, offset, immediate in struct.iter_unpack("<BBhi", code):
        yield operation, registers & 15, registers >> 4, offset, immediate


def stack_bytes(code: bytes) -> int:
    """How much of its stack a program uses, at least: by accesses and by addresses taken."""
    deepest = 0
    copies: set[int] = set()
    for operation, to, source, offset, immediate in instructions(code):
        kind = operation & 7
        if (kind == 1 and source == FRAME) or (kind in (2, 3) and to == FRAME):  # LDX
            deepest = min(deepest, offset)
        elif operation == 0xBF and source == FRAME:  # mov
            copies.add(to)
        elif operation == 0x07 and to in copies:  # add an immediate
            deepest = min(deepest, immediate)
            copies.discard(to)
    return -deepest


def calls_of(code: bytes) -> set[str]:
    """The helpers that it calls, as far as they have a name here."""
    return {
        HELPERS[immediate]
        for operation, _, source, _, immediate in instructions(code)
        if operation == 0x85 and source == 0 and immediate in HELPERS
    }


def assembled(*lines: tuple[int, int, int, int, int]) -> bytes:
    return b"".join(
        struct.pack("<BBhi", operation, source << 4 | to, offset, immediate)
        for operation, to, source, offset, immediate in lines
    )


EXIT = (0x95, 0, 0, 0, 0)


def test_what_instructions_say() -> None:
    stores = (0x62, FRAME, 0, -8, 5), (0x79, 1, FRAME, -16, 0), (0x7B, FRAME, 1, -72, 0)
    assert [stack_bytes(assembled(*stores[:n], EXIT)) for n in range(4)] == [0, 8, 16, 72]
    subtract = (0x07, 2, 0, 0, -80)  # from a copy of the frame's register, and of another one
    assert stack_bytes(assembled((0xBF, 2, FRAME, 0, 0), subtract)) == 80
    assert stack_bytes(assembled((0xBF, 2, 1, 0, 0), subtract)) == 0
    assert calls_of(assembled((0x85, 0, 0, 0, 12), EXIT)) == {"tail_call"}
    assert calls_of(assembled((0x85, 0, 1, 0, 12), EXIT)) == set()  # of a subprogram
    lines = [(0x18, 1, 1, 0, 17), (0, 0, 0, 0, 0), (0x18, 2, 0, 0, 17), (0, 0, 0, 0, 0), EXIT]
    code = assembled(*lines)
    placed = with_maps(code, {17: 3})
    # The second one is a plain number.
    assert [line[4] for line in instructions(placed)] == [3, 0, 17, 0, 0]
    assert with_maps(placed, {3: 17}) == code


def test_a_signal_while_the_verifier_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops tracelloc, and it continues: bpf(2) fails with EAGAIN."""
    interruptions = iter([errno.EAGAIN] * 3)

    def bpf(_command: int, _attributes: ctypes.Structure) -> int:
        code = next(interruptions, 0)
        if code:
            raise OSError(code, os.strerror(code))
        return 7

    monkeypatch.setattr(syscalls, "bpf", bpf)
    assert programs._load(programs._LoadAttr()) == 7
