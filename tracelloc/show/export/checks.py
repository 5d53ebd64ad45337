"""Results of leak checks for continuous integration: SARIF, JUnit, CTest, GitHub's annotations.

Formats: SARIF 2.1.0 (OASIS); the JUnit XML that Jenkins, GitLab and others read; GitHub Actions,
"Workflow commands". Text comes from the program and is escaped.
"""

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from html import escape
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tracelloc import __version__
from tracelloc.model.frames import Frame
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.report.pointers import LeakReport, NamedLeak, leak_report_lines
from tracelloc.text import printable

_RULE: Final = "memory-leak"
_ROOT: Final = "CHECKOUT"  # What paths in SARIF are relative to
_MOST_ANNOTATIONS: Final = 10  # GitHub shows no more errors of one step


def sarif(reports: Sequence[LeakReport]) -> str:
    """Returns the leaks of all processes as a SARIF log."""
    rule = {
        "id": _RULE,
        "shortDescription": {"text": "Leaked memory"},
        "fullDescription": {"text": "At the end of the program, nothing pointed to these blocks."},
    }
    driver = {"name": "tracelloc", "version": __version__, "rules": [rule]}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_ROOT: {"uri": f"{_checkout().as_uri()}/"}},
        "results": [_result(report, one) for report in reports for one in report.leaks],
        "properties": {
            "processes": [
                {
                    "pid": report.target.pid,
                    "command": printable(report.target.command),
                    "problem": printable(report.found.problem) or None,
                }
                for report in reports
            ]
        },
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _result(report: LeakReport, one: NamedLeak) -> dict[str, Any]:
    # What stays if lines move: a hash of the call stack's functions.
    names = "\n".join(frame_name(frame) for frame in one.stack.frames)
    mark = blake2b(names.encode(errors="replace"), digest_size=16).hexdigest()
    result: dict[str, Any] = {
        "ruleId": _RULE,
        "level": "error",
        "message": {"text": one.sentence},
        "stacks": [{
            "message": {"text": "allocated in"},
            "frames": [{"location": _location(frame)} for frame in one.stack.frames],
        }],
        "partialFingerprints": {"callStack/v1": mark},
        "properties": {
            "pid": report.target.pid, "direct_bytes": one.leak.direct.size_bytes,
            "direct_blocks": one.leak.direct.count, "indirect_bytes": one.leak.indirect.size_bytes,
            "indirect_blocks": one.leak.indirect.count,
        },
    }  # fmt: skip
    if one.frame is not None and one.frame.file is not None:
        result["locations"] = [_location(one.frame)]
    return result


def _location(frame: Frame) -> dict[str, Any]:
    location: dict[str, Any] = {"message": {"text": printable(frame_name(frame))}}
    if frame.file is not None:
        path = relative_path(frame.file)
        uri = quote(path) if not path.startswith("/") else Path(path).as_uri()
        artifact = {"uri": uri} if uri.startswith("file:") else {"uri": uri, "uriBaseId": _ROOT}
        place: dict[str, Any] = {"artifactLocation": artifact}
        if frame.line:
            place["region"] = {"startLine": frame.line}
        location["physicalLocation"] = place
    return location


def _checkout() -> Path:
    """Returns the folder to which code hosts relate paths."""
    if workspace := os.environ.get("GITHUB_WORKSPACE"):
        return Path(workspace).absolute()
    here = Path.cwd()
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), here)


def relative_path(file: str) -> str:
    """Returns a source file's path, relative to the checkout if it is there."""
    return printable(os.path.normpath(file).removeprefix(f"{_checkout()}/"))


def ctest_log(reports: Sequence[LeakReport]) -> str:
    """Returns the report with a line per leak in valgrind's form, which CTest understands."""
    leaks = [(report.target.pid, one.leak.blocks) for report in reports for one in report.leaks]
    lines = [
        f"=={pid}== {blocks.size_bytes:,} bytes in {blocks.count:,} blocks are definitely lost "
        f"in loss record {n:,} of {len(leaks):,}"
        for n, (pid, blocks) in enumerate(leaks, 1)
    ]
    for report in reports:
        lines += leak_report_lines(report, len(report.leaks))
    return "\n".join([*lines, ""])


def junit(reports: Sequence[LeakReport]) -> str:
    """Returns a JUnit report: a test case for each process, which fails if it leaked."""
    failures = sum(bool(report.leaks) for report in reports)
    errors = sum(bool(report.found.problem) for report in reports)
    counts = f'tests="{len(reports)}" failures="{failures}" errors="{errors}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="tracelloc" {counts}>']
    for report in reports:
        name = escape(f"leaks of {printable(report.target.command)}")
        lines.append(f'<testcase classname="tracelloc" name="{name}">')
        if report.found.problem:
            lines.append(f'<error message="{escape(_plain(report.found.problem))}"/>')
        elif report.leaks:
            text = "\n".join(leak_report_lines(report, len(report.leaks)))
            first = escape(_plain(next(leak_report_lines(report, 0))))
            lines.append(f'<failure message="{first}">{escape(_plain(text))}</failure>')
        lines.append("</testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def _plain(text: str) -> str:
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def github_lines(reports: Sequence[LeakReport]) -> Iterator[str]:
    """Yields lines by which GitHub marks the source lines that leak."""
    for one in islice(chain(*(report.leaks for report in reports)), _MOST_ANNOTATIONS):
        frame, place = one.frame, ""
        if frame is not None and frame.file is not None:
            place = f"file={_escaped(relative_path(frame.file), ':,')},"
            place += f"line={frame.line or 1},"
        yield f"::error {place}title=Memory leak::{_escaped(one.sentence)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
