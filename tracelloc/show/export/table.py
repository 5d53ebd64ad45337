"""A flat table of stacks, one row each, largest first: CSV (RFC 4180), or Parquet.

Each row names its machine, pod and process, so that the files of many traces are one table. A
difference has additional columns for the earlier figures. Parquet is written by pyarrow.
"""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final

from tracelloc.errors import UsageError
from tracelloc.show.export.listings import fold
from tracelloc.show.presentation.calltree import shown_frames
from tracelloc.show.presentation.profile import FIGURES, Metric, Profile, Sample, figures_of
from tracelloc.text import printable

_PLACE: Final = ("stack_id", "verdict", "function", "module", "file", "line", "stack")
_OWNER: Final = ("host", "namespace", "pod", "container", "pid", "command", "executable", "time")
_NUMBERS: Final = {"stack_id", "line", "pid"}  # Columns beside the figures
_ROWS_PER_PIECE: Final = 256


def write_csv(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - it has all
    """Yields a CSV file. Cells that spreadsheets would take for formulas begin with a quote."""
    rows: list[tuple[object, ...]] = [_columns(profile)]
    for row in _rows(profile):
        rows.append(tuple(_cell(value) for value in row))
        if len(rows) >= _ROWS_PER_PIECE:
            yield _text(rows)
            rows.clear()
    yield _text(rows)


def write_parquet(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - it has all
    """Yields a Parquet file with the columns of CSV. Raises UsageError without pyarrow."""
    arrow, parquet = check_parquet()
    names = _columns(profile)
    columns = list(zip(*_rows(profile), strict=True)) or [()] * len(names)
    figures = set(names) - {*_PLACE, *_OWNER} | _NUMBERS
    kinds = [
        arrow.int64() if name in figures
        else arrow.timestamp("ms", "UTC") if name == "time"
        else arrow.string()
        for name in names
    ]  # fmt: skip
    arrays = [arrow.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    out = io.BytesIO()
    parquet.write_table(arrow.table(arrays, names), out, compression="zstd")
    yield out.getvalue()


def check_parquet() -> tuple[Any, Any]:
    """Returns pyarrow and its module for Parquet. Raises UsageError if there is none."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        hint = "pip install 'tracelloc[parquet]', or write .csv, which has the same columns"
        raise UsageError(".parquet needs the Python package pyarrow", hint=hint) from error


def _columns(profile: Profile) -> tuple[str, ...]:
    names = [figure.name for figure in FIGURES]
    earlier = [f"{name}_before" for name in names] if profile.is_difference else []
    return (*names, *earlier, *_PLACE, *_OWNER)


def _rows(profile: Profile) -> Iterator[tuple[object, ...]]:
    owned = [(_owner(part), part.samples) for part in profile.parts or [profile]]
    pairs = [(sample, owner) for owner, samples in owned for sample in samples]
    pairs.sort(key=lambda pair: -pair[0].stat.live_bytes)
    for sample, owner in pairs:
        row = (*_row(sample), *owner)
        yield tuple(printable(value) if isinstance(value, str) else value for value in row)


def _row(sample: Sample) -> tuple[object, ...]:
    figures = tuple(figures_of(sample.stat).values())
    if sample.before is not None:
        figures += tuple(figures_of(sample.before).values())
    name, frame = next(shown_frames(sample.stack), ("", None))
    place = (None, None, None) if frame is None else (frame.module, frame.file, frame.line)
    stack = fold(sample.stack, sample.stat.index)
    return (*figures, sample.stat.index, sample.verdict, name or None, *place, stack)


def _owner(profile: Profile) -> tuple[object, ...]:
    of = profile.target
    texts = [of.host, of.namespace, of.pod, of.container, of.pid, of.command, of.executable]
    return (*(text or None for text in texts), datetime.fromtimestamp(profile.time_s, UTC))


def _cell(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if not isinstance(value, str):
        return "" if value is None else value
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value


def _text(rows: list[tuple[object, ...]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode()
