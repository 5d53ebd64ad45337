"""Boots Debian's kernels in QEMU and runs the demo and the selected tests in each.

Usage: python -m tests.kernels [--list] [--out DIRECTORY] [WORD...]

WORD chooses rows by what their names contain. Those of 64-bit Arm run only if a word says so
(arm64, arm64-16k, or library: what needs no BPF there), since they would double the hours. Prints a
line for each test as it ends, and a table at the end; each row's output, console and results are
kept in the directory. Exit status 1 if anything failed. Emulated machines are 10 to 20 times slower
than this one.
"""

import argparse
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROW_LIMIT_S = 5400  # How long a row may take, in seconds
BOOTS = 3  # How often a machine is booted that does not get that far


@dataclass(frozen=True)
class Row:
    """One kernel, how it preempts, and the distribution's release around it."""

    package: str  # Package and suite
    preempt: str = ""  # The kernel's parameter; empty: its own default
    userland: str = "bookworm"
    part: str = ""  # "library": tests of what needs no BPF

    @property
    def is_arm(self) -> bool:
        return "arm64" in self.package

    @property
    def selection(self) -> str:
        """The list of tests that are run."""
        words = ["selection", "arm64" * self.is_arm, self.part]
        return f"tests/kernels/{'-'.join(filter(None, words))}.txt"

    @property
    def name(self) -> str:
        package = self.package.removeprefix("linux-image-").replace("-amd64", "")
        return " ".join(word for word in (package, self.preempt, self.userland, self.part) if word)


ROWS = (
    Row("linux-image-cloud-amd64/bookworm"),
    Row("linux-image-rt-amd64/bookworm"),
    Row("linux-image-cloud-amd64/trixie", "full", "trixie"),
    Row("linux-image-rt-amd64/trixie", userland="trixie"),
    Row("linux-image-6.18.15+deb13-cloud-amd64/trixie-backports", "none"),
    Row("linux-image-6.18.15+deb13-cloud-amd64/trixie-backports", "full"),
    Row("linux-image-cloud-amd64/trixie-backports", "lazy", "trixie"),
    Row("linux-image-cloud-amd64/trixie-backports", "full"),
    Row("linux-image-rt-amd64/trixie-backports"),
    Row("linux-image-cloud-amd64/sid", userland="trixie"),
    Row("linux-image-cloud-arm64/trixie", userland="trixie"),
    Row("linux-image-arm64-16k/trixie", userland="trixie"),
    Row("linux-image-cloud-arm64/sid", userland="trixie"),
    Row("linux-image-cloud-arm64/trixie", userland="trixie", part="library"),
    Row("linux-image-arm64-16k/trixie", userland="trixie", part="library"),
)


@dataclass
class Result:
    """What a row came to."""

    row: Row
    kernel: str = "?"
    preemption: str = "?"
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    outcome: str = ""
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.outcome == "exact"


def run(row: Row, directory: Path) -> Result:
    """Runs a row; ``directory`` gets what it leaves.

    QEMU's emulation crashes some kernels now and then while they boot, before there is
    anything of ours: they are booted again.
    """
    for _ in range(BOOTS):
        result = run_once(row, directory)
        if result.kernel != "?":
            break
        print(f"  never booted: {result.outcome}", flush=True)
    return result


