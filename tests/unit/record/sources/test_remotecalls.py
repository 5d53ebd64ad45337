"""The registers in a signal frame, on processors that the tests do not run on."""

import struct

import pytest

from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.record.process import ptrace
from tracelloc.record.process.ptrace import Registers
from tracelloc.record.sources.injected import aarch64
from tracelloc.record.sources.injected.x86_64 import described

WITH_TILES = 11_008  # Bytes of an XSAVE area on processors with AMX


@pytest.mark.parametrize(("used", "size_bytes"), [(0b111, 2816), (1 << 18 | 0b111, WITH_TILES)])
def test_tiles_of_amx_are_left_out_if_there_are_none(used: int, size_bytes: int) -> None:
    """The kernel would restore nothing but SSE from a larger area than the thread may have."""
    area = bytearray(range(256)) * (WITH_TILES // 256)
    area[464:472], area[512:520] = struct.pack("<Q", 0x602E7), struct.pack("<Q", used)
    found = described(bytes(area))
    assert len(found) == size_bytes
    words = struct.unpack_from("<IIQI", found, 464)
    assert words == (0x46505853, size_bytes + 4, 0x602E7, size_bytes)
    assert (found[:464], found[484:]) == (area[:464], area[484:size_bytes])


@pytest.mark.parametrize("width", [0, 64])
def test_frame_of_arm(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """All registers are where the kernel looks for them, and what SVE adds if it is in use."""
    vectors = bytes(range(256)) * 2 + b"\1\2\3\4\5\6\7\x08" + bytes(8)
    size_bytes = 32 * width + 17 * width // 8
    more = struct.pack("<IIHHHH", 0, 0, width, 0, width > 0, 0) + b"\xab" * size_bytes + bytes(8)
    sets = {2: vectors, 0x405: more}
    monkeypatch.setattr(ptrace, "register_set", lambda _, number: sets[number])
    kept = Registers(AARCH64.general, [*range(1000, 1033), 0xC00 | 1])
    values, image = aarch64.entry(7, kept, 0xF00D, 0x8000, 0x4444)
    assert values.stack_pointer % 16 == 0
    assert values.stack_pointer + len(image) == 0x8000
    changed = {"sp": values.stack_pointer, "x30": 0x4444, "pstate": 1}
    assert all(values[name] == changed.get(name, kept[name]) for name in AARCH64.general.names)
    places = AARCH64.signal_frame.places
    found = [struct.unpack_from("<Q", image, at)[0] for _, at in sorted(places.items())]
    assert found == kept.words[:33]
    assert struct.unpack_from("<Q", image, places[32] + 8) == (0xC01,)
    assert struct.unpack_from("<Q", image, 128 + 40) == (0xF00D,)
    records, at = {}, 128 + 176 + 288
    while (head := struct.unpack_from("<II", image, at))[1]:
        records[head[0]] = image[at + 8 : at + head[1]].rstrip(b"\0")
        at += head[1]
    assert records.pop(0x46508001) == vectors[512:520] + vectors[:512]
    content = struct.pack("<HHI", width, 0, 0) + b"\xab" * size_bytes
    assert records == ({0x53564501: content} if width else {})
    assert (head, at + 16) == ((0, 0), len(image))
