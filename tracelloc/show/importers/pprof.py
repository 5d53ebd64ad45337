"""pprof's profile.proto: heap profiles of tracelloc, Go, jemalloc and others.

Field numbers are those of https://github.com/google/pprof/blob/main/proto/profile.proto,
the wire format that of https://protobuf.dev/programming-guides/encoding/.
"""

from collections.abc import Iterator
from typing import Final

from tracelloc.dataclass import dataclass, field, replace
from tracelloc.errors import MalformedError
from tracelloc.model.frames import Frame
from tracelloc.model.process import Space, Target
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation import profile
from tracelloc.snapshots.snapshot import StackStat

_NUMBER, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NO_FIGURES: Final = StackStat(0, 0, 0, 0, 0, 0)
# Limit of all stacks' frames: a small file may refer to one long location many times.
_MOST_FRAMES: Final = 1 << 24


_Message = dict[int, int | bytes]  # Values by field number, without repeated fields


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise MalformedError("it is not a pprof profile, or it is damaged")
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, at
        shift += 7


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == _NUMBER:
            value, at = _varint(content, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(content, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise MalformedError("it is not a pprof profile, or it is damaged")
        if at + size > len(content):
            raise MalformedError("it ends too early")
        if kind == _BYTES:
            yield key >> 3, content[at : at + size]
        at += size


def _numbers(value: int | bytes) -> list[int]:
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise MalformedError("it is not a pprof profile, or it is damaged")
    return value


def _message(value: int | bytes) -> _Message:
    return dict(_fields(_bytes(value)))


def _number(message: _Message, key: int) -> int:
    value = message.get(key, 0)
    if not isinstance(value, int):
        raise MalformedError("it is not a pprof profile, or it is damaged")
    return value


@dataclass(slots=True)
class _Raw:
    strings: list[str] = field(default_factory=list)
    types: list[_Message] = field(default_factory=list)
    samples: list[tuple[list[int], list[int]]] = field(default_factory=list)
    mappings: dict[int, _Message] = field(default_factory=dict)
    locations: dict[int, tuple[_Message, list[_Message]]] = field(default_factory=dict)
    functions: dict[int, _Message] = field(default_factory=dict)
    comments: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def string(self, at: int) -> str:
        if at >= len(self.strings):
            raise MalformedError("a name in it is missing")
        return self.strings[at]


def read(content: bytes, time_s: float) -> profile.Profile:
    """Reads a pprof profile; ``time_s``: its time if the file has none."""
    raw = _raw(content)
    columns = _columns(raw)
    is_gpu = any(name.startswith(profile.GPU_PREFIX) for name in _type_names(raw))
    frames = {number: _location(raw, number) for number in raw.locations}
    samples, count = [], 0
    for index, (locations, values) in enumerate(raw.samples):
        if len(values) != len(raw.types) or any(n not in frames for n in locations):
            raise MalformedError("a sample in it is incomplete")
        count += sum(len(frames[number]) for number in locations)
        if count > _MOST_FRAMES:
            raise MalformedError("its stacks are implausibly long")
        chain = [frame for number in locations for frame in frames[number]]
        figures = {attribute: _signed(values[at]) for attribute, at in columns.items()}
        stat = replace(_NO_FIGURES, index=index, **figures)
        samples.append(profile.Sample(stat, NamedStack(chain, [False] * len(chain))))
    samples.sort(key=lambda sample: (-sample.stat.live_bytes, sample.stat.index))
    comments = [raw.string(at) for at in raw.comments]
    written_ns = _signed(raw.numbers.get(9, 0))
    return profile.Profile(
        target=_target(comments, raw),
        time_s=written_ns / 1e9 if written_ns > 0 else time_s,
        elapsed_ns=max(0, _signed(raw.numbers.get(10, 0))),
        sample_bytes=raw.numbers.get(12, 1) if raw.numbers.get(12, 1) > 1 else None,
        samples=samples,
        files=[_file(raw, mapping) for mapping in raw.mappings.values()],
        notes=comments[1:] if comments[:1] and comments[0].startswith("tracelloc: ") else comments,
        facts={"space": Space.GPU.value} if is_gpu else {},
        metrics=frozenset(m for m in profile.Metric if m.figure.attribute in columns),
    )


def _raw(content: bytes) -> _Raw:
    raw = _Raw()
    for key, value in _fields(content):
        if key == 1:
            raw.types.append(_message(value))
        elif key == 2:
            raw.samples.append(_sample(value))
        elif key == 3:
            mapping = _message(value)
            raw.mappings[_number(mapping, 1)] = mapping
        elif key == 4:
            parts = list(_fields(_bytes(value)))
            lines = [_message(part) for number, part in parts if number == 4]
            location = dict(parts)
            raw.locations[_number(location, 1)] = location, lines
        elif key == 5:
            function = _message(value)
            raw.functions[_number(function, 1)] = function
        elif key == 6:
            raw.strings.append(_bytes(value).decode(errors="backslashreplace"))
        elif key == 13:
            raw.comments.extend(_numbers(value))
        elif isinstance(value, int):
            raw.numbers[key] = value
    if not raw.types or not raw.strings:
        raise MalformedError("it is not a pprof profile")
    return raw


def _sample(value: int | bytes) -> tuple[list[int], list[int]]:
    parts = list(_fields(_bytes(value)))
    locations, values = (
        [n for key, part in parts if key == field for n in _numbers(part)] for field in (1, 2)
    )
    return locations, values


def _type_names(raw: _Raw) -> list[str]:
    return [raw.string(_number(kind, 1)) for kind in raw.types]


def _columns(raw: _Raw) -> dict[str, int]:
    """Returns each figure's index in a sample's values, also by other tools' names."""
    at = {name.removeprefix(profile.GPU_PREFIX): n for n, name in enumerate(_type_names(raw))}
    for alias, name in (("space", "inuse_space"), ("objects", "inuse_objects")):
        if alias in at:
            at.setdefault(name, at[alias])
    found = {f.attribute: at[f.sample_type] for f in profile.FIGURES if f.sample_type in at}
    return found or {"live_bytes": len(raw.types) - 1}


def _location(raw: _Raw, number: int) -> list[Frame]:
    location, lines = raw.locations[number]
    address = _number(location, 3)
    mapping = raw.mappings.get(_number(location, 2))
    module = raw.string(_number(mapping, 5)) if mapping is not None else None
    inside = None
    if mapping is not None:
        inside = address - _number(mapping, 2) + _number(mapping, 4)
    if not lines:
        return [Frame(address, None, None, None, None, module, inside)]
    frames = []
    for at, line in enumerate(lines):
        function = raw.functions.get(_number(line, 1), {})
        name, raw_name, file = (raw.string(_number(function, field)) or None for field in (2, 3, 4))
        frames.append(Frame(
            address, name, raw_name or name, None, None, module, inside,
            file=file, line=_signed(_number(line, 2)) or None, inlined=at < len(lines) - 1,
        ))  # fmt: skip
    return frames


def _file(raw: _Raw, mapping: _Message) -> profile.MappedFile:
    path, build_id = (raw.string(_number(mapping, field)) for field in (5, 6))
    start, end, offset = (_number(mapping, field) for field in (2, 3, 4))
    return profile.MappedFile(path, start, end, offset, build_id or None)


def _target(comments: list[str], raw: _Raw) -> Target:
    for comment in comments[:1]:
        command, _, pid = comment.removeprefix("tracelloc: ").rpartition(", process ")
        if command and pid.isascii() and pid.isdigit() and len(pid) < 10:
            return Target(int(pid), command)
    for mapping in raw.mappings.values():
        return Target(0, raw.string(_number(mapping, 5)).rpartition("/")[2] or "unknown")
    return Target(0, "unknown")
