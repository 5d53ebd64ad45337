"""The bytes of one section of an ELF file, compressed or not. gABI, "Section Compression".

Three forms: plain; SHF_COMPRESSED with an Elf64_Chdr in front (zlib, zstd); and the older
``.zdebug_*`` of GNU tools: "ZLIB", the size as a big-endian 64-bit number, a zlib stream.
"""

import importlib
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

_CHDR: Final = struct.Struct("<IIQQ")  # Elf64_Chdr: type, reserved, size, alignment
_GNU: Final = struct.Struct(">4sQ")
_ZLIB: Final = 1
_ZSTD: Final = 2
_LARGEST_BYTES: Final = 4 << 30
_LARGEST_UNPACKED_BYTES: Final = 1 << 30  # Compressed sections are unpacked as a whole
# Times. Real debug information shrinks to a half or a tenth, a bomb to a thousandth.
_MOST_GROWTH: Final = 32
_SMALL_BYTES: Final = 1 << 20  # Sections up to this size are read whole when first touched


class SectionError(Exception):
    """Raised if a section can't be read. The message is a reason for users."""


class Packing(Enum):
    """How a section's bytes are stored."""

    PLAIN = "plain"
    ELF = "SHF_COMPRESSED"
    GNU = ".zdebug"


class ElfSection:
    """The bytes of one section, unpacked, by offset; large ones piecewise. Thread safe."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        offset: int,
        stored_bytes: int,
        packing: Packing = Packing.PLAIN,
    ) -> None:
        """``read(offset, size)`` gives bytes of the file. Raises SectionError for an odd head."""
        self._read = read
        self._offset = offset
        self._stored_bytes = stored_bytes
        self._whole: bytes | None = None
        self._method = 0
        self.size = stored_bytes  # Uncompressed, in bytes
        if packing is not Packing.PLAIN:
            self._unpack_header(packing)
        if self.size > _LARGEST_BYTES:
            raise SectionError(f"a section of {self.size} bytes is too large")

    def _unpack_header(self, packing: Packing) -> None:
        header = _CHDR if packing is Packing.ELF else _GNU
        head = self._read(self._offset, header.size)
        if len(head) < header.size or self._stored_bytes < header.size:
            raise SectionError("a compressed section is cut short")
        if packing is Packing.ELF:
            self._method, _, self.size, _ = _CHDR.unpack(head)
        else:
            magic, self.size = _GNU.unpack(head)
            self._method = _ZLIB if magic == b"ZLIB" else 0
        if self._method not in (_ZLIB, _ZSTD):
            raise SectionError(f"a section is compressed in an unknown way ({self._method})")
        self._offset += header.size
        self._stored_bytes -= header.size
        if self.size > self._stored_bytes * _MOST_GROWTH + _SMALL_BYTES:
            stored = f"a section of {self._stored_bytes} bytes"
            raise SectionError(f"{stored} claims to hold {self.size}")
        if self.size > _LARGEST_UNPACKED_BYTES:
            raise SectionError(f"a section of {self.size} bytes, unpacked, is too large")

    def data(self) -> bytes:
        """Returns all bytes. Raises SectionError if they can't be decompressed or are cut short."""
        if self._whole is None:
            stored = self._read(self._offset, self._stored_bytes)
            if len(stored) < self._stored_bytes:
                raise SectionError("the file is cut short")
            self._whole = self._decompress(stored) if self._method else stored
        return self._whole

    def read(self, offset: int, size: int) -> bytes:
        """Reads a part; fewer bytes at the section's end. Raises SectionError like ``data``."""
        if self._whole is None and not self._method and self.size > _SMALL_BYTES:
            size = min(size, self.size - offset)
            return self._read(self._offset + offset, size) if size > 0 and offset >= 0 else b""
        return self.data()[offset : offset + size]

    def _decompress(self, stored: bytes) -> bytes:
        try:
            if self._method == _ZLIB:
                # One more than promised, so that too much is noticed without being unpacked.
                data = zlib.decompressobj().decompress(stored, self.size + 1)
            else:
                data = unzstd(stored, self.size)
        except SectionError:
            raise
        except Exception as error:  # zlib's or zstandard's own
            raise SectionError(f"a section can't be decompressed ({error})") from error
        if len(data) != self.size:
            raise SectionError(f"a section holds {len(data)} bytes, not the {self.size} it claims")
        return data


def load_zstd() -> None:
    """Imports the zstd decompressor, if it is there, for processes that can't import it later."""
    with suppress(ImportError):
        importlib.import_module("zstandard")


def unzstd(stored: bytes, size: int) -> bytes:
    """Decompresses zstd data, which may have several frames: at most one byte more than ``size``.

    Raises SectionError without the decompressor, and its own errors for damaged data.
    """
    try:
        zstandard = importlib.import_module("zstandard")
    except (ImportError, PermissionError):  # workers may not open files: it was not there before
        why = "debug information is compressed by zstd: install the Python package zstandard"
        raise SectionError(why) from None
    reader = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
    parts: list[bytes] = []
    left = size + 1
    while left > 0 and (part := reader.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
