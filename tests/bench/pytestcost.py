"""What does ``pytest --tracelloc`` cost on a package's own tests, compared with pytest-memray?

``python -m tests.bench.pytestcost PYTHON DIRECTORY [ROUNDS]``: PYTHON has pytest with both
plug-ins and the package, DIRECTORY its tests. Ways take turns. Prints one JSON object: medians of
seconds and of processor time, of the whole command with its start; their ratios to plain pytest.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Final

WAYS: Final = {
    "plain": [], "memray": ["--memray"], "no search": ["--tracelloc", "--tracelloc-no-search"],
    "tracelloc": ["--tracelloc"],
}  # fmt: skip
_LONGEST_S: Final = 900.0
_UNCACHED: Final = "PYTHONDONTWRITEBYTECODE"  # Each start would compile all modules


def measured(python: str, directory: str, options: list[str]) -> tuple[float, float]:
    """Seconds and processor time of one run, whose tests must pass."""
    line = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", directory, *options]
    before, began_s = os.times(), time.monotonic()
    environment = {name: os.environ[name] for name in os.environ.keys() - {_UNCACHED}}
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, timeout=_LONGEST_S, env=environment)
    took_s, after = time.monotonic() - began_s, os.times()
    return took_s, sum(after[2:4]) - sum(before[2:4])


def main() -> None:
    python, directory, *rest = sys.argv[1:]
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    measured(python, directory, WAYS["tracelloc"])  # its bytecode is cached then
    for _ in range(int((rest or ["3"])[0])):
        for way, options in WAYS.items():
            found[way].append(measured(python, directory, options))
            print(way, found[way][-1], os.getloadavg()[0], file=sys.stderr, flush=True)
    result: dict[str, dict[str, float]] = {}
    for way, rows in found.items():
        wall_s, cpu_s = (statistics.median(column) for column in zip(*rows, strict=True))
        plain = result.get("plain", {"wall_s": wall_s, "cpu_s": cpu_s})
        result[way] = {
            "wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2),
            "wall_ratio": round(wall_s / plain["wall_s"], 2),
            "cpu_ratio": round(cpu_s / plain["cpu_s"], 2),
        }  # fmt: skip
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
