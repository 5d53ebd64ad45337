"""Messages over a Unix socket: two lengths, then JSON and bytes, and descriptors.

The bytes are those of arrays and of byte strings in the message, where the JSON has their sizes.

The two ends do not trust each other equally. tracelloc reads a worker's messages with limits of
size and time, with a decoder that creates only plain values, and never accepts descriptors.
"""

import json
import socket
import struct
import time
from functools import cache
from typing import Any, Final

from tracelloc.dataclass import dataclass, fields, is_dataclass
from tracelloc.errors import MalformedError
from tracelloc.system.bounded import parse_json

_LENGTHS: Final = struct.Struct("<II")
LARGEST_TEXT: Final = 64 << 20  # Most bytes of JSON in a message
LARGEST_BYTES: Final = 64 << 20  # Most bytes after the JSON
MOST_DESCRIPTORS: Final = 2


class ChannelError(OSError):
    """Raised if the other end does not answer, or sends a malformed message."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A file descriptor in a message: at the receiver, the one that was received."""

    number: int


class PackedMessage:
    """An encoded message: plain values, dataclasses, arrays, byte strings and descriptors."""

    def __init__(self, message: object) -> None:
        self.parts: list[memoryview] = []
        self.size_bytes = 0
        self.descriptors: list[int] = []
        self.text: Final = json.dumps(message, separators=(",", ":"), default=self._plain).encode()

    def _plain(self, value: Any) -> object:
        if isinstance(value, Descriptor):
            self.descriptors.append(value.number)
            return len(self.descriptors) - 1
        if is_dataclass(value):
            return [getattr(value, name) for name in _fields_of(value.__class__)]
        part = memoryview(value)
        assert part.ndim  # no number of numpy's
        self.parts.append(part if part.c_contiguous else memoryview(part.tobytes()))
        self.size_bytes += part.nbytes
        return part.nbytes


@cache
def _fields_of(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def send(channel: socket.socket, message: object) -> None:
    """Sends a message of values that ``PackedMessage`` can encode. Raises OSError."""
    packed = message if isinstance(message, PackedMessage) else PackedMessage(message)
    head = _LENGTHS.pack(len(packed.text), packed.size_bytes)
    if packed.descriptors:
        head = head[socket.send_fds(channel, [head], packed.descriptors) :]
    channel.sendall(b"".join((head, packed.text, *packed.parts)))


def receive(channel: socket.socket, patience_s: float) -> tuple[Any, bytes]:
    """Receives a message and its bytes; the kernel closes any descriptors. Raises OSError."""
    end_s = time.monotonic() + patience_s
    return _content(channel, _exactly(channel, _LENGTHS.size, end_s), end_s)


def receive_question(channel: socket.socket) -> tuple[Any, bytes, list[int]]:
    """Receives a message, its bytes and its descriptors, without a timeout. Raises OSError."""
    head, descriptors, _, _ = socket.recv_fds(
        channel, _LENGTHS.size, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    head += _exactly(channel, _LENGTHS.size - len(head), None)
    return *_content(channel, head, None), descriptors


def _content(channel: socket.socket, head: bytes, end_s: float | None) -> tuple[Any, bytes]:
    text_bytes, data_bytes = _LENGTHS.unpack(head)
    if text_bytes > LARGEST_TEXT or data_bytes > LARGEST_BYTES:
        raise ChannelError("its answer is too long")
    text = _exactly(channel, text_bytes, end_s)
    try:
        message = parse_json(text)
    except (ValueError, MalformedError) as error:
        raise ChannelError("its answer is not JSON") from error
    return message, _exactly(channel, data_bytes, end_s)


def _exactly(channel: socket.socket, count: int, end_s: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        left_s = None if end_s is None else end_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise ChannelError("it has not answered for too long")
        channel.settimeout(left_s)
        try:
            part = channel.recv(min(count, 1 << 20))
        except TimeoutError:
            continue
        if not part:
            raise ConnectionResetError("it ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
