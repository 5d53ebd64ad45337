"""Rust's names by the rust-demangler package, with its faults mended.

Left to itself it prints, raises all kinds of errors, keeps state in module globals and
follows back references without end; it loses what some of them name, has no words for
``for<'a>``, writes ``{closure:#0}`` and ignores whatever follows the name. What it would
get wrong is stopped on the way and read by tracelloc.demangle.rustv0 instead.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Final

from tracelloc.demangle import rustv0
from tracelloc.demangle.rustlex import UnreadableError

_MOST_PASSED: Final = 200_000
"""Letters that may be passed over all back references of one name."""

_HASH: Final = re.compile(r"::h[0-9a-f]{16}(?=$|\.)")
_SPECIAL: Final = re.compile(r"\{(\w+):#")

_lock: Final = threading.Lock()


class _UnsureError(BaseException):
    """The package is about to go wrong. It swallows any Exception."""


def read_legacy(name: str) -> str | None:
    """A name like ``_ZN3foo17h0123456789abcdefE``, without LLVM's suffix. None: unreadable."""
    try:
        text = str(_library()[0]().demangle(name))
    except Exception:  # noqa: BLE001 - it raises its own, IndexError, ValueError and more
        return None
    # It reads ".." only in front of a "$".
    return _HASH.sub("", text).replace("..", "::")


def read_v0(name: str) -> str | None:
    """A name like ``_RNvC3foo3bar``, without LLVM's suffix. None: unreadable."""
    try:
        with _lock:
            demangler = _library()[1]()
            text = str(demangler.demangle(name))
        rest = demangler.parser.inn[demangler.parser.next_val :]
        if rest[:1] in ("", ".") and "?" not in text and 'extern "' not in text:
            return _SPECIAL.sub(r"{\1#", text)
    except _UnsureError:
        pass
    except Exception:  # noqa: BLE001, S110 - its own, IndexError, RecursionError and more
        pass
    try:
        return rustv0.read(name)
    except (UnreadableError, RecursionError):
        return None


@functools.cache
def _library() -> tuple[Any, Any]:
    """Its reader of legacy names, and its class for v0 with our parts in it."""
    import rust_demangler.rust_legacy  # noqa: PLC0415 - most targets are not Rust
    import rust_demangler.rust_v0 as v0  # noqa: PLC0415

    v0.print = _print_nothing
    v0.Parser, v0.Printer, v0.Ident = _parser(v0), _printer(v0), _identifier(v0)
    return rust_demangler.rust_legacy.LegacyDemangler, v0.V0Demangler


def _print_nothing(*_arguments: object, **_options: object) -> None:
    pass


def _unsure(*_arguments: object) -> None:
    raise _UnsureError


def _parser(v0: Any) -> Any:
    base: Any = v0.Parser

    class Parser(base):  # type: ignore[misc]
        """Follows back references as long as that leads to an end."""

        passed: list[int] | None = None

        def backref(self) -> Any:
            parser = super().backref()
            passed = self.passed = self.passed or [0]
            passed[0] += len(self.inn)
            if passed[0] > _MOST_PASSED:
                raise _UnsureError
            parser.passed = passed
            return parser

    return Parser


def _printer(v0: Any) -> Any:
    base: Any = v0.Printer

    class Printer(base):  # type: ignore[misc]
        """Says so where the package's own would write something wrong."""

        invalid = print_lifetime_from_index = print_const_char = _unsure

        def _stands_at(self, tag: str) -> bool:
            return bool(self.parser.inn.startswith(tag, self.parser.next_val))

        def print_const(self) -> Any:
            return _unsure() if self._stands_at("B") else super().print_const()

        def print_path_maybe_open_generics(self) -> Any:
            if self._stands_at("B"):
                raise _UnsureError
            return super().print_path_maybe_open_generics()

    return Printer


def _identifier(v0: Any) -> Any:
    base: Any = v0.Ident

    class Ident(base):  # type: ignore[misc]
        """Leaves letters beyond ASCII to us."""

        def __init__(self, ascii_part: str, punycode: str) -> None:
            super().__init__(ascii_part, punycode)
            if punycode:
                raise _UnsureError

    return Ident
