"""Installs real programs from Debian packages, puts them under load, records their events.

Usage: python -m tests.corpus.real [--minutes N] [--half seen|unseen] [NAME...]

Needs root and Debian's package archive. Writes ``FOLDER/NAME.npz``, for
``tests.bench.realverdicts``; what is there already is not recorded again. The programs run under
``nice``, some side by side, and have all ended when this has.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.corpus.real.programs import PROGRAMS, RealProgram

FOLDER = Path(__file__).parents[3] / ".venv" / "recordings"
REALLY = "@"  # In a recording's name, between the program's and what it was made to leak
# Classes of call sites, and one in how many of their frees is left out.
REAL_LEAKS = ("1", "40"), ("2", "100")
FIRST_PORT = 20000
PORTS = 10  # Ports that each program may use
SPARE_S = 900  # Time for a program to start, and for its recording to be written


def install(programs: list[RealProgram]) -> None:
    """Installs the packages, without starting their services."""
    packages = sorted({package for program in programs for package in program.packages})
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for package in packages:
            command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "--no-remove"]
            done = subprocess.run(
                [*command, package], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, check=False,
            )  # fmt: skip
            if done.returncode:
                print(f"{package} could not be installed: {done.stderr[-300:]}", file=sys.stderr)
    finally:
        if ours:
            policy.unlink()


def recording_of(program: RealProgram, leak: tuple[str, ...], folder: Path) -> Path:
    """The file for a program, perhaps with a leak."""
    return folder / f"{program.name}{REALLY * bool(leak)}{'-'.join(leak)}.npz"


def start(
    program: RealProgram, leak: tuple[str, ...], seconds: float, folder: Path
) -> subprocess.Popen[bytes]:
    """Starts to record a program, in a process of its own."""
    number = PROGRAMS.index(program) + len(PROGRAMS) * (REAL_LEAKS.index(leak) + 1 if leak else 0)
    port = FIRST_PORT + PORTS * number
    module = [sys.executable, "-m", "tests.corpus.real.recorder"]
    file = recording_of(program, leak, folder)
    return subprocess.Popen([
        "nice", "-n", "10", "timeout", str(int(seconds + SPARE_S)),
        *module, program.name, str(seconds), str(port), str(file), *leak,
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("tests.corpus.real", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of each program (20)")
    parser.add_argument("--half", choices=["seen", "unseen"], help="only this half (both)")
    parser.add_argument("--side-by-side", type=int, default=8, help="programs at a time (8)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"({FOLDER})")
    parser.add_argument(
        "--leaking", action="store_true", help="record programs that were made to leak, instead"
    )
    parser.add_argument("--no-install", action="store_true", help="install no packages")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    waiting = [
        (program, leak)
        for program in PROGRAMS
        for leak in (REAL_LEAKS if options.leaking else ((),))
        if options.half in (None, program.half)
        and (not options.names or program.name in options.names)
        and not recording_of(program, leak, options.folder).exists()
    ]  # fmt: skip
    if not options.no_install:
        install([program for program, _ in waiting])
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        running = [each for each in running if each.poll() is None]
        while waiting and len(running) < options.side_by_side:
            running.append(start(*waiting.pop(0), options.minutes * 60, options.folder))
        time.sleep(1)


if __name__ == "__main__":
    main()
