"""Damaged and hostile call-frame information: rows or named reasons, and soon."""

import io
import random
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.harness import LIBRARIES, Builder
from tests.unit.files.cfi.test_cfi_programs import entry
from tests.unit.references import open_cfi
from tests.unit.unwindrows import decode
from tracelloc.files.cfi.core import Entries, reason_row
from tracelloc.files.cfi.unwindsections import scan
from tracelloc.files.cfi.walk import CfiError, Reason

MASK = (1 << 64) - 1
FLAGS = ("-O2", "-fomit-frame-pointer", "-Wl,-z,lazy")


def row_of(entries: Entries, offset: int, address: int) -> int:
    """What ``Cfi.row`` makes of one FDE."""
    try:
        found = entries.rules(offset, address)
        return 0 if found is None else found.row(address)
    except CfiError as error:
        return reason_row(error.reason)


def rows_at_once(
    entries: Entries, starts: list[int], offsets: list[int], wanted: list[int]
) -> list[int]:
    rows = np.zeros(len(wanted), np.uint64)
    index = np.array(starts, np.uint64), np.array(offsets, np.int64)
    entries.rows(*index, np.array(wanted, np.uint64), rows)
    return rows.tolist()


def small_eh_frame() -> tuple[bytes, int]:
    with (LIBRARIES / "libcrypto.so.3").open("rb") as file:
        section = ELFFile(file).get_section_by_name(".eh_frame")
        return section.data()[:20_000], section["sh_addr"]


def test_fuzzed_sections() -> None:
    """Bytes changed at random: every look-up ends soon, with a row or a named reason."""
    data, address = small_eh_frame()
    known = scan(Entries(data, address, is_eh=True)).offsets.tolist()
    rng = random.Random(7)
    began = time.process_time()
    reasons = set()
    for _ in range(20_000):
        changed = bytearray(data)
        offset = rng.choice(known)
        cie = offset + 4 - int.from_bytes(data[offset + 4 : offset + 8], "little")
        at = offset if rng.random() < 0.8 else cie
        places = range(at, at + 4 + int.from_bytes(data[at : at + 4], "little"))
        for _ in range(rng.randrange(1, 6)):
            changed[rng.choice(places)] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        cut = rng.randrange(offset, len(data)) if rng.random() < 0.2 else len(data)
        entries = Entries(bytes(changed[:cut]), address, is_eh=True)
        try:
            start, size = entries.fde(offset)
        except CfiError as error:
            reasons.add(error.reason)
            continue
        for at in {start, start + size // 2, start + size - 1} if size else ():
            if at <= MASK:
                reasons.add(decode(row_of(entries, offset, at)).reason)
    assert {None, Reason.DAMAGED, Reason.CFA_REGISTER, Reason.RETURN_ADDRESS} <= reasons
    assert time.process_time() - began < 10
    # Damaged sections scanned as a whole: rows at once still equal single ones.
    data, address = small_eh_frame()
    rng = random.Random(8)
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 40)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
        entries = Entries(bytes(changed), address, is_eh=True)
        index = scan(entries)
        starts, offsets = index.starts.tolist(), index.offsets.tolist()
        wanted = []
        for offset, start, limit in zip(offsets, starts, [*starts, MASK][1:], strict=True):
            _, size = entries.fde(offset)
            some = [start + rng.randrange(min(size, limit - start) or 1) for _ in range(3)]
            wanted += [(at, offset) for at in some if at < limit]
        wanted.sort()
        rows = rows_at_once(entries, starts, offsets, [at for at, _ in wanted])
        for (at, offset), row in zip(wanted, rows, strict=True):
            assert row == row_of(entries, offset, at), (offset, hex(at))


