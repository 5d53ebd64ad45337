"""How soon are leaks of running Python programs found, and are innocent programs suspected?

Each program of ``tests/targets/pyleaks.py`` is attached to by the command as anybody would, without
options that matter, and its JSON reports are read for a row of a leak suspect that says what leaks
and who keeps it, or in which function and line it is allocated. ``python -m tests.bench.pythonleaks
[PYTHON ...]`` prints a table.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness import TARGETS, Target, tracelloc_command

LIMIT_S: Final = 60.0
AT_ONCE: Final = 3  # Programs that are traced at a time: more would wait for each other
_REPORTS: Final = "--json", "--interval", "2s", "--top", "5", "--duration"

Report = dict[str, Any]
Names = Callable[[Report], Iterator[str]]


def by_type(name: str, path: str) -> Names:
    """Rows of a type whose holder's path has this."""

    def names(report: Report) -> Iterator[str]:
        for row in report["type_suspects"]:
            kinds = {row["type"], *(part["type"] for part in row["parts"])}
            for holder in row["holders"][:1]:
                if name in kinds and path in holder["path"]:
                    yield f"{row['type']} ← {holder['path']}"

    return names


def by_stack(function: str, line_of: str) -> Names:
    """Rows of stacks with this function, and a line of Python in this one.

    Those of top allocators count as well: verdicts on stacks begin after a minute.
    """

    def names(report: Report) -> Iterator[str]:
        for row in (*report["suspects"], *report["top_allocators"][:1]):
            frames = row.get("stack", ())
            if any(frame.get("symbol") == function for frame in frames):
                for frame in frames:
                    if frame.get("symbol") == line_of and frame.get("line"):
                        place = f"{Path(frame['file']).name}:{frame['line']}"
                        verdict = row.get("verdict") or "top allocator"
                        yield f"{function} ← {line_of} ({place}), {verdict}"

    return names


# Leaks by the function of the program, and what names them.
LEAKS: Final[dict[str, Names]] = {
    "in_function": by_type("dict", "in_function() handled[…]"),
    "in_cache": by_type("__main__.Request", "__main__.MEMO[…]"),
    "in_cycle": by_type("__main__.Node", "a reference cycle"),
    "in_extension": by_type("list", "C code"),
    "in_malloc": by_stack("copy_of", "in_malloc"),
    "in_tasks": by_type("_asyncio.Task", "tasks()"),
}


def anything(report: Report) -> Iterator[str]:
    """All suspects."""
    for row in report["type_suspects"]:
        yield f"{row['type']} ← {[holder['path'] for holder in row['holders'][:1]]}"
    for row in report["suspects"]:
        symbols = [frame.get("symbol") for frame in row.get("stack", ())]
        yield f"stack {row['stack_id']}, {row['verdict']}: {' < '.join(map(str, symbols[:12]))}"


@dataclass
class Watched:
    """A program, and the command that watches it."""

    kind: str
    target: Target
    command: subprocess.Popen[bytes]
    begun_s: float
    named_s: float | None = None
    how: str = ""

    def read(self, names: Names) -> None:
        """Reads reports until one names the leak, or to the end."""
        for line in self.command.stdout:
            found = next(names(json.loads(line)), None)
            if found is not None:
                self.named_s, self.how = time.monotonic() - self.begun_s, found
                break
        self.command.terminate()
        self.command.communicate()
        self.target.kill()


def build(directory: Path) -> None:
    """The module ``pyleak``, which any CPython from 3.11 on can load."""
    include = subprocess.check_output(
        ["/usr/bin/python3", "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        text=True,
    ).strip()
    subprocess.run(
        ["gcc", "-O2", "-g", "-shared", "-fPIC", f"-I{include}", TARGETS / "pyleak.c", "-o",
         directory / "pyleak.abi3.so"],
        check=True,
    )  # fmt: skip


def begin(python: str, kind: str, directory: Path) -> Watched:
    """Starts a program, and attaches."""
    target = Target([python, directory / "pyleaks.py", kind, directory])
    command = subprocess.Popen(
        tracelloc_command("-p", target.pid, *_REPORTS, f"{LIMIT_S + 4:.0f}s"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Watched(kind, target, command, time.monotonic())


def measure(python: str) -> list[Watched]:
    """All programs under one Python, some at a time."""
    found: list[Watched] = []
    kinds = [*LEAKS, "innocent"]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        build(directory)
        shutil.copy(TARGETS / "pyleaks.py", directory)
        for first in range(0, len(kinds), AT_ONCE):
            batch = [begin(python, kind, directory) for kind in kinds[first : first + AT_ONCE]]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                # What is not read would keep the command from going on.
                list(pool.map(lambda one: one.read(LEAKS.get(one.kind, anything)), batch))
            found += batch
    return found


def main() -> None:
    """Prints a table; its status is 1 if a leak was not named in time, or what is innocent was."""
    is_good = True
    print(f"{'':14} {'leak':14} {'named after':>12}  as")
    for python in sys.argv[1:] or ["/usr/bin/python3"]:
        version = subprocess.check_output([python, "--version"], text=True).split()[1]
        for one in measure(python):
            is_in_time = one.named_s is not None and one.named_s <= LIMIT_S
            is_good &= is_in_time if one.kind in LEAKS else one.named_s is None
            after = "not named" if one.named_s is None else f"{one.named_s:.0f} s"
            print(f"{version:14} {one.kind:14} {after:>12}  {one.how}", flush=True)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
