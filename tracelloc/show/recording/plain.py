"""Converts dataclasses to plain JSON values and back, as directed by type annotations.

Reading is strict, as files are not trusted: a value of another type raises MalformedError.
Enumerations are written by name, dictionaries as pairs, dataclasses as dictionaries by field.
Because other versions of tracelloc may have other fields, missing fields take their defaults or
are empty, and unknown ones are ignored.
"""

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from tracelloc.errors import MalformedError

# Values of missing fields without defaults.
_EMPTY: Final[dict[Any, Any]] = {int: 0, float: 0.0, bool: False, str: ""}
_MOST: Final = 1 << 64  # Upper limit of numbers


def to_plain(value: Any) -> Any:
    """Converts a value to plain JSON values."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.number):
        return value.item()
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, tuple | list):
        return [to_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no plain form")


def from_plain(kind: Any, plain: Any) -> Any:
    """Restores a value of a type. Raises MalformedError."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), plain)
    if origin is tuple:
        return _tuple(get_args(kind), plain)
    if origin is not None and issubclass(origin, Mapping):
        key, value = get_args(kind)
        pairs = [_checked(list, pair) for pair in _checked(list, plain)]
        if any(len(pair) != 2 for pair in pairs):
            raise MalformedError("a dictionary is damaged")
        return {from_plain(key, pair[0]): from_plain(value, pair[1]) for pair in pairs}
    if issubclass(kind, Enum):
        try:
            return kind[_checked(str, plain)]
        except KeyError as error:
            raise MalformedError(f"{kind.__name__} {str(plain)[:40]!r} is not known") from error
    if is_dataclass(kind):
        return _instance(cast(type, kind), plain)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        plain = float(_checked(int, plain))
    return _checked(kind, plain)


def _checked(kind: Any, plain: Any) -> Any:
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise MalformedError(f"a {type(plain).__name__} stands where a {kind.__name__} should")
    if kind is int and not -_MOST < plain < _MOST:
        raise MalformedError("a number is too large")
    return plain


def _one_of(kinds: tuple[Any, ...], plain: Any) -> Any:
    if plain is None and type(None) in kinds:
        return None
    return from_plain(next(kind for kind in kinds if kind is not type(None)), plain)


def _tuple(kinds: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    every = _checked(list, plain)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(from_plain(kinds[0], each) for each in every)
    if len(every) != len(kinds):
        raise MalformedError(f"{len(every)} values stand where {len(kinds)} should")
    return tuple(from_plain(kind, each) for kind, each in zip(kinds, every, strict=True))


def _instance(kind: type, plain: Any) -> Any:
    given = _checked(dict, plain)
    kinds = types_of(kind)
    values = {name: from_plain(kinds[name], each) for name, each in given.items() if name in kinds}
    for name in _required(kind) - values.keys():
        if kinds[name] in _EMPTY:
            values[name] = _EMPTY[kinds[name]]
    try:
        return kind(**values)
    except TypeError as error:
        raise MalformedError(f"a {kind.__name__} is incomplete") from error


@functools.cache
def _required(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    )


@functools.cache
def types_of(kind: type) -> dict[str, Any]:
    """Returns the types of a dataclass's fields, by name."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
