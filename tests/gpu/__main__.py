"""Checks on a machine with GPUs, in five minutes: ``sudo .venv/bin/python -m tests.gpu PYTHON``.

PYTHON has torch for CUDA (2.14 or newer). Prints a line for each check, and all that is needed to
look into one that fails. Exit status 1 if one failed.

- What torch reports by USDT probes: bytes by device are those that torch counts, and stacks have
  the functions of Python.
- CUDA's calls, by the example of the documentation, with torch's cache switched off.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.harness import Target, Tracelloc
from tests.unit.test_docs import DOCS

TRAINER = Path(__file__).parent / "trainer.py"


def traced(python: str, *options: str | Path, **environment: str) -> tuple[dict, dict, dict]:
    """Returns (torch's bytes by device, the same in the end, the report of tracelloc)."""
    target = Target([python, TRAINER], env=os.environ | environment)
    try:
        tracer = Tracelloc("-p", target.pid, "--json", "--top", 10_000, *options)
        books = json.loads(target.ask("work"))
        report = tracer.final_report()
        return books, json.loads(target.ask("end")), report
    finally:
        target.kill()


def check(what: str, found: object, expected: object) -> bool:
    print(f"{'ok    ' if found == expected else 'FAILED'} {what}: {found!r}, expected {expected!r}")
    return found == expected


def reported(python: str) -> bool:
    """Whether bytes by device are those that torch counts."""
    books, end, report = traced(python, "--source", "usdt")
    by_device: Counter[str] = Counter()
    functions = set()
    for entry in report["top_allocators"]:
        *names, device = [frame["symbol"] for frame in entry["stack"]]
        by_device[re.sub(r"\D", "", device)] += entry["bytes"]
        functions |= {"weights", "activations"} & set(names)
    return all([
        check("bytes by device", dict(by_device), books),
        check("functions of the live tensors", functions, {"weights"}),
        check("nothing lost", report["lost_events"], 0),
        check("the program goes on", set(end.values()), {0}),
    ])  # fmt: skip


def called(python: str) -> bool:
    """CUDA's calls, without torch's cache."""
    options = ["--allocators", DOCS / "files" / "cuda.toml", "--malloc", "gpu calls"]
    books, _, report = traced(python, *options, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    weights = sum(4 << 20 for device in books for _ in range(int(device) + 3))
    return all([
        check("live bytes of calls", report["live_bytes"], weights),
        check("calls", report["allocations"] >= 100 * len(books), True),
    ])  # fmt: skip


def main() -> int:
    python = sys.argv[1]
    version = "import torch; print(torch.__version__, torch.cuda.device_count(), 'GPUs')"
    print(subprocess.run([python, "-c", version], capture_output=True, text=True).stdout)
    return 0 if all([reported(python), called(python)]) else 1


if __name__ == "__main__":
    sys.exit(main())
