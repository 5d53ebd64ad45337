"""Where in a TOML text its statements are: tomllib tells values, but not their lines.

The text must have been read by tomllib before, so strings and brackets are known to end
and a small scanner suffices (https://toml.io/en/v1.0.0). Keys are read by tomllib too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Final

# Comments and strings hide brackets and line ends. A multi-line string may end in up to
# five quotes, of which the first two are its own.
_TOKEN: Final = re.compile(
    r'#[^\n]*|"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}'
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|[\[\]{}=\n]',
    re.DOTALL,
)

Path = tuple[str, ...]


class Lines:
    """Line numbers, from 1, of the statements of a text that tomllib could read."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._tables: dict[str, list[dict[Path, int]]] = {}
        table: Path = ()
        entry: dict[Path, int] | None = None
        for line, header, path in _statements(text):
            if header == "[[" and len(path) == 1:
                table, entry = path, {(): line}
                self._tables.setdefault(path[0], []).append(entry)
                self._lines.setdefault(path, line)
            elif header:
                table, entry = path, None
                self._lines.setdefault(path, line)
            elif entry is not None:
                entry.setdefault(path[:1], line)
            else:
                for end in range(len(table), len(table + path)):
                    self._lines.setdefault((table + path)[: end + 1], line)

    def of(self, *path: str) -> int:
        """The line that first names this key, or the closest one that holds it; else 1."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return self._lines[path[:end]]
        return 1

    def of_entry(self, table: str, index: int, key: str = "") -> int:
        """The line of a key of the ``[[table]]`` with this index, or that table's own."""
        entries = self._tables.get(table, [])
        if index >= len(entries):
            return self.of(table)
        return entries[index].get((key,), entries[index][()])


def _statements(text: str) -> Iterator[tuple[int, str, Path]]:
    """Line, ``[[``, ``[`` or nothing, and the key of each header and each assignment."""
    text = text.replace("\r\n", "\n") + "\n"
    start, equals, depth, line, first = 0, -1, 0, 1, 1
    for token in _TOKEN.finditer(text):
        kind = token[0]
        if kind == "\n" and depth == 0:
            statement = text[start : token.start()].strip()
            if equals >= 0:
                yield first, "", _keys(text[start:equals] + "= 0")
            elif statement.startswith("["):
                header = "[[" if statement.startswith("[[") else "["
                yield first, header, _keys(statement)
            start, equals, first = token.end(), -1, line + 1
        elif kind == "=" and equals < 0:
            equals = token.start()
        elif kind in "[{":
            depth += 1
        elif kind in "]}":
            depth -= 1
        line += kind.count("\n")


def _keys(statement: str) -> Path:
    path: list[str] = []
    found: object = tomllib.loads(statement)
    while found and isinstance(found, dict | list):
        if isinstance(found, list):
            found = found[0]
        else:
            key, found = next(iter(found.items()))
            path.append(key)
    return tuple(path)
