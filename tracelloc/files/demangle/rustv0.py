"""Rust's v0 symbol names, read by the grammar of the compiler's own description.

Source: https://doc.rust-lang.org/rustc/symbol-mangling/v0.html (RFC 2603), and the
extensions for structural constants and pattern types that rustc emits. Names are shown
as rustc's own tools show them: no crate hashes, no types behind integer constants.

The input is hostile: depth, work and output are bounded, since back references can make
a short name describe a text of any length.
"""

from __future__ import annotations

import re
from typing import Final

from tracelloc.files.demangle.rustlex import (
    HEX,
    Cursor,
    UnreadableError,
    boolean,
    character,
    integer,
    quoted,
)

_BASIC: Final = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8",
    "i": "isize", "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_",
    "s": "i16", "t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!",
}  # fmt: skip
_UNSIGNED: Final = frozenset("htmyoj")
_SIGNED: Final = frozenset("aslxni")
_NAMESPACES: Final = {"C": "closure", "S": "shim"}
_WHOLE: Final = re.compile(r"_{1,2}R([A-Z][A-Za-z0-9_]*)((?:\.[!-~]*)?)", re.ASCII)


def read(name: str) -> str:
    """The readable form of a v0 name, with any suffix (``.cold``) behind it.

    Raises UnreadableError.
    """
    whole = _WHOLE.fullmatch(name)
    if whole is None:
        raise UnreadableError
    reader = _Reader(whole[1])
    reader.path(in_value=True)
    if reader.at < len(whole[1]):  # the crate that asked for this instance; not shown
        reader.silent += 1
        reader.path(in_value=False)
    if reader.at < len(whole[1]):
        raise UnreadableError
    return "".join(reader.out) + whole[2]