def run_once(row: Row, directory: Path) -> Result:
    """Boots a row's machine once.

    What it compiles of the probes does not depend on the kernel: rows with the same userland and
    machine use what earlier ones have left beside ``directory``.
    """
    machine = "arm64-" if row.is_arm else ""
    cache = directory.parent / f"probes-{machine}{row.userland}.tar"
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    environment = os.environ | {
        "LAB_OUT": str(directory),
        "LAB_USERLAND": row.userland,
        "LAB_TIMEOUT": str(ROW_LIMIT_S),
        "LAB_APPEND": f"preempt={row.preempt}" if row.preempt else "",
        "LAB_CACHE": str(cache),
    }
    start = time.monotonic()
    kernel = "?"
    with (directory / "output.txt").open("w") as log:
        guest = subprocess.Popen(
            [str(HERE / "guest.sh"), row.package, "tests/kernels/inside.sh", row.selection],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        for line in guest.stdout:
            log.write(line)
            log.flush()
            booted = re.match(r"running on (\S+)", line)
            if booted is not None:
                kernel = booted[1]
            test = re.search(r"(PASSED|FAILED|ERROR|SKIPPED) .*/(\S+::.*)", line)
            if test is not None:
                took_s = time.monotonic() - start
                print(f"  {took_s:5.0f} s  {test[1].lower():7} {test[2]}", flush=True)
        status = guest.wait()
    if (directory / "cache.tar").exists():
        (directory / "cache.tar").replace(cache)
    result = Result(row, kernel, took_s=time.monotonic() - start)
    read(result, directory, status)
    return result


def read(result: Result, directory: Path, status: int) -> None:
    """Fills in what a row has left behind."""

    def text(name: str) -> str:
        path = directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    result.preemption = text("preemption").strip() or "?"
    console = text(".console") + text(".dmesg")
    if (directory / "tests.xml").exists():
        failed = []
        for case in ET.parse(directory / "tests.xml").iter("testcase"):
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failed.append(f"{case.get('classname', '').split('.')[-1]}::{case.get('name')}")
            elif "skipped" in kinds:
                result.skipped += 1
            else:
                result.passed += 1
        result.failed = tuple(failed)
    trouble = re.search(r"(Oops: .*|BUG: .*|WARNING: CPU.*|RIP: .*)", console)
    if trouble is not None:
        result.outcome = trouble[1].strip()
    elif status == 125:
        result.outcome = "never came to its end"
    elif not result.row.part and "status 0" not in text("demo.txt"):
        result.outcome = "the demo failed"
    elif not result.passed and not result.failed:
        result.outcome = f"NO TEST RAN (exit status {status}, see output.txt)"
    elif result.failed or status:
        result.outcome = f"{len(result.failed)} failed, exit status {status}"
    else:
        result.outcome = "exact"


def table(results: Iterable[Result]) -> str:
    """In Markdown, as the manual has it (troubleshooting)."""
    lines = ["| kernel | preemption | userland | tests | result |", "|---|---|---|---|---|"]
    for result in results:
        tests = f"{result.passed} passed"
        if result.skipped:
            tests += f", {result.skipped} skipped"
        lines.append(
            f"| {result.kernel} | {result.preemption} | {result.row.userland} | {tests} "
            f"| {result.outcome} |"
        )
    return "\n".join(lines)


def chosen(words: Iterable[str]) -> list[Row]:
    """Rows whose names contain all of these. Exits with their names if there is none."""
    rows = [row for row in ROWS if all(word in row.name for word in words)]
    if not any("arm64" in word or word == "library" for word in words):
        rows = [row for row in rows if not row.is_arm]
    if not rows:
        names = "\n  ".join(row.name for row in ROWS)
        sys.exit(f"no kernel's name contains {' and '.join(words)}; there are\n  {names}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--list", action="store_true", help="show the rows' names")
    parser.add_argument("--out", type=Path, default=Path("/tmp/tracelloc-kernels"))
    options = parser.parse_args(arguments)
    rows = chosen(options.words) if options.words or not options.list else list(ROWS)
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    results = []
    for number, row in enumerate(rows, 1):
        print(f"[{number} of {len(rows)}] {row.name}", flush=True)
        result = run(row, options.out / re.sub(r"[^\w.]+", "-", row.name))
        results.append(result)
        print(f"  {result.outcome}, {result.took_s / 60:.0f} minutes", flush=True)
        for name in result.failed:
            print(f"  failed: {name}", flush=True)
    print(table(results))
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
