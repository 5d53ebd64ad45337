"""Allocators that the user names: ``[[allocator]]`` and ``[[provider]]`` tables of a TOML file.

``docs/allocators.md`` has examples, and describes all keys.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tracelloc.errors import UsageError
from tracelloc.model.process import Space
from tracelloc.record.mallocs.discovery import CustomAllocator, CustomFunction, MallocChoice
from tracelloc.record.mallocs.families import PROVIDERS, SIZES, FunctionKind, Provider, Signature
from tracelloc.show.filters.files import given_text, own_text
from tracelloc.show.filters.rules import TomlTables, nearest
from tracelloc.system.invoker import Invoker

# What functions can do: as the function of that name; `alloc` as malloc. A `free` may call another
# one for its memory: that counts once.
KINDS: Final = {
    "alloc": FunctionKind.ALLOC, "calloc": FunctionKind.CALLOC, "realloc": FunctionKind.REALLOC,
    "reallocarray": FunctionKind.REALLOCARRAY, "posix_memalign": FunctionKind.POSIX_MEMALIGN,
    "free": FunctionKind.OUTER_FREE,
}  # fmt: skip

_MOST_ARGUMENTS: Final = 6
# Default argument positions; other kinds use the first arguments.
_USUAL: Final = {FunctionKind.POSIX_MEMALIGN: (1, 3)}
_TABLE_KEYS: Final = ("name", "module", "functions", "space")
_PROVIDER_KEYS: Final = ("name", "alloc", "free", "space")
# The arguments of a provider's probes, by the key of the probe; the first ones must be given.
_PROBES: Final = {"alloc": ("pointer", "size", "weight", "device"), "free": ("pointer",)}
_MOST_PROBE_ARGUMENTS: Final = 12
Custom = CustomAllocator | Provider
_FUNCTION_KEYS: Final = ("name", "kind", "throws")
_SIZE_BYTES: Final = "size_bytes"


def load_custom_allocators(
    paths: Iterable[Path], who: Invoker
) -> tuple[tuple[Custom, ...], list[str]]:
    """Reads files, and the user's own. Returns (allocators, warnings). Raises UsageError."""
    own = who.config / "tracelloc" / "allocators.toml"
    text, warnings = own_text(own, who)
    custom = [] if text is None else parse_custom_allocators(text, str(own))
    for path in paths:
        custom += parse_custom_allocators(given_text(path, "allocators"), str(path))
    return tuple(custom), warnings


def choose(choice: MallocChoice, custom: Iterable[Custom], source: str) -> MallocChoice:
    """Adds what files name, GPU memory only if ``--malloc`` names it. Raises UsageError."""
    providers = {one.name: one for one in (*PROVIDERS, *custom) if isinstance(one, Provider)}
    name = source.partition(":")[2]
    if name and name not in providers:
        raise UsageError(f"--source={source}: no such provider", hint=nearest(name, providers))
    wanted = () if source == "auto" else tuple(providers.values())
    hosts = (one for one in custom if isinstance(one, CustomAllocator))
    functions = tuple(one for one in hosts if one.space is Space.HOST or one.name == choice.only)
    return replace(choice, custom=functions, providers=(providers[name],) if name else wanted)


def parse_custom_allocators(text: str, name: str) -> list[Custom]:
    """Reads a TOML text; ``name`` stands for the file in errors. Raises UsageError."""
    found: list[Custom] = []
    kinds = ("allocator", _TABLE_KEYS, _allocator), ("provider", _PROVIDER_KEYS, _provider)
    for table, keys, parse in kinds:
        tables = TomlTables(text, name, table, "allocator", "provider")
        for at, entry in enumerate(tables.entries):
            fail = partial(tables.fail_at, at)
            for key in entry:
                if key not in keys:
                    fail(key, f"unknown key {key!r}", nearest(key, keys))
            for key in ("name", "module"):
                if not isinstance(entry.get(key, "*"), str):
                    fail(key, f"{key} must be a string")
            spaces = [space.value for space in Space]
            if entry.get("space", spaces[0]) not in spaces:
                fail("space", f"space must be one of {', '.join(spaces)}")
            found.append(parse(entry, fail))
    return found


def _provider(entry: dict[str, Any], fail: Callable[..., NoReturn]) -> Provider:
    """Parses one table ``[[provider]]``. ``fail(key, what, hint)`` raises UsageError."""
    if not entry.get("name"):
        fail("name", "name is missing")
    names, numbers = [], []
    for key, roles in _PROBES.items():
        probe = entry.get(key)
        if not isinstance(probe, dict) or not isinstance(probe.get("probe"), str):
            fail(key, f'{key} must be a table such as {{ probe = "{key}", pointer = 1 }}')
        names.append(probe["probe"])
        numbers.append({role: number for role, number in probe.items() if role != "probe"})
        for role in dict.fromkeys((*roles[:2], *numbers[-1])):
            if role not in roles:
                fail(key, f"{key}: unknown key {role!r}", nearest(role, roles))
            number = numbers[-1].get(role)
            if type(number) is not int or not 1 <= number <= _MOST_PROBE_ARGUMENTS:
                most = _MOST_PROBE_ARGUMENTS
                fail(key, f"{key}: {role} must be the number of an argument, 1 to {most}")
    if names[0] == names[1]:
        fail("free", "alloc and free must be different probes")
    return Provider(
        entry["name"], space=Space(entry.get("space", "host")), alloc=names[0], free=names[1],
        arguments=numbers[0], freed=numbers[1]["pointer"],
    )  # fmt: skip


def _allocator(entry: dict[str, Any], fail: Callable[..., NoReturn]) -> CustomAllocator:
    """Parses one table ``[[allocator]]``. ``fail(key, what, hint)`` raises UsageError."""
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
    space = Space(entry.get("space", "host"))
    return CustomAllocator(entry.get("name", "pool"), entry.get("module", "*"), tuple(found), space)


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
