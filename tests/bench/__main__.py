"""Measures tracelloc's cost beside its peers', in one run.

Usage: python -m tests.bench [--seconds S] [--rounds N] [--only NAMES] [--json FILE]

Needs root, and what ``tests/bench/peers.sh`` installs; what is missing is left out.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.run import PARTS, TOOL_NAMES, Bench, Plan, as_json
from tests.bench.tables import text
from tests.harness import Builder


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
    add("--json", type=Path, metavar="FILE", help="also write all figures there")
    options = parser.parse_args()
    if options.seconds <= 0 or options.rounds < 1:
        parser.error("--seconds and --rounds must be positive")
    return options


def main() -> None:
    """The command. Its status is 1 if a part, or tracelloc itself, could not be measured."""
    options = _options()
    plan = Plan(
        seconds=options.seconds,
        rounds=options.rounds,
        parts=[name for name in PARTS if name in options.only] or list(PARTS),
        tools=[name for name in TOOL_NAMES if name in options.only] or list(TOOL_NAMES),
    )
    began_s = time.monotonic()

    def say(line: str) -> None:
        elapsed_s = time.monotonic() - began_s
        print(f"[{elapsed_s:4.0f} s] {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        results = Bench(plan, Builder(scratch).c("storm", "-O2"), scratch, say).run()
    print(text(results), end="")
    if options.json:
        options.json.write_text(json.dumps(as_json(results), indent=2) + "\n")
    sys.exit(any(name in (*PARTS, "tracelloc") for name in results.skipped))


if __name__ == "__main__":
    main()
