"""pprof's profile.proto, gzipped, for ``go tool pprof`` and continuous profilers.

Field numbers and their meaning are those of
https://github.com/google/pprof/blob/main/proto/profile.proto. Sample types are those of Go's heap
profiles, which profilers know; a requested metric of the peak or of temporary allocations adds its
own. All figures of a difference are differences, as with ``-diff_base``. The wire format is
described in https://protobuf.dev/programming-guides/encoding/.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from tracelloc.model.frames import Frame
from tracelloc.show.presentation.calltree import code_locations
from tracelloc.show.presentation.profile import (
    ALLOCATED_BYTES,
    ALLOCATED_COUNT,
    LIVE_BYTES,
    LIVE_COUNT,
    FigureUnit,
    FileNumbers,
    MappedFile,
    Metric,
    Profile,
    Sample,
)
from tracelloc.text import printable

_GO_FIGURES: Final = (LIVE_COUNT, LIVE_BYTES, ALLOCATED_COUNT, ALLOCATED_BYTES)
_PIECE_BYTES: Final = 1 << 16

# Fields of Profile, and of the messages in it.
_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING = 1, 2, 3, 4, 5, 6
_TIME_NS, _DURATION_NS, _PERIOD_TYPE, _PERIOD, _COMMENT, _DEFAULT_TYPE = 9, 10, 11, 12, 13, 14

_Line = tuple[int, int]  # Function id and line number


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:
    """Yields the gzipped file in pieces."""
    # The header's time stays 0, so that equal profiles make equal files.
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    pending: list[bytes] = []
    size = 0
    for message in _Encoder(profile, metric).messages():
        pending.append(message)
        size += len(message)
        if size >= _PIECE_BYTES:
            yield packer.compress(b"".join(pending))
            pending.clear()
            size = 0
    yield packer.compress(b"".join(pending)) + packer.flush()


_VARINT: Final = 0
_LENGTH: Final = 2
_MASK: Final = (1 << 64) - 1

# Encoded numbers below 2^14: most numbers are small.
_SMALL: Final = tuple(bytes([n]) for n in range(0x80)) + tuple(
    bytes([n & 0x7F | 0x80, n >> 7]) for n in range(0x80, 0x4000)
)


def varint(number: int) -> bytes:
    """Encodes a number in 7 bits per byte, lowest first; negative numbers as 64 bits."""
    if 0 <= number < 0x4000:
        return _SMALL[number]
    number &= _MASK
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encodes a field with a number; nothing for 0, the default of a missing field."""
    return varint(field << 3 | _VARINT) + varint(value) if value else b""


def data(field: int, content: bytes) -> bytes:
    """Encodes a field with bytes, a string or a message."""
    return varint(field << 3 | _LENGTH) + varint(len(content)) + content


def packed(field: int, values: Iterable[int]) -> bytes:
    """Encodes a repeated field of numbers, zeros included."""
    return data(field, b"".join(map(varint, values)))


class _Encoder:
    def __init__(self, profile: Profile, metric: Metric) -> None:
        self._profile = profile
        figure = metric.figure if metric.figure.sample_type else LIVE_BYTES
        self._default_type = profile.type_of(figure)
        more = () if figure in _GO_FIGURES else (figure,)
        self._figures = (*_GO_FIGURES, *more)
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str, str], int] = {}
        self._locations: dict[tuple[int, tuple[_Line, ...]], int] = {}
        self._new: list[bytes] = []
        self._files = FileNumbers(profile)

    def messages(self) -> Iterator[bytes]:
        """Yields all fields of the profile, the strings last."""
        for figure in self._figures:
            unit = "count" if figure.unit is FigureUnit.BLOCKS else "bytes"
            yield data(_SAMPLE_TYPE, self._type(self._profile.type_of(figure), unit))
        for at, file in enumerate(self._files.files, 1):
            yield data(_MAPPING, self._mapping(at, file))
        for sample in self._profile.samples:
            encoded = self._sample(sample)
            yield from self._new
            self._new.clear()
            yield encoded
        profile = self._profile
        yield number(_TIME_NS, round(profile.time_s * 1e9))
        yield number(_DURATION_NS, profile.elapsed_ns)
        yield data(_PERIOD_TYPE, self._type("space", "bytes"))
        yield number(_PERIOD, profile.sample_bytes or 1)
        about = f"tracelloc: {profile.target.command}, process {profile.target.pid}"
        yield packed(_COMMENT, [self._string(line) for line in (about, *profile.notes)])
        yield number(_DEFAULT_TYPE, self._string(self._default_type))
        for text in self._strings:
            yield data(_STRING, text.encode())

    def _string(self, text: str) -> int:
        """Returns the number of a string, made printable: readers print strings unchanged."""
        return self._strings.setdefault(printable(text), len(self._strings))

    def _type(self, name: str, unit: str) -> bytes:
        return number(1, self._string(name)) + number(2, self._string(unit))

    def _mapping(self, at: int, file: MappedFile) -> bytes:
        names = [self._string(text) for text in (file.path, file.build_id or "")]
        # Functions, files, lines and inlined frames are included: readers need not symbolize.
        fields = [at, file.start, file.end, file.offset, *names, 1, 1, 1, 1]
        return b"".join(number(field, value) for field, value in enumerate(fields, 1))

    def _sample(self, sample: Sample) -> bytes:
        values = [figure.value_of(sample.stat) for figure in self._figures]
        content = packed(1, self._stack(sample)) + packed(2, values)
        mean = _mean_size(sample)
        if mean:
            # As in Go's heap profiles: -tagfocus=bytes=1mb: shows only large blocks.
            label = number(1, self._string("bytes")) + number(3, mean)
            content += data(3, label + number(4, self._string("bytes")))
        if sample.block_type is not None:
            # -tagfocus=type=Session shows one type, -tagroot=type separates types.
            name = self._string(sample.block_type)
            content += data(3, number(1, self._string("type")) + number(2, name))
        if sample.pid is not None:
            # -tagfocus=pid=123 shows one process, -tagroot=pid separates processes.
            content += data(3, number(1, self._string("pid")) + number(3, sample.pid))
        return data(_SAMPLE, content)

    def _stack(self, sample: Sample) -> list[int]:
        return [
            self._location(
                frame, tuple((self._function(*names), line) for *names, line in functions)
            )
            for frame, functions in code_locations(sample)
        ]

    def _function(self, name: str, raw: str, file: str) -> int:
        key = name, raw, file
        known = self._functions.get(key)
        if known is None:
            known = self._functions[key] = len(self._functions) + 1
            content = number(1, known) + number(2, self._string(name))
            content += number(3, self._string(raw)) + number(4, self._string(file))
            self._new.append(data(_FUNCTION, content))
        return known

    def _location(self, frame: Frame, lines: tuple[_Line, ...]) -> int:
        key = frame.address, lines
        known = self._locations.get(key)
        if known is None:
            known = self._locations[key] = len(self._locations) + 1
            content = number(1, known) + number(2, self._files.find(frame))
            content += number(3, frame.address)
            for function, line in lines:
                content += data(4, number(1, function) + number(2, line))
            self._new.append(data(_LOCATION, content))
        return known


def _mean_size(sample: Sample) -> int:
    """Returns mean bytes per live block, or else per allocated block; 0 for a difference."""
    stat = sample.stat
    if sample.before is not None:
        return 0
    if stat.live_count:
        return stat.live_bytes // stat.live_count
    return stat.allocated_bytes // stat.allocated_count if stat.allocated_count else 0
