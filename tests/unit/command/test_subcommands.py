"""The registry of subcommands: help, completions and the man page show what is in it."""

import re
from pathlib import Path

import pytest

from tests.harness import DATA
from tests.options import actions_of
from tracelloc.command import subcommands
from tracelloc.command.cli import main
from tracelloc.command.parser import build_parser, subcommand_parser, whole_parser
from tracelloc.command.subcommands import (
    Subcommand,
    SubcommandGroup,
    all_subcommands,
    find_subcommand,
    subcommand_names,
)
from tracelloc.startup import STARTUP

ALL = all_subcommands()
ids = [one.name for one in ALL]


def test_names_groups_and_help() -> None:
    assert subcommand_names() == [
        "completion", "diff", "doctor", "heap", "help", "holders", "leaks", "library-path", "mcp",
        "merge", "objects", "open", "record", "report", "run", "schema", "symbols", "top", "watch",
    ]  # fmt: skip
    assert sorted(ids) == subcommand_names()
    assert find_subcommand("library-path").module.__name__.split(".")[-2:] == [
        "subcommands", "library_path",
    ]  # fmt: skip
    order = [one.group for one in ALL]
    assert list(dict.fromkeys(order)) == list(SubcommandGroup)
    assert order == sorted(order, key=list(SubcommandGroup).index)
    shown = build_parser().format_help()
    by_title = dict(re.findall(r"^([a-z ,-]+):\n((?:  .*\n)+)", shown, re.MULTILINE))
    for group in SubcommandGroup:
        rows = re.findall(r"^  ([a-z][a-z-]+) +([A-Z].*)$", by_title[group.value], re.MULTILINE)
        assert rows == [(one.name, one.summary) for one in ALL if one.group is group]
    assert re.search(r"^  -p PID .*\n  -- CMD ", by_title["trace"], re.MULTILINE)
    assert max(len(line) for lines in by_title.values() for line in lines.splitlines()) < 80
    parser = whole_parser()
    for one in ALL:
        own = subcommand_parser(one)
        with pytest.raises(SystemExit):
            parser.parse_args([one.name, "--help"])
        choices = next(a.choices for a in actions_of(parser) if a.choices and one.name in a.choices)
        assert isinstance(choices, dict)
        assert choices[one.name].flags() == own.flags()


@pytest.mark.parametrize("one", ALL, ids=ids)
def test_a_summary_fits_in_a_line_and_is_the_beginning_of_the_help(one: Subcommand) -> None:
    assert re.fullmatch(r"[A-Z][a-z]+s .{10,}\.", one.summary)
    assert len(one.summary) <= 65
    shown = subcommand_parser(one).format_help()
    assert f"\n\n{one.summary}\n" in shown
    assert re.search(rf"\n\nTo try it:\n  (sudo )?tracelloc {one.name}\b.*\n", one.about)
    assert " ".join(one.about.split()) in " ".join(shown.split())
    assert "--debug" in shown


@pytest.mark.parametrize("one", ALL, ids=ids)
def test_the_man_page_has_all_arguments(one: Subcommand) -> None:
    """``make docs`` writes it again."""
    page = (Path(subcommands.__file__).parents[2] / "docs" / "tracelloc.1").read_text()
    plain = re.sub(r"\\f.|\\,|\\/|\\", "", page)
    beginning = f".SH COMMAND 'tracelloc {one.name}'"
    section = plain[plain.index(beginning) :].removeprefix(".SH").partition("\n.SH COMMAND")[0]
    assert " ".join(one.about.split()) in " ".join(section.split())
    assert [f for f in subcommand_parser(one).flags() if f not in section] == ["--help"]


def test_quiet_leaves_the_report_alone(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    written = []
    try:
        for options in ([], ["--quiet"]):
            assert main(["report", str(DATA / "recordings" / "v2.rec"), *options]) == 0
            written.append(capsysbinary.readouterr())
    finally:
        STARTUP.is_quiet = False
    assert written[0].err.startswith(b"tracelloc: at ")
    assert written[1].err == b""
    assert written[1].out == written[0].out != b""
