"""A table of stacks (RFC 4180): one row per stack, the largest first, a header row above."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Final

from tracelloc.export.folded import fold
from tracelloc.text import printable
from tracelloc.views.calltree import shown_frames
from tracelloc.views.profile import FIGURES, Metric, Profile, Sample, figures_of

PLACE: Final = ("stack_id", "verdict", "function", "module", "file", "line", "stack")
_PIECE: Final = 256
"""Rows per piece."""


def write(profile: Profile, metric: Metric) -> Iterator[bytes]:  # noqa: ARG001 - it has all
    """The file; of a difference with the earlier figures in columns of their own."""
    names = [figure.name for figure in FIGURES]
    earlier = tuple(f"{name}_before" for name in names) if profile.is_difference else ()
    rows: list[tuple[object, ...]] = [(*names, *earlier, *PLACE)]
    for sample in profile.samples:
        rows.append(_row(sample))
        if len(rows) >= _PIECE:
            yield _text(rows)
            rows.clear()
    yield _text(rows)


def _row(sample: Sample) -> tuple[object, ...]:
    figures = tuple(figures_of(sample.stat).values())
    if sample.before is not None:
        figures += tuple(figures_of(sample.before).values())
    name, frame = next(shown_frames(sample.stack), ("", None))
    file: tuple[object, ...] = ("", "", "")
    if frame is not None:
        file = (
            _cell(frame.module or ""),
            _cell(frame.file or ""),
            "" if frame.line is None else frame.line,
        )
    stack = _cell(fold(sample.stack, sample.stat.index))
    return (*figures, sample.stat.index, sample.verdict or "", _cell(name), *file, stack)


def _cell(text: str) -> str:
    """Spreadsheets take text that begins like this for a formula; a quote says it is none."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _text(rows: list[tuple[object, ...]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode()
