"""Formats metrics as OpenMetrics 1.0.0, which Prometheus scrapes.

https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tracelloc.text import printable

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def family_lines(name: str, kind: str, unit: str, text: str) -> Iterator[str]:
    """Yields a metric's description. ``kind``: gauge or counter; ``unit`` may be empty."""
    yield f"# TYPE {name} {kind}"
    if unit:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {text}."


def label_text(labels: Mapping[str, str]) -> str:
    """Formats the labels of a series, in braces."""
    pairs = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def metrics_text(lines: Iterable[str]) -> str:
    """Returns the lines as a complete OpenMetrics text."""
    return "".join(f"{line}\n" for line in lines) + "# EOF\n"


def _escaped(value: str) -> str:
    return printable(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
