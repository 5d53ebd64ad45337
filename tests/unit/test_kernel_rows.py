"""The tests that run on other kernels: a name that is gone must not turn hours into nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S, ROOT
from tests.kernels.__main__ import ROWS, Result, chosen, main, read


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


def test_a_row_with_tests_and_words_that_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo.txt").write_text("demo ended with status 0\n")
    case = "<testcase classname='tests.test_a' name='{}'>{}</testcase>"
    cases = case.format("one", ""), case.format("two", "<failure/>")
    for count, outcome in ((1, "exact"), (2, "1 failed, exit status 1")):
        (tmp_path / "tests.xml").write_text(f"<testsuite>{''.join(cases[:count])}</testsuite>")
        result = Result(ROWS[0])
        read(result, tmp_path, count - 1)
        assert (result.outcome, result.passed) == (outcome, 1)
    with pytest.raises(SystemExit) as caught:
        main(["7.19", "full"])
    text = str(caught.value.code)
    assert text.startswith("no kernel's name contains 7.19 and full; there are\n")
    assert all(f"\n  {row.name}" in text for row in ROWS)
    assert not any(row.is_arm for row in [*chosen([]), *chosen(["trixie"])])
    assert chosen(["arm64"]) == [row for row in ROWS if row.is_arm]
    assert {row.package for row in chosen(["arm64-16k"])} == {"linux-image-arm64-16k/trixie"}
    assert chosen(["library"]) == [row for row in ROWS if row.part == "library"]
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == [row.name for row in ROWS]