def overlapping(data: bytearray) -> None:
    """A table with each entry a few bytes into the one before."""
    at, size = where(data, ".eh_frame_hdr")
    struct.pack_into("<I", data, at + 8, (size - 12) // 8)
    start = struct.unpack_from("<i", data, at + 12)[0]
    first = struct.unpack_from("<i", data, at + 16)[0]
    for n in range((size - 12) // 8):
        struct.pack_into("<ii", data, at + 12 + 8 * n, start + n, first + n)


def unsorted(data: bytearray) -> None:
    at, _ = where(data, ".eh_frame_hdr")
    data[at + 12 : at + 16] = b"\xff\xff\xff\x7f"


def beyond(data: bytearray) -> None:
    """Entries outside of the section."""
    at, size = where(data, ".eh_frame_hdr")
    for place in range(at + 16, at + size, 8):
        struct.pack_into("<i", data, place, 0x7FFFFFFF)


def huge_length(data: bytearray) -> None:
    at, _ = where(data, ".eh_frame")
    data[at : at + 4] = b"\xef\xff\xff\xff"


def where(data: bytearray, name: str) -> tuple[int, int]:
    section = ELFFile(io.BytesIO(bytes(data))).get_section_by_name(name)
    return section["sh_offset"], section["sh_size"]


@pytest.mark.parametrize("damage", [overlapping, unsorted, beyond, huge_length])
def test_hostile_files(
    builder: Builder, tmp_path: Path, damage: Callable[[bytearray], None]
) -> None:
    path = tmp_path / "hostile"
    shutil.copy(builder.c("frames", *FLAGS), path)
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    began = time.process_time()
    cfi = open_cfi(path)
    usual = open_cfi(builder.c("frames", *FLAGS))
    first = int(usual.call_sites()[0])
    near = np.arange(first - 200, first + 200).astype(np.uint64)
    sites = np.unique(np.concatenate([usual.call_sites(), cfi.call_sites(), near]))
    rows = cfi.rows(sites)
    single = [cfi.row(site) for site in sites.tolist()]
    assert rows.tolist() == single
    if damage is unsorted:
        assert single == [usual.row(site) for site in sites.tolist()]
    else:
        assert Reason.DAMAGED in {decode(row).reason for row in single}
    assert time.process_time() - began < 5


CIE = entry(b"\0\0\0\0\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01")


def look_up(data: bytes, offsets: list[int], wanted: list[int]) -> list[int]:
    """Rows at once from functions of 256 bytes each at these offsets, from 0 on."""
    starts = [n * 256 for n in range(len(offsets))]
    return rows_at_once(Entries(data, 0, is_eh=True), starts, offsets, wanted)


def function(at: int, number: int, program: bytes) -> bytes:
    return entry(struct.pack("<IiI", at + 4, number * 256 - at - 8, 256) + b"\0" + program)


def test_functions_that_share_bytes_or_cies() -> None:
    """Programs that lie inside of each other are not run over and over."""
    count, step = 3000, 64
    inner = b"".join(
        function(len(CIE) + n * step, n, b"\x0a\x0b" * 20)[:step].ljust(step, b"\0")
        for n in range(count)
    )
    data = bytearray(CIE + inner)
    for n in range(count):
        # Each one reaches to the section's end.
        at = len(CIE) + n * step
        struct.pack_into("<I", data, at, len(data) - at - 4)
    began = time.process_time()
    offsets = [len(CIE) + n * step for n in range(count)]
    rows = look_up(bytes(data), offsets, [n * 256 for n in range(count)])
    assert decode(rows[-1]).reason is Reason.TOO_LONG
    assert time.process_time() - began < 10
    # More than are kept at once, in any order: each program starts from its own one's state.
    count, rng = 50, random.Random(6)
    cies = [CIE.replace(b"\x0c\x07\x08", b"\x0c\x07" + bytes([8 + n])) for n in range(count)]
    data, offsets, chosen = b"".join(cies), [], [rng.randrange(count) for _ in range(1000)]
    for n, which in enumerate(chosen):
        offsets.append(len(data))
        whole = function(len(data), n, b"\x44\x86\x02")
        data += whole[:4] + struct.pack("<I", len(data) + 4 - which * len(CIE)) + whole[8:]
    rows = look_up(data, offsets, [n * 256 + at for n in range(1000) for at in (0, 3, 4)])
    fields = [(decode(row).cfa_offset, decode(row).bp_slot) for row in rows]
    assert fields == [(8 + which, slot) for which in chosen for slot in (0, 0, -16)]
    # The same bytes, but what they point to is another place of each function.
    program = b"\x01" + struct.pack("<i", 16 - len(CIE) - 18) + b"\x0e\x10"
    first = function(len(CIE), 0, program)
    offsets = [len(CIE), len(CIE) + len(first)]
    data = CIE + first + function(offsets[1], 1, program)
    found = look_up(data, offsets, list(range(512)))
    entries = Entries(data, 0, is_eh=True)
    assert found == [row_of(entries, offsets[at // 256], at) for at in range(512)]
    assert [decode(row).cfa_offset for row in found[:256]] == [8] * 16 + [16] * 240
    # For the second one it is a place before it.
    assert {decode(row).reason for row in found[256:]} == {Reason.DAMAGED}
