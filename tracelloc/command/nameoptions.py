"""The options on how frames are named, and which of them are hidden."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_names(parser: argparse.ArgumentParser) -> None:
    """Adds the group to a parser."""
    add = parser.add_argument_group("names and noise").add_argument
    add(
        "--filters",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file with more rules on which frames to hide; can be given several times, "
        "the last matching rule decides",
    )
    add(
        "--filter-group",
        type=_switch,
        action="append",
        default=[],
        metavar="NAME=on|off",
        help="switch a group of rules, such as tokio or qt; can be given several times",
    )
    add(
        "--no-filters",
        action="store_true",
        help="show every frame that no --filters FILE hides",
    )
    add(
        "--sources",
        type=_directories,
        action="append",
        default=[],
        metavar="DIR=DIR",
        help="where source files lie now, if not where they were compiled (first DIR: as "
        "compiled); can be given several times",
    )
    add(
        "--short-names",
        action="store_true",
        help="leave template arguments and parameters out of function names",
    )


def _switch(text: str) -> tuple[str, bool]:
    name, _, switch = text.rpartition("=")
    if not name or switch not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=on or NAME=off")
    return name, switch == "on"


def _directories(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not DIR=DIR")
    return old, new
