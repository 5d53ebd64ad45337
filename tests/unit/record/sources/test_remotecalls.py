"""The registers in a signal frame, on processors that the tests do not run on."""

import struct

import pytest

from tracelloc.record.sources.injected.remotecalls import described

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
