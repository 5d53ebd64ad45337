"""Tables whose columns text, JSON and the screen share, and records as JSON fields.

A table's columns are defined once. Reports write them with ``table_lines``, JSON has the same
values with ``table_json``, and the screen draws them with ``ui.tableview.sorted_rows``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from tracelloc.dataclass import dataclass, fields, is_dataclass
from tracelloc.model.blocks import BlockSum
from tracelloc.model.process import Target
from tracelloc.text import format_size, format_time, printable

R = TypeVar("R")


def headline(time_s: float, target: Target, text: str) -> str:
    """Formats the first line of a report on a process that is not traced. Seconds since 1970."""
    return f"==> {format_time(time_s)} {printable(target.command)} ({target.pid}): {text}"


def json_line(time_s: float, target: Target, facts: Mapping[str, Any]) -> str:
    """Returns a report on a process that is not traced as one line of JSON."""
    entry = {"time": time_s, "pid": target.pid, "command": target.command, **facts}
    return json.dumps(entry, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column of a table with rows of type ``R``."""

    key: str  # Name in JSON, and on the screen in settings
    title: str  # Title above the column
    width: int = 0  # In cells; 0: all that other columns leave
    value: Callable[[R], Any] = str  # Returns a row's value: for JSON, and to sort rows
    write: Callable[[Any], Any] = str  # Formats the value; for the screen alone, it may add styles
    # Formats a row, in place of `write`, if the value alone does not suffice.
    draw: Callable[[R], Any] | None = None
    left: bool = False  # Whether cells are left-aligned; without a width they always are
    from_width: int = 0  # Least width of the screen's table, in cells, at which the column is shown
    wide: int = 0  # Width in a wide table of the screen; 0: `width`
    sorts: bool = True  # Whether the user can sort by the column
    descending: bool = True  # The order when the user first sorts by the column

    @property
    def right(self) -> bool:
        return self.width > 0 and not self.left

    def cell(self, row: R) -> Any:
        return self.write(self.value(row)) if self.draw is None else self.draw(row)


Columns = Sequence[Column[R]]


def size_with(about: str) -> Callable[[int], str]:
    """Returns a function that formats sizes. ``about``: the mark of estimates."""
    return lambda size_bytes: about + format_size(size_bytes)


def count_with(about: str) -> Callable[[int], str]:
    """Returns a function that formats counts. ``about``: the mark of estimates."""
    return lambda count: f"{about}{count:,}"


def or_blank(write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that formats 0 as nothing, and other values as ``write``."""
    return lambda value: write(value) if value else ""


def table_lines(
    columns: Columns[R], rows: Iterable[R], more: int = 0, below: Callable[[R], str] = lambda _: ""
) -> Iterator[str]:
    """Yields a header and a line per row; ``more``: omitted rows; ``below``: further lines."""
    cells = [f"{column.title:>{column.width}}" for column in columns]
    yield _line(cells)
    for row in rows:
        yield row_line(columns, row)
        if text := below(row):
            yield text
    if more > 0:
        yield _line([*(" " * column.width for column in columns[:-1]), f"and {more:,} more"])


def row_line(columns: Columns[R], row: R) -> str:
    """Formats one row of a table."""
    return _line([f"{column.cell(row):>{column.width}}" for column in columns])


def _line(cells: Sequence[str]) -> str:
    return f"{' '.join(cells[:-1])}  {cells[-1]}".rstrip()


def sum_columns(title: str, *more: Column[Any]) -> Columns[Any]:
    """Returns columns for tuples that begin with a ``BlockSum`` and end with a text."""
    return (
        Column("bytes", "bytes", 10, lambda row: row[0].size_bytes, format_size),
        Column("blocks", "blocks", 12, lambda row: row[0].count, count_with("")),
        *more,
        Column("name", title, 0, lambda row: row[-1]),
    )


def table_json(columns: Columns[R], rows: Sequence[R]) -> list[dict[str, Any]]:
    """Returns a table's rows as JSON values."""
    return [{column.key: column.value(row) for column in columns} for row in rows]


_NAMES: Final = {"class_name": "class"}


def json_of(record: Any, names: Mapping[str, str | None] = _NAMES) -> dict[str, Any]:
    """Returns a dataclass's fields as JSON values, nested dataclasses included.

    A sum of blocks becomes two fields: ``in_use_blocks``, ``in_use_bytes``. ``names``: fields
    that have another name in JSON; None leaves one out.
    """
    found: dict[str, Any] = {}
    for field in fields(record):
        name, value = names.get(field.name, field.name), getattr(record, field.name)
        if name is None:
            continue
        if isinstance(value, BlockSum):
            prefix = "" if name == "blocks" else f"{name}_"
            found |= {f"{prefix}blocks": value.count, f"{prefix}bytes": value.size_bytes}
        else:
            found[name] = _json_value(value, names)
    return found


def _json_value(value: Any, names: Mapping[str, str | None]) -> Any:
    if is_dataclass(value):
        return json_of(value, names)
    if isinstance(value, tuple):
        return [_json_value(each, names) for each in value]
    if isinstance(value, Enum):
        return value.value
    return value.hex() if isinstance(value, bytes) else value
