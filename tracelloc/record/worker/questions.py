"""Questions that workers answer: functions, whose types say what a message may contain.

``question`` declares one. The other side passes the function itself to ``FileWorker.ask``, which
returns what the function returns in the worker. Both sides read messages by the declared types:
a worker may have been taken over by the file that it reads, so what is of another type, out of
range, too long or too short is refused. Nothing but plain values, arrays, enumerations and the
dataclasses that a question names is ever made of a message.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from tracelloc.errors import MalformedError
from tracelloc.record.worker.channel import Descriptor

Function = TypeVar("Function", bound=Callable[..., Any])

Signed = Annotated[int, range(-(1 << 63), 1 << 63)]
"""A number that may be negative. Others are unsigned, of 64 bits."""
_UNSIGNED: Final = range(1 << 64)


def question(
    is_possible: Callable[..., bool] = lambda *_: True,
) -> Callable[[Function], Function]:
    """Declares that workers answer a question by this method: of a file, or of ``KnownFiles``.

    ``is_possible`` gets an answer and the arguments, and tells whether the answer can be true.
    """

    def declare(function: Function) -> Function:
        name = function.__name__
        assert name not in QUESTIONS
        QUESTIONS[name] = Question(function, is_possible)
        return function

    return declare


class Question:
    """Reads the messages of a question. Raises MalformedError if they are not of its types."""

    def __init__(self, function: Callable[..., Any], is_possible: Callable[..., bool]) -> None:
        self.name: Final = function.__name__
        self._function = function
        self._is_possible = is_possible
        self._parameters = list(inspect.signature(function).parameters)[1:]

    @cached_property
    def _readers(self) -> dict[str, Reader]:
        hints = get_type_hints(self._function, include_extras=True)
        return {name: _reader(hints[name]) for name in (*self._parameters, "return")}

    def arranged(self, given: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        """Returns the arguments of a call in the order of the parameters."""
        values = dict(zip(self._parameters, given, strict=False)) | named
        return [values[name] for name in self._parameters]

    def arguments(self, message: Any, data: bytes, descriptors: Sequence[int]) -> dict[str, Any]:
        """Reads the arguments, by name."""
        rest = Attached(data, descriptors)
        values = zip(self._parameters, _checked(list, message), strict=True)
        arguments = {name: self._readers[name](value, rest) for name, value in values}
        rest.check_end()
        return arguments

    def answer(self, message: Any, data: bytes, arguments: Sequence[Any]) -> Any:
        """Reads the answer to a question with these arguments."""
        rest = Attached(data)
        answer = self._readers["return"](message, rest)
        rest.check_end()
        if not self._is_possible(answer, *arguments):
            raise MalformedError("it can't be true")
        return answer


QUESTIONS: Final[dict[str, Question]] = {}
"""All questions by name."""


class Attached:
    """The bytes and descriptors of a message, which belong to the values in their order."""

    def __init__(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        self._data = memoryview(data)
        self._descriptors = descriptors

    def take(self, size_bytes: Any) -> memoryview:
        """Returns the next bytes."""
        size = _number(size_bytes, _UNSIGNED)
        if size > len(self._data):
            raise MalformedError("its bytes are cut off")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def descriptor(self, index: Any) -> Descriptor:
        """Returns a descriptor by its index."""
        return Descriptor(self._descriptors[_number(index, range(len(self._descriptors)))])

    def check_end(self) -> None:
        """Raises MalformedError if bytes are left."""
        if self._data:
            raise MalformedError("it has more bytes than values")


Reader = Callable[[Any, Attached], Any]
"""Makes a value of what stands for it in JSON."""


@cache
def _reader(kind: Any) -> Reader:
    """Returns how values of a type are read. Raises TypeError for types that are never sent."""
    origin = get_origin(kind)
    if origin is not None:
        return _reader_of_parts(origin, get_args(kind))
    if isinstance(kind, type) and is_dataclass(kind) and kind is not Descriptor:
        hints = get_type_hints(kind, include_extras=True)
        return _row(lambda values: kind(*values), [hints[field.name] for field in fields(kind)])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member({member.value: member for member in kind})
    return _PLAIN[kind]


def _reader_of_parts(origin: Any, given: tuple[Any, ...]) -> Reader:
    if origin in (Union, types.UnionType):
        return _optional(*given)
    if origin is Annotated:
        return _ranged(given[1]) if given[0] is int else _array(np.dtype(given[1]))
    if origin is np.ndarray:
        return _array(np.dtype(get_args(given[1])[0]))
    if origin is tuple and given[-1] is not Ellipsis:
        return _row(tuple, given)
    if origin in (tuple, list, Sequence):
        return _many(tuple if origin is tuple else list, _reader(given[0]))
    return {dict: _by_text}[origin](*given)


def _checked(kind: type, value: Any) -> Any:
    # Not a subclass: true is no number.
    if type(value) is not kind:
        raise MalformedError(f"a {type(value).__name__} stands where a {kind.__name__} should")
    return value


def _number(value: Any, allowed: range) -> int:
    if type(value) is not int or value not in allowed:
        raise MalformedError("a number is out of range, or none")
    return value


def _finite(value: Any, _: Attached) -> float:
    if not math.isfinite(_checked(float, value)):
        raise MalformedError("a number is not finite")
    return float(value)


_PLAIN: Final[dict[Any, Reader]] = {
    str: lambda value, _: _checked(str, value),
    bool: lambda value, _: _checked(bool, value),
    type(None): lambda value, _: _checked(type(None), value),
    int: lambda value, _: _number(value, _UNSIGNED),
    float: _finite,
    bytes: lambda value, rest: bytes(rest.take(value)),
    Descriptor: lambda value, rest: rest.descriptor(value),
}


def _ranged(allowed: range) -> Reader:
    return lambda value, _: _number(value, allowed)


def _member(members: dict[int, Enum]) -> Reader:
    def read(value: Any, _: Attached) -> Enum:
        if _checked(int, value) not in members:
            raise MalformedError("a number is out of range")
        return members[value]

    return read


def _optional(*kinds: Any) -> Reader:
    (kind,) = (each for each in kinds if each is not type(None))
    read = _reader(kind)
    return lambda value, rest: None if value is None else read(value, rest)


def _array(dtype: np.dtype[Any]) -> Reader:
    def read(value: Any, rest: Attached) -> Any:
        content = rest.take(value)
        if len(content) % dtype.itemsize:
            raise MalformedError("an array is cut off")
        return np.frombuffer(content, dtype)

    return read


def _many(make: Callable[[list[Any]], Any], read: Reader) -> Reader:
    return lambda value, rest: make([read(each, rest) for each in _checked(list, value)])


def _row(make: Callable[[tuple[Any, ...]], Any], kinds: Sequence[Any]) -> Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any, rest: Attached) -> Any:
        if len(_checked(list, value)) != len(readers):
            raise MalformedError(f"{len(value)} values stand where {len(readers)} should")
        return make(tuple(one(each, rest) for one, each in zip(readers, value, strict=True)))

    return read


def _by_text(key: Any, kind: Any) -> Reader:
    assert key is str
    read = _reader(kind)
    return lambda value, rest: {
        name: read(each, rest) for name, each in _checked(dict, value).items()
    }
