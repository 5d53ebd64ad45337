"""What a demangled name calls a function, apart from types around it."""

from __future__ import annotations

import re
from typing import Final

LONGEST_SCAN: Final = 16 << 10
"""Characters of a name that are looked at: names are the target's."""

_BRACKET: Final = re.compile(r"->|\boperator\b|\(anonymous namespace\)|[<>(){}\[\] ]")
_SCOPE: Final = re.compile(r"(?:\[abi:\w+\])*(?: const)?(?: volatile)?(?: &&?)?::")
_CLOSES: Final = {">": "<", ")": "(", "}": "{", "]": "["}


def function_name(symbol: str) -> str:
    """The symbol without the return type that C++ demanglers write before templates' names.

    ``void* shop::apply<int>(int)`` becomes ``shop::apply<int>(int)``: rules look at what a
    function is called, not at what it returns. Rust's and plain names stay as they are.
    """
    if " " not in symbol:
        return symbol
    start = skip = 0
    open_: list[str] = []
    of_type = False
    for token in _BRACKET.finditer(symbol, 0, LONGEST_SCAN):
        text, end = token[0], token.end()
        if text in "<({[":
            if not open_:
                of_type = symbol.endswith(("decltype", "decltype "), 0, token.start())
            open_.append(text)
        elif text in _CLOSES:
            if open_ and open_[-1] == _CLOSES[text]:
                open_.pop()
            if text != ")" or open_ or of_type:
                continue
            scope = _SCOPE.match(symbol, end)
            if scope is None:
                # These were the parameters: whatever follows, the name began before.
                return symbol[start:]
            # A local function's or lambda's name goes on after its outer function's.
            skip = scope.end()
        elif not open_:
            if text == "operator":
                return symbol[start:]
            if text == " " and end > skip:
                start = end
    return symbol if open_ else symbol[start:]


def trait_name(symbol: str) -> str | None:
    """TRAIT of Rust's ``<TYPE as TRAIT>::function``, or None."""
    if not symbol.startswith("<") or " as " not in symbol:
        return None
    start = -1
    open_: list[str] = []
    for token in _BRACKET.finditer(symbol, 0, LONGEST_SCAN):
        text = token[0]
        if text in "<({[":
            open_.append(text)
        elif text in _CLOSES:
            if open_ and open_[-1] == _CLOSES[text]:
                open_.pop()
            if not open_:
                return symbol[start : token.start()] if start >= 0 else None
        elif (
            text == " " and start < 0 and len(open_) == 1 and symbol.startswith("as ", token.end())
        ):
            start = token.end() + 3
    return None
