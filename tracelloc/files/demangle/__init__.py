"""Demangling of Rust (legacy and v0) and C++ names.

Rust: pyderust, which is rustc's own demangler. If it cannot be loaded, rust-demangler reads
legacy names, and v0 names stay unchanged.

C++: libstdc++, in a separate process (tracelloc.files.demangle.cxxnames).

A name that cannot be demangled stays unchanged.
"""

import re
import threading
from contextlib import suppress
from typing import Final

from tracelloc.files.demangle import cxxnames
from tracelloc.text import LONGEST_TEXT, split_arguments

LONGEST_NAME: Final = 16 << 10  # Characters; longer names are left alone

_MOST_CACHED: Final = 32 << 20  # Characters of all names kept, mangled and readable together

_STUB: Final = "@plt"  # The suffix of linkage stubs' names. No symbol version has this name.
_VERSION: Final = re.compile(r"@@?[A-Za-z0-9_.]+$")
_LLVM: Final = re.compile(r"\.llvm\.[0-9A-F]+$")
_RUST_V0: Final = re.compile(r"__?R[A-Z][A-Za-z0-9_]*(?:\.[!-~]*)?")
_RUST_LEGACY: Final = re.compile(r"__?ZN[!-~]*17h[0-9a-f]{16}E(?:\.[!-~]*)?")
# Generic parameters in a name of Rust's older kind.
_PARAMETERS: Final = re.compile(r"<[A-Z][A-Z0-9]?(?:, ?[A-Z][A-Z0-9]?)*>")
_HASH: Final = re.compile(r"::h[0-9a-f]{16}(?=$|\.)")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class _NameCache:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._size = 0

    def get(self, name: str) -> str | None:
        return self._known.get(name)

    def put(self, name: str, text: str) -> None:
        with self._lock:
            if name not in self._known:
                self._known[name] = text
                self._size += len(name) + len(text)
            while self._size > _MOST_CACHED:
                oldest = next(iter(self._known))
                self._size -= len(oldest) + len(self._known.pop(oldest))

    def clear(self) -> None:
        with self._lock:
            self._known.clear()
            self._size = 0


cache: Final = _NameCache()


def with_arguments(symbol: str, plain: str) -> str:
    """Adds the generic arguments of a name in debug information to a legacy Rust symbol.

    ``plain``: the name, such as ``push<Item, Global>``. ``demangle`` reads the result.
    """
    begin = plain.find("<")
    return symbol + plain[begin:] if begin > 0 and _RUST_LEGACY.fullmatch(symbol) else symbol


def without_arguments(name: str) -> str:
    """Returns the symbol alone, given a result of ``with_arguments``."""
    return name.partition("<")[0] if name.startswith("_ZN") else name


def demangle(name: str) -> str:
    """Returns the readable form of a symbol, without Rust's hash; the name itself if unreadable.

    Never raises and never prints; bounded in time and memory, whatever the name. A readable
    form has no control characters; an unreadable name is returned unchanged.
    """
    if not name.startswith(("_R", "__R", "_Z", "__Z")) or len(name) > LONGEST_NAME:
        return name
    if name.endswith(_STUB):
        return _demangle(name.removesuffix(_STUB)) + _STUB
    return _demangle(name)


def _demangle(name: str) -> str:
    text = cache.get(name)
    if text is None:
        text = _read(_VERSION.sub("", name)) or name
        cache.put(name, text)
    return text


def _read(name: str) -> str | None:
    if _CONTROL.search(name):
        return None
    symbol, bracket, arguments = name.partition("<")
    if bracket and _RUST_LEGACY.fullmatch(symbol):
        text = _read_rust(symbol)
        return text and _filled_in(text, arguments.removesuffix(">"))
    if _RUST_V0.fullmatch(name) or _RUST_LEGACY.fullmatch(name):
        text = _read_rust(name)
    elif name.startswith(("_Z", "__Z")):
        text = cxxnames.read(name.removeprefix("_") if name.startswith("__") else name)
    else:
        return None
    if not text or len(text) > LONGEST_TEXT or _CONTROL.search(text):
        return None
    return text


def _filled_in(text: str, arguments: str) -> str:
    """Puts arguments in place of ``T`` and ``A`` in ``alloc::vec::Vec<T,A>::push``."""
    found = _PARAMETERS.search(text)
    if found is None:
        return text
    count, given = found[0].count(",") + 1, split_arguments(arguments)
    if len(given) < count:
        return text
    return f"{text[: found.start() + 1]}{', '.join(given[:count])}{text[found.end() - 1 :]}"


def _read_rust(name: str) -> str | None:
    name = _LLVM.sub("", name)
    with suppress(Exception):  # whatever it says, the name stays as it is
        try:
            from pyderust import demangle as read  # noqa: PLC0415 - most targets are not Rust
        except ImportError:
            return _read_legacy(name) if _RUST_LEGACY.fullmatch(name) else None
        return read(name)
    return None


def _read_legacy(name: str) -> str:
    """Reads ``_ZN3foo17h0123456789abcdefE`` and the like by rust-demangler. Raises anything."""
    from rust_demangler.rust_legacy import LegacyDemangler  # noqa: PLC0415 - as above

    # It reads ".." only in front of a "$".
    return _HASH.sub("", str(LegacyDemangler().demangle(name))).replace("..", "::")
