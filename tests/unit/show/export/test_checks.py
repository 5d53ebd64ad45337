"""Results of leak checks as SARIF, JUnit and GitHub's lines, whatever names programs choose."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.unit.profiles import frame
from tracelloc.model.blocks import BlockSum
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack
from tracelloc.model.process import Target
from tracelloc.show.export.checks import ctest_log, github_lines, junit, sarif
from tracelloc.show.filters import NamedStack
from tracelloc.show.report.pointers import LeakReport, NamedLeak, joined_leaks, leak_report_lines

HOSTILE = "f</failure>\n::error file=x::\x00%\u202e"
HERE = str(Path.cwd() / "src" / "a,b:c%.cpp")


def leak(number: int, name: str = "f", direct: int = 1, indirect: int = 0) -> NamedLeak:
    frames = [replace(frame("hidden"), line=7), replace(frame(name), file=HERE, line=3)]
    sums = BlockSum(direct, 10 * direct), BlockSum(indirect, 20 * indirect)
    return NamedLeak(LeakedStack(number, *sums), NamedStack(frames, [True, False]))


def report(*leaks: NamedLeak, name: str = "shop") -> LeakReport:
    return LeakReport(Target(42, name), ExitLeaks(in_use=BlockSum(9, 900)), leaks)


def test_lines_fingerprints_and_hostile_names() -> None:
    (line,) = github_lines([report(leak(1))])
    assert line == (
        "::error file=src/a%2Cb%3Ac%25.cpp,line=3,title=Memory leak"
        "::10 bytes in 1 block leaked, allocated in f"
    )
    (result,) = json.loads(sarif([report(leak(1))]))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "src/a%2Cb%3Ac%25.cpp", "uriBaseId": "CHECKOUT"}
    assert place["region"] == {"startLine": 3}

    def fingerprint(one: NamedLeak) -> str:
        (result,) = json.loads(sarif([report(one)]))["runs"][0]["results"]
        return result["partialFingerprints"]["callStack/v1"]

    moved = [replace(each, line=99, address=5) for each in leak(1).stack.frames]
    assert fingerprint(NamedLeak(leak(2).leak, NamedStack(moved, [True, False]))) == (
        fingerprint(leak(1))
    )
    assert fingerprint(leak(1, "g")) != fingerprint(leak(1))
    found = report(leak(1, HOSTILE), name=HOSTILE)
    (line,) = github_lines([found])
    assert line.isprintable()
    (case,) = ElementTree.fromstring(junit([found]))
    (failure,) = case
    assert "</failure>" in (failure.text or "")
    assert json.loads(sarif([found]))["version"] == "2.1.0"
    assert all(line.isprintable() for line in leak_report_lines(found, 5))


def test_paths_are_relative_to_the_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its root is above the current directory, or where GitHub says; other files are elsewhere."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "build").mkdir()
    monkeypatch.chdir(tmp_path / "build")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    files = [str(tmp_path / "src" / "a b.c"), "/usr/include/x.h"]

    def places() -> tuple[str, list[dict[str, str]]]:
        frames = [replace(frame("f"), file=file, line=3) for file in files]
        found = NamedLeak(leak(1).leak, NamedStack(frames, [False] * 2))
        (run,) = json.loads(sarif([report(found)]))["runs"]
        stack = run["results"][0]["stacks"][0]["frames"]
        uris = [one["location"]["physicalLocation"]["artifactLocation"] for one in stack]
        return run["originalUriBaseIds"]["CHECKOUT"]["uri"], uris

    root = {"uri": "src/a%20b.c", "uriBaseId": "CHECKOUT"}, {"uri": "file:///usr/include/x.h"}
    assert places() == (f"{tmp_path.as_uri()}/", list(root))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "src"))
    assert places()[1][0] == {"uri": "a%20b.c", "uriBaseId": "CHECKOUT"}


def test_processes_and_counts() -> None:
    """Several processes, one of which could not be checked."""
    first, clean = report(leak(1)), report(name="tidy")
    last = LeakReport(Target(43, "sh"), ExitLeaks(problem="SIGKILL ended it"), ())
    reports = [first, clean, last]
    (run,) = json.loads(sarif(reports))["runs"]
    assert [result["properties"]["pid"] for result in run["results"]] == [42]
    assert run["properties"]["processes"] == [
        {"pid": 42, "command": "shop", "problem": None},
        {"pid": 42, "command": "tidy", "problem": None},
        {"pid": 43, "command": "sh", "problem": "SIGKILL ended it"},
    ]
    suite = ElementTree.fromstring(junit(reports))
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [case.get("name") for case in suite] == ["leaks of shop", "leaks of tidy", "leaks of sh"]
    assert [len(case) for case in suite] == [1, 0, 1]
    assert "==> sh (43): not checked for leaks: SIGKILL ended it" in ctest_log(reports)
    lines = ctest_log([report(leak(1), leak(2, "g", indirect=1))]).splitlines()
    assert lines[:3] == [
        "==42== 10 bytes in 1 blocks are definitely lost in loss record 1 of 2",
        "==42== 30 bytes in 2 blocks are definitely lost in loss record 2 of 2",
        "==> shop (42): leaked 40 bytes in 3 blocks, of 900 bytes in 9 blocks in use at its end",
    ]
    assert "definitely" not in ctest_log([report()])
    small, same, other = leak(1), leak(2, direct=2, indirect=1), leak(3, "g", direct=0, indirect=9)
    first, second = joined_leaks([other, small, same])
    assert (first.leak.direct, first.leak.indirect) == (BlockSum(3, 30), BlockSum(1, 20))
    assert second.stack is other.stack
    assert first.sentence == (
        "30 bytes in 3 blocks leaked, and 20 bytes in 1 block to which only these point, "
        "allocated in f"
    )
    suite = ElementTree.fromstring(junit([report()]))
    assert (suite.get("failures"), suite.get("errors"), len(suite[0])) == ("0", "0", 0)
    suite = ElementTree.fromstring(
        junit([replace(report(), found=ExitLeaks(problem="it did not end & more"))])
    )
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert suite[0][0].get("message") == "it did not end & more"
