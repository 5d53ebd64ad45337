"""Names as their programmers wrote them: Rust (legacy and v0) and C++.

Rust: the rust-demangler package, with its known faults kept from doing harm: it
prints, it raises all kinds of errors, it keeps state in module globals, it does not
know LLVM's suffixes, and it writes ``{closure:#0}``. C++: ``__cxa_demangle`` of
libstdc++, which bcc needs anyway. A name that can't be read stays as it is.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from typing import Any, Final

LONGEST_NAME: Final = 16 << 10
"""Bytes; longer names are left alone: demanglers are recursive."""

_VERSION = re.compile(r"@@?[A-Za-z0-9_.]+$")
_LLVM = re.compile(r"\.llvm\.[0-9A-F@]+$")
_RUST_LEGACY = re.compile(r"^_?_?ZN.*17h[0-9a-f]{16}E")
_RUST_HASH = re.compile(r"::h[0-9a-f]{16}(?=$|\.)")
_SPECIAL = re.compile(r"\{(\w+):#")

_rust_lock = threading.Lock()


@functools.lru_cache(maxsize=1 << 16)
def demangle(name: str) -> str:
    """The readable form of a symbol, without Rust's hash; the name itself if it has none.

    Never raises and never prints. Control characters are not tamed here.
    """
    if len(name) > LONGEST_NAME:
        return name
    plain = _VERSION.sub("", name)
    if plain.startswith(("_R", "__R")) or _RUST_LEGACY.match(plain):
        return _demangle_rust(plain) or name
    if plain.startswith(("_Z", "__Z")):
        return _demangle_cpp(plain) or name
    return name


@functools.cache
def _rust_demangler() -> Any:
    import rust_demangler.rust_v0  # noqa: PLC0415 - most targets are not Rust

    # It reports some of what it can't read to standard output, which is the report's.
    rust_demangler.rust_v0.print = _print_nothing
    return rust_demangler.demangle


def _print_nothing(*_arguments: object, **_options: object) -> None:
    pass


def _demangle_rust(name: str) -> str | None:
    try:
        with _rust_lock:
            text = str(_rust_demangler()(_LLVM.sub("", name)))
    except Exception:  # noqa: BLE001 - it raises its own, IndexError, RecursionError and more
        return None
    return _SPECIAL.sub(r"{\1#", _RUST_HASH.sub("", text))


@functools.cache
def _cxa_demangle() -> Any:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return function


@functools.cache
def _free() -> Any:
    function = ctypes.CDLL(None).free
    function.argtypes = (ctypes.c_void_p,)
    return function


def _demangle_cpp(name: str) -> str | None:
    function = _cxa_demangle()
    if function is None:
        return None
    status = ctypes.c_int()
    result = function(name.encode(errors="replace"), None, None, ctypes.byref(status))
    if not result:
        return None
    try:
        return ctypes.string_at(result).decode(errors="replace")
    finally:
        _free()(result)
