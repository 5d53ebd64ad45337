"""The tests that run on other kernels: a name that is gone must not turn hours into nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, ROOT
from tests.kernels.__main__ import ROWS, Result, read


@pytest.mark.parametrize("selection", sorted({row.selection for row in ROWS}))
def test_every_name_of_a_selection_is_a_test(selection: str) -> None:
    """pytest runs none at all if it does not know one."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider",
         f"@{selection}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tests", [None, "<testsuites><testsuite/></testsuites>"])
def test_a_row_without_tests_has_failed(tmp_path: Path, tests: str | None) -> None:
    (tmp_path / "demo.txt").write_text("demo ended with status 0\n")
    if tests is not None:
        (tmp_path / "tests.xml").write_text(tests)
    result = Result(ROWS[0])
    read(result, tmp_path, 4 if tests is None else 0)
    assert result.outcome.startswith("NO TEST RAN (exit status ")
    assert not result.is_good
