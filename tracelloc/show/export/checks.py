"""Results of leak checks for continuous integration: SARIF, JUnit, and GitHub's annotations.

Formats: SARIF 2.1.0 (OASIS); the JUnit XML that Jenkins, GitLab and others read; GitHub Actions,
"Workflow commands". Text comes from the program and is escaped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from tracelloc import __version__
from tracelloc.model.frames import Frame
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.report.pointers import LeakReport, NamedLeak, leak_report_lines
from tracelloc.text import printable

_RULE: Final = "memory-leak"
_MOST_ANNOTATIONS: Final = 10  # GitHub shows no more errors of one step


def sarif(report: LeakReport) -> str:
    """Returns the leaks as a SARIF log."""
    rule = {
        "id": _RULE,
        "shortDescription": {"text": "Leaked memory"},
        "fullDescription": {"text": "At the end of the program, nothing pointed to these blocks."},
    }
    driver = {"name": "tracelloc", "version": __version__, "rules": [rule]}
    run = {"tool": {"driver": driver}, "results": [_result(one) for one in report.leaks]}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(one: NamedLeak) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": _RULE,
        "level": "error",
        "message": {"text": one.sentence},
        "stacks": [{
            "message": {"text": "allocated in"},
            "frames": [{"location": _location(frame)} for frame in one.stack.frames],
        }],
        "properties": {
            "direct_bytes": one.leak.direct.size_bytes,
            "direct_blocks": one.leak.direct.count,
            "indirect_bytes": one.leak.indirect.size_bytes,
            "indirect_blocks": one.leak.indirect.count,
        },
    }  # fmt: skip
    if one.frame is not None and one.frame.file is not None:
        result["locations"] = [_location(one.frame)]
    return result


def _location(frame: Frame) -> dict[str, Any]:
    location: dict[str, Any] = {"message": {"text": printable(frame_name(frame))}}
    if frame.file is not None:
        place: dict[str, Any] = {"artifactLocation": {"uri": relative_path(frame.file)}}
        if frame.line:
            place["region"] = {"startLine": frame.line}
        location["physicalLocation"] = place
    return location


def relative_path(file: str) -> str:
    """Returns a source file's path, relative to the current directory if it is below."""
    path = os.path.normpath(file)
    here = f"{Path.cwd()}/"
    return printable(path.removeprefix(here))


def junit(report: LeakReport, problem: str = "") -> str:
    """Returns a JUnit report: the check as one test case, with a failure for each leak.

    ``problem``: why the program could not be checked.
    """
    name = quoteattr(f"leaks of {printable(report.target.command)}")
    failures = len(report.leaks)
    counts = f'name="tracelloc" tests="1" failures="{min(failures, 1)}" errors="{bool(problem):d}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuite {counts}>",
        f'<testcase classname="tracelloc" name={name}>',
    ]
    if problem:
        lines.append(f"<error message={quoteattr(_plain(problem))}/>")
    elif failures:
        text = "\n".join(leak_report_lines(report, failures))
        first = quoteattr(_plain(next(leak_report_lines(report, 0))))
        lines.append(f"<failure message={first}>{escape(_plain(text))}</failure>")
    lines += ["</testcase>", "</testsuite>", ""]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def github_lines(report: LeakReport) -> Iterator[str]:
    """Yields lines by which GitHub marks the source lines that leak."""
    for one in report.leaks[:_MOST_ANNOTATIONS]:
        frame, place = one.frame, ""
        if frame is not None and frame.file is not None:
            place = f"file={_escaped(relative_path(frame.file), ':,')},"
            place += f"line={frame.line or 1},"
        yield f"::error {place}title=Memory leak::{_escaped(one.sentence)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