class _Reader(Cursor):
    """One pass over a name: a method per rule of the grammar, each writes what it read."""

    # Paths.

    def path(self, *, in_value: bool) -> None:
        self.enter()
        tag = self.next()
        if tag == "C":
            self.optional62("s")
            self.write(self.identifier())
        elif tag == "N":
            self.nested(in_value=in_value)
        elif tag in "MXY":
            if tag != "Y":  # where the impl stands
                self.optional62("s")
                self.silent += 1
                self.path(in_value=False)
                self.silent -= 1
            self.write("<")
            self.type()
            if tag != "M":
                self.write(" as ")
                self.path(in_value=False)
            self.write(">")
        elif tag == "I":
            self.path(in_value=in_value)
            self.write("::<" if in_value else "<")
            self.arguments()
            self.write(">")
        elif tag == "B":
            back = self.go_back()
            if back is not None:
                self.path(in_value=in_value)
                self.at = back
        else:
            raise UnreadableError
        self.depth -= 1

    def nested(self, *, in_value: bool) -> None:
        space = self.next()
        if not space.isalpha():
            raise UnreadableError
        self.path(in_value=in_value)
        number = self.optional62("s")
        name = self.identifier()
        if space.isupper():
            self.write("::{" + _NAMESPACES.get(space, space))
            self.write(f":{name}#{number}}}" if name else f"#{number}}}")
        elif name:
            self.write("::" + name)

    def arguments(self) -> None:
        count = 0
        while not self.eat("E"):
            if count:
                self.write(", ")
            count += 1
            if self.eat("L"):
                self.lifetime(self.number62())
            elif self.eat("K"):
                self.constant(in_value=False)
            else:
                self.type()

    # Types.

    def lifetime(self, index: int) -> None:
        if index == 0:
            self.write("'_")
            return
        depth = self.lifetimes - index
        if depth < 0:
            if not self.silent:
                raise UnreadableError
            return
        self.write(f"'{chr(ord('a') + depth)}" if depth < 26 else f"'_{depth}")

    def binder(self) -> int:
        """``for<'a, 'b> ``; how many lifetimes it brings."""
        count = self.optional62("G")
        if self.lifetimes + count > 1000:
            raise UnreadableError
        for index in range(count):
            self.write(", " if index else "for<")
            self.lifetimes += 1
            self.lifetime(1)
        if count:
            self.write("> ")
        return count

    def types(self) -> int:
        count = 0
        while not self.eat("E"):
            if count:
                self.write(", ")
            count += 1
            self.type()
        return count

    def type(self) -> None:
        self.enter()
        tag = self.next()
        if tag in _BASIC:
            self.write(_BASIC[tag])
        elif tag in "RQ":
            self.write("&")
            index = self.number62() if self.eat("L") else 0
            if index:
                self.lifetime(index)
                self.write(" ")
            self.write("" if tag == "R" else "mut ")
            self.type()
        elif tag in "PO":
            self.write("*const " if tag == "P" else "*mut ")
            self.type()
        elif tag in "AS":
            self.write("[")
            self.type()
            if tag == "A":
                self.write("; ")
                self.constant(in_value=True)
            self.write("]")
        elif tag == "T":
            self.write("(")
            self.write(",)" if self.types() == 1 else ")")
        elif tag in "FD":
            (self.function if tag == "F" else self.dynamic)()
        elif tag == "W":
            self.type()
            self.write(" is ")
            self.pattern()
        elif tag == "B":
            back = self.go_back()
            if back is not None:
                self.type()
                self.at = back
        else:
            self.at -= 1
            self.path(in_value=False)
        self.depth -= 1

    def function(self) -> None:
        bound = self.binder()
        self.write("unsafe " if self.eat("U") else "")
        if self.eat("K"):
            abi = "C" if self.eat("C") else self.identifier().replace("_", "-")
            self.write(f'extern "{abi}" ')
        self.write("fn(")
        self.types()
        self.write(")")
        if not self.eat("u"):
            self.write(" -> ")
            self.type()
        self.lifetimes -= bound

    def dynamic(self) -> None:
        self.write("dyn ")
        bound = self.binder()
        count = 0
        while not self.eat("E"):
            if count:
                self.write(" + ")
            count += 1
            self.bound()
        self.lifetimes -= bound
        if not self.eat("L"):
            raise UnreadableError
        index = self.number62()
        if index:
            self.write(" + ")
            self.lifetime(index)

    def bound(self) -> None:
        """A trait with its generics and its associated types in one pair of brackets."""
        is_open = self.open_path()
        while self.eat("p"):
            self.write(", " if is_open else "<")
            is_open = True
            self.write(self.identifier() + " = ")
            self.type()
        if is_open:
            self.write(">")

    def open_path(self) -> bool:
        """A path whose closing bracket is left to the caller. Whether there is one."""
        self.enter()
        is_open = False
        if self.eat("B"):
            back = self.go_back()
            if back is not None:
                is_open = self.open_path()
                self.at = back
        elif self.eat("I"):
            self.path(in_value=False)
            self.write("<")
            self.arguments()
            is_open = True
        else:
            self.path(in_value=False)
        self.depth -= 1
        return is_open

    def pattern(self) -> None:
        self.enter()
        tag = self.next()
        if tag == "R":
            self.constant(in_value=False)
            self.write("..=")
            self.constant(in_value=False)
        elif tag == "N":
            self.write("!null")
        elif tag == "O":
            self.pattern()
            while not self.eat("E"):
                self.write(" | ")
                self.pattern()
        else:
            raise UnreadableError
        self.depth -= 1

    # Constants.

    def constant(self, *, in_value: bool) -> None:
        self.enter()
        tag = self.next()
        if tag == "p":
            self.write("_")
        elif tag in _UNSIGNED or tag in _SIGNED:
            self.write("-" if tag in _SIGNED and self.eat("n") else "")
            self.write(integer(self.match(HEX)))
        elif tag == "b":
            self.write(boolean(self.match(HEX)))
        elif tag == "c":
            self.write(quoted(character(self.match(HEX)), "'"))
        elif tag == "R" and self.eat("e"):
            self.string()
        elif tag == "B":
            back = self.go_back()
            if back is not None:
                self.constant(in_value=in_value)
                self.at = back
        elif tag in "eRQATV":
            self.write("" if in_value else "{")
            self.structure(tag)
            self.write("" if in_value else "}")
        else:
            raise UnreadableError
        self.depth -= 1

    def string(self) -> None:
        digits = self.match(HEX)
        try:
            self.write(quoted(bytes.fromhex(digits).decode(), '"'))
        except ValueError:
            raise UnreadableError from None

    def structure(self, tag: str) -> None:
        if tag == "e":
            self.write("*")
            self.string()
        elif tag in "RQ":
            self.write("&" if tag == "R" else "&mut ")
            self.constant(in_value=True)
        elif tag == "A":
            self.write("[")
            self.constants()
            self.write("]")
        elif tag == "T":
            self.write("(")
            self.write(",)" if self.constants() == 1 else ")")
        else:
            self.path(in_value=True)
            self.fields()

    def constants(self) -> int:
        count = 0
        while not self.eat("E"):
            if count:
                self.write(", ")
            count += 1
            self.constant(in_value=True)
        return count

    def fields(self) -> None:
        kind = self.next()
        if kind == "T":
            self.write("(")
            self.constants()
            self.write(")")
        elif kind == "S":
            count = 0
            self.write(" { ")
            while not self.eat("E"):
                self.write(", " if count else "")
                count += 1
                self.optional62("s")
                self.write(self.identifier() + ": ")
                self.constant(in_value=True)
            self.write(" }")
        elif kind != "U":
            raise UnreadableError
