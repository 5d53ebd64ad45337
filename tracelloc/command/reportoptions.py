"""The part of the command line that says what reports hold and when they are made."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tracelloc.command.argumenttypes import (
    argument_type,
    count_type,
    duration_type,
    positive_type,
    soon_type,
)
from tracelloc.heap.temporary import MOST_BETWEEN, SOON
from tracelloc.report.sections import SECTIONS, parse_sections


def add_reports(parser: argparse.ArgumentParser) -> None:
    """``--tui``, ``--text``, ``--json`` and what reports hold and when they are made."""
    group = parser.add_argument_group("reports")
    views = group.add_mutually_exclusive_group()
    views.add_argument(
        "--tui",
        action="store_true",
        help="a screen that takes keys (default on a terminal, unless --count is given)",
    )
    views.add_argument(
        "--text", action="store_true", help="text reports on standard output (default elsewhere)"
    )
    views.add_argument(
        "--json", action="store_true", help="JSON instead: one object per report, on one line"
    )
    add = group.add_argument
    add(
        "--report",
        type=Path,
        metavar="FILE",
        help="write reports to FILE (default: standard output; with -- CMD, whose output that "
        "is, standard error)",
    )
    add("--top", type=count_type, default=2, metavar="N", help="entries per section (default 2)")
    sections = "; ".join(f"{name}: {section.about}" for name, section in SECTIONS.items())
    add(
        "--show",
        type=argument_type(parse_sections),
        default=frozenset(),
        metavar="LIST",
        help=f"sections to add, separated by commas, or all ({sections})",
    )
    add(
        "--temporary",
        type=soon_type,
        default=SOON,
        metavar="SOON",
        help="which allocations are temporary: those that the same thread frees before it has "
        f"made more than this many others (0 to {MOST_BETWEEN}, default {SOON.between}), or "
        "within a time such as 20ms",
    )
    _add_times(add)


def _add_times(add: Callable[..., object]) -> None:
    add(
        "--age",
        type=duration_type,
        metavar="AGE",
        help="add a section of the largest allocations at least this old",
    )
    add(
        "--interval",
        type=duration_type,
        default=1.0,
        metavar="S",
        help="time between reports (default 1s)",
    )
    add("--count", type=positive_type, metavar="N", help="end after N reports")
    add(
        "--duration",
        type=duration_type,
        metavar="S",
        help="end after this time (default: when the process ends, or Ctrl-C)",
    )
