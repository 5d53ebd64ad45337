"""Results of leak checks as SARIF, JUnit and GitHub's lines, whatever names programs choose."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from tests.unit.profiles import frame
from tracelloc.model.blocks import BlockSum
from tracelloc.model.lostmemory import ExitLeaks, LeakedStack
from tracelloc.model.process import Target
from tracelloc.show.export.checks import github_lines, junit, sarif
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


def test_the_line_is_that_of_the_innermost_shown_frame() -> None:
    (line,) = github_lines(report(leak(1)))
    assert line == (
        "::error file=src/a%2Cb%3Ac%25.cpp,line=3,title=Memory leak"
        "::10 bytes in 1 block leaked, allocated in f"
    )
    (result,) = json.loads(sarif(report(leak(1))))["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "src/a,b:c%.cpp"
    assert place["region"] == {"startLine": 3}


def test_hostile_names() -> None:
    found = report(leak(1, HOSTILE), name=HOSTILE)
    (line,) = github_lines(found)
    assert line.isprintable()
    (case,) = ElementTree.fromstring(junit(found))
    (failure,) = case
    assert "</failure>" in (failure.text or "")
    assert json.loads(sarif(found))["version"] == "2.1.0"
    assert all(line.isprintable() for line in leak_report_lines(found, 5))


def test_no_leaks_and_no_check() -> None:
    suite = ElementTree.fromstring(junit(report()))
    assert (suite.get("failures"), suite.get("errors"), len(suite[0])) == ("0", "0", 0)
    suite = ElementTree.fromstring(junit(report(), "it did not end & more"))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert suite[0][0].get("message") == "it did not end & more"


def test_leaks_of_the_same_lines_are_one() -> None:
    small, same, other = leak(1), leak(2, direct=2, indirect=1), leak(3, "g", direct=0, indirect=9)
    first, second = joined_leaks([other, small, same])
    assert (first.leak.direct, first.leak.indirect) == (BlockSum(3, 30), BlockSum(1, 20))
    assert second.stack is other.stack
    assert first.sentence == (
        "30 bytes in 3 blocks leaked, and 20 bytes in 1 block to which only these point, "
        "allocated in f"
    )
