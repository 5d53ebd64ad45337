"""Questions that workers answer: methods, whose types say what a message may contain.

``question`` declares one. The other side passes the function itself to ``FileWorker.ask``, which
returns what the function returns in the worker. Both sides read messages by the declared types:
a worker may have been taken over by the file that it reads, so what is of another type, out of
range, too long or too short is refused. Nothing but plain values, arrays, enumerations and the
dataclasses that a question names is ever made of a message.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
import types
from collections.abc import Callable, Container, Sequence
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

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


Function = TypeVar("Function", bound=Callable[..., Any])

# A number that may be negative. Other numbers are unsigned, of 64 bits.
Signed = Annotated[int, range(-(1 << 63), 1 << 63)]
_UNSIGNED: Final = range(1 << 64)


class question:  # noqa: N801 - a decorator
    """Decorates a method, of a file or ``KnownFiles``, with which workers answer a question."""

    def __init__(self, is_possible: Callable[..., bool] = lambda *_: True) -> None:
        """``is_possible``: takes answer and arguments; tells whether the answer can be true."""
        self._is_possible = is_possible

    def __call__(self, function: Function) -> Function:
        """Registers a method as the question of its name; returns the method itself."""
        assert function.__name__ not in QUESTIONS
        QUESTIONS[function.__name__] = self
        self._function = function
        return function

    @cached_property
    def types(self) -> dict[str, Any]:
        """Types of the arguments by name, in order, and of the answer, under ``return``."""
        return get_type_hints(self._function, include_extras=True)

    @cached_property
    def _readers(self) -> tuple[Reader, Reader]:
        *arguments, answer = self.types.values()
        return _tuple(*arguments), reader_of(answer)

    def arguments(self, message: Any, data: bytes, descriptors: Sequence[int]) -> list[Any]:
        """Decodes a question's arguments. Raises MalformedError if they have other types."""
        return list(_read_all(self._readers[0], message, data, descriptors))

    def answer(self, message: Any, data: bytes, arguments: Sequence[Any]) -> Any:
        """Decodes the answer to a question with some arguments. Raises MalformedError."""
        answer = _read_all(self._readers[1], message, data)
        if not self._is_possible(answer, *arguments):
            raise MalformedError("it can't be true")
        return answer


QUESTIONS: Final[dict[str, question]] = {}  # All questions by name


class MessageData:
    """Bytes and descriptors of a message, which its values take in order."""

    def __init__(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        self.data = memoryview(data)
        self.descriptors = descriptors

    def take(self, size_bytes: Any) -> memoryview:
        """Returns the next ``size_bytes`` bytes. Raises MalformedError if there are fewer."""
        size = _number(size_bytes, range(len(self.data) + 1))
        taken, self.data = self.data[:size], self.data[size:]
        return taken


# Makes a value of what stands for it in JSON. Raises MalformedError.
Reader = Callable[[Any, MessageData], Any]


def _read_all(read: Reader, message: Any, data: bytes, descriptors: Sequence[int] = ()) -> Any:
    attached = MessageData(data, descriptors)
    value = read(message, attached)
    if attached.data:
        raise MalformedError("it has more bytes than values")
    return value


@cache
def reader_of(kind: Any) -> Reader:
    """Returns a decoder for values of a type. Raises KeyError for types that are never sent."""
    origin, parts = get_origin(kind), get_args(kind)
    if hasattr(origin, "__value__"):  # an alias by statement, as NDArray is from Python 3.12 on
        kind = origin.__value__[parts]
        origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _optional(*parts)
    if origin is Annotated:
        return _number_in(parts[1]) if parts[0] is int else _array(parts[1])
    if origin in _OF_PARTS:
        return _OF_PARTS[origin](*parts)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member({member.value: member for member in kind})
    if is_dataclass(kind) and kind is not Descriptor:
        return _instance(kind)
    return _PLAIN[kind]


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise MalformedError(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value


def _number(value: Any, allowed: Container[int]) -> int:
    # Not a subclass: true is no number.
    if type(value) is not int or value not in allowed:
        raise MalformedError("a number is out of range, or none")
    return value


def _finite(value: Any, _: MessageData) -> Any:
    if not math.isfinite(_checked(float, value)):
        raise MalformedError("a number is not finite")
    return value


def _of_type(kind: type) -> Reader:
    return lambda value, _: value if isinstance(value, kind) else _checked(kind, value)


def _number_in(allowed: range) -> Reader:
    low, high = allowed.start, allowed.stop
    return lambda value, _: (
        value if type(value) is int and low <= value < high else _number(value, allowed)
    )


def _member(members: dict[int, Enum]) -> Reader:
    return lambda value, _: members[_number(value, members)]


def _optional(*kinds: Any) -> Reader:
    (kind,) = (each for each in kinds if each is not type(None))
    read = reader_of(kind)
    return lambda value, attached: None if value is None else read(value, attached)


def _array(dtype: Any) -> Reader:
    item_bytes = np.dtype(dtype).itemsize

    def read(value: Any, attached: MessageData) -> Any:
        content = attached.take(value)
        if len(content) % item_bytes:
            raise MalformedError("an array is cut off")
        return np.frombuffer(content, dtype)

    return read


def _list(kind: Any) -> Reader:
    read = reader_of(kind)
    return lambda value, attached: [read(each, attached) for each in _checked(list, value)]


def _row(make: Callable[..., Any], kinds: Sequence[Any]) -> Reader:
    readers = [reader_of(kind) for kind in kinds]

    def read(value: Any, attached: MessageData) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise MalformedError(f"an array does not have {len(readers)} values")
        return make(*[read(each, attached) for read, each in zip(readers, value, strict=True)])

    return read


def _instance(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    return _row(kind, [hints[field.name] for field in fields(kind)])


def _tuple(*kinds: Any) -> Reader:
    if kinds[-1:] != (Ellipsis,):
        return _row(lambda *values: values, kinds)
    read = _list(kinds[0])
    return lambda value, attached: tuple(read(value, attached))


def _by_name(_: type[str], kind: Any) -> Reader:
    read = reader_of(kind)
    return lambda value, attached: {
        name: read(each, attached) for name, each in _checked(dict, value).items()
    }


_PLAIN: Final[dict[Any, Reader]] = {
    str: _of_type(str),
    bool: _of_type(bool),
    type(None): _of_type(type(None)),
    int: _number_in(_UNSIGNED),
    float: _finite,
    bytes: lambda value, attached: bytes(attached.take(value)),
    Descriptor: lambda value, attached: Descriptor(
        attached.descriptors[_number(value, range(len(attached.descriptors)))]
    ),
}
_OF_PARTS: Final[dict[Any, Callable[..., Reader]]] = {
    list: _list,
    Sequence: _list,
    tuple: _tuple,
    dict: _by_name,
    np.ndarray: lambda _, dtype: _array(*get_args(dtype)),
}
