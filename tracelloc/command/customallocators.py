"""Allocators that the user names: ``[[allocator]]`` tables of a TOML file.

They are pools, arenas and wrappers that tracelloc does not know. ``docs/allocators.md`` has an
example, and describes all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tracelloc.errors import UsageError
from tracelloc.record.mallocs.discovery import CustomAllocator, CustomFunction
from tracelloc.record.mallocs.signatures import SIZES, FunctionKind, Signature
from tracelloc.show.filters.files import given_text, own_text
from tracelloc.show.filters.rules import TomlTables, nearest
from tracelloc.system.invoker import Invoker

# What functions can do: as the function of that name; `alloc` as malloc. A `free` may call another
# one for its memory: that counts once.
KINDS: Final = {
    "alloc": FunctionKind.ALLOC,
    "calloc": FunctionKind.CALLOC,
    "realloc": FunctionKind.REALLOC,
    "reallocarray": FunctionKind.REALLOCARRAY,
    "posix_memalign": FunctionKind.POSIX_MEMALIGN,
    "free": FunctionKind.OUTER_FREE,
}

_MOST_ARGUMENTS: Final = 6
# Default argument positions; other kinds use the first arguments.
_USUAL: Final = {FunctionKind.POSIX_MEMALIGN: (1, 3)}
_TABLE_KEYS: Final = ("name", "module", "functions")
_FUNCTION_KEYS: Final = ("name", "kind", "throws")
_SIZE_BYTES: Final = "size_bytes"


def load_custom_allocators(
    paths: Iterable[Path], who: Invoker
) -> tuple[tuple[CustomAllocator, ...], list[str]]:
    """Reads files, and the user's own. Returns (allocators, warnings). Raises UsageError."""
    own = who.config / "tracelloc" / "allocators.toml"
    text, warnings = own_text(own, who)
    custom = [] if text is None else parse_custom_allocators(text, str(own))
    for path in paths:
        custom += parse_custom_allocators(given_text(path, "allocators"), str(path))
    return tuple(custom), warnings


def parse_custom_allocators(text: str, name: str) -> list[CustomAllocator]:
    """Reads a TOML text; ``name`` stands for the file in errors. Raises UsageError."""
    tables = TomlTables(text, name, "allocator")
    return [
        _allocator(entry, partial(tables.fail_at, at)) for at, entry in enumerate(tables.entries)
    ]


def _allocator(entry: dict[str, Any], fail: Callable[..., NoReturn]) -> CustomAllocator:
    """Parses one table ``[[allocator]]``. ``fail(key, what, hint)`` raises UsageError."""
    for key in entry:
        if key not in _TABLE_KEYS:
            fail(key, f"unknown key {key!r}", nearest(key, _TABLE_KEYS))
    for key in ("name", "module"):
        if not isinstance(entry.get(key, "*"), str):
            fail(key, f"{key} must be a string")
    functions = entry.get("functions")
    if not isinstance(functions, list) or not functions:
        fail("functions", "functions must list at least one function")
    found = []
    for number, function in enumerate(functions):
        where = f"functions, number {number + 1}"
        if not isinstance(function, dict):
            fail("functions", f'{where} must be a table such as {{ name = "f", kind = "free" }}')
        try:
            found.append(_function(function))
        except UsageError as wrong:
            fail("functions", f"{where}: {wrong.message}", wrong.hint)
    return CustomAllocator(entry.get("name", "pool"), entry.get("module", "*"), tuple(found))


def _function(entry: dict[str, Any]) -> CustomFunction:
    """Parses one function's table. Raises UsageError, which names no file."""
    pattern, kind_name = entry.get("name"), entry.get("kind")
    if not isinstance(pattern, str) or not pattern:
        raise UsageError("name is missing")
    if not isinstance(kind_name, str) or kind_name not in KINDS:
        raise UsageError(
            f"kind cannot be {kind_name!r}" if "kind" in entry else "kind is missing",
            hint=f"known are {', '.join(KINDS)}",
        )
    kind = KINDS[kind_name]
    known = [*_FUNCTION_KEYS, *kind.roles, *([_SIZE_BYTES] if "size" in kind.roles else [])]
    for key in entry:
        if key not in known:
            raise UsageError(f"unknown key {key!r}", hint=nearest(key, known))
    size_bytes = _size_bytes(entry)
    positions = []
    usual = _USUAL.get(kind, range(1, len(kind.roles) + 1))
    for role, first in zip(kind.roles, usual, strict=True):
        if role == "size" and size_bytes:
            positions.append(0)
            continue
        position = entry.get(role, first)
        if type(position) is not int or not 1 <= position <= _MOST_ARGUMENTS:
            raise UsageError(f"{role} must be the number of an argument, 1 to {_MOST_ARGUMENTS}")
        positions.append(position)
    throws = entry.get("throws", True)
    if not isinstance(throws, bool):
        raise UsageError("throws must be true or false")
    signature = Signature(kind, tuple(positions), size_bytes=size_bytes)
    # The probe on a free fires at its entry, so an exception in it does not matter.
    return CustomFunction(pattern, replace(signature, throws=throws and kind.returns))


def _size_bytes(entry: dict[str, Any]) -> int:
    """Returns the size of a function's blocks; 0 if an argument tells. Raises UsageError."""
    size_bytes = entry.get(_SIZE_BYTES, 0)
    if _SIZE_BYTES in entry:
        if "size" in entry:
            raise UsageError(f"size and {_SIZE_BYTES} exclude each other")
        if type(size_bytes) is not int or not 1 <= size_bytes < SIZES:
            raise UsageError(f"{_SIZE_BYTES} must be a number of bytes, 1 to {SIZES - 1:,}")
    return int(size_bytes)
