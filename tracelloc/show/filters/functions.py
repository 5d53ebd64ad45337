"""Function names within demangled symbols, without the types around them."""

from __future__ import annotations

import re
from typing import Final

LONGEST_SCAN: Final = 16 << 10
"""Characters of a name that are scanned, as the target controls its length."""

_BRACKET: Final = re.compile(r"->|\boperator\b|\(anonymous namespace\)|[<>(){}\[\] ]")
_SCOPE: Final = re.compile(r"(?:\[abi:\w+\])*(?: const)?(?: volatile)?(?: &&?)?::")
_CLOSES: Final = {">": "<", ")": "(", "}": "{", "]": "["}


def function_name(symbol: str) -> str:
    """Removes the return type that C++ demanglers write before the names of templates.

    ``void* shop::apply<int>(int)`` becomes ``shop::apply<int>(int)``: rules match the name of a
    function, not its return type. Rust's and plain names are unchanged.
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
                # These were the parameters: the name began before them.
                return symbol[start:]
            # The name of a local function or lambda continues after that of its outer function.
            skip = scope.end()
        elif not open_:
            if text == "operator":
                return symbol[start:]
            if text == " " and end > skip:
                start = end
    return symbol if open_ else symbol[start:]


def trait_name(symbol: str) -> str | None:
    """Returns TRAIT of Rust's ``<TYPE as TRAIT>::function``, or None."""
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
