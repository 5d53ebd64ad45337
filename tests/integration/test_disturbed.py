"""tracelloc or the program is stopped or killed at any step of a trace's beginning and end."""

import subprocess
import sys

import pytest

from tests.harness import PATIENCE_S, ROOT, Builder

pytestmark = pytest.mark.bpf

# Every how many steps, by the way of attaching: of all cases, some in the long run.
SOME = {"probes": 20, "follow": 30, "inject": 45, "preloaded": 20}
ALL = {"probes": 3, "follow": 4, "inject": 14, "preloaded": 4, "perf": 12}


@pytest.mark.parametrize(
    ("way", "every"),
    [
        *(pytest.param(*each, marks=pytest.mark.long) for each in SOME.items()),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in ALL.items()),
    ],
)
def test_disturbances(builder: Builder, way: str, every: int) -> None:
    """The program's books and the figures are equal, then or in the next trace."""
    books = [str(builder.c("books")), "2", "2000", "1", "300"]
    run = subprocess.run(
        [sys.executable, "-m", "tests.disturbed", way, str(every), *books],
        cwd=ROOT, capture_output=True, text=True, timeout=20 * PATIENCE_S, check=False,
    )  # fmt: skip
    *wrong, last = run.stdout.splitlines() or [""]
    assert (run.returncode, wrong) == (0, []), run.stdout + run.stderr
    cases, steps = int(last.split()[0]), int(last.split()[3])
    assert cases == steps // every * 4 > 0
