"""Measures tracelloc's cost beside its peers', in one run.

Usage: python -m tests.bench [--seconds S] [--rounds N] [--only NAMES]

Needs root, and what ``tests/bench/peers.sh`` installs; what is missing is left out.
"""

import argparse
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

from tests.bench import following, start, storm, workloads
from tests.bench.frame import TROUBLE, Bench
from tests.bench.tools import TOOLS

PARTS = {
    "start": start.tables, "storm": storm.tables, "follow": following.tables,
    **{name: partial(workloads.tables, name) for name in workloads.NAMES},
}  # fmt: skip
TOOL_NAMES = tuple(tool.name for tool in TOOLS)


def _names(value: str) -> list[str]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*PARTS, *TOOL_NAMES)]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown: {', '.join(unknown)}; parts are {', '.join(PARTS)}; "
            f"tools are {', '.join(TOOL_NAMES)}"
        )
    return names


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=1.5, help="per measurement (1.5)")
    add("--rounds", type=int, default=3, help="measurements of everything (3)")
    add("--only", type=_names, default=[], metavar="NAMES",
        help=f"comma-separated parts ({', '.join(PARTS)}) and tools ({', '.join(TOOL_NAMES)}); "
        "all parts if none is named, all tools if none is")  # fmt: skip
    options = parser.parse_args()
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds and --rounds must be positive")
    return options


def main() -> None:
    """The command. Its status is 1 if a part, or tracelloc itself, could not be measured."""
    options = _options()
    tools = [tool for tool in TOOLS if tool.name in options.only] or list(TOOLS)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        bench = Bench(options.seconds, options.rounds, [], Path(name))
        for tool in tools:
            if reason := tool.why_missing():
                bench.skip(tool.name, reason)
        bench.tools = [tool for tool in tools if tool.name not in bench.skipped]
        for part in [name for name in PARTS if name in options.only] or PARTS:
            try:
                print(*PARTS[part](bench), sep="\n", flush=True)
            except TROUBLE as reason:
                bench.skip(part, reason)
    for what, reason in bench.skipped.items():
        print(textwrap.shorten(f"skipped: {what}: {reason}", 300))
    sys.exit(any(what in PARTS or what.startswith("tracelloc on ") for what in bench.skipped))


if __name__ == "__main__":
    main()
