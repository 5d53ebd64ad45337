"""Help, the manual and completions; and what is said of calls that are wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from tracelloc.command.cli import main
from tracelloc.command.options import parse_options
from tracelloc.command.subcommands import subcommand_names
from tracelloc.errors import UsageError
from tracelloc.show import manual


@pytest.fixture(autouse=True)
def of_usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_help_is_what_is_used_daily(capsys: pytest.CaptureFixture[str]) -> None:
    daily = shown(capsys, "--help")
    assert daily == shown(capsys, "-h")
    # Subcommands have a line each.
    assert len(daily.splitlines()) - len(subcommand_names()) <= 61
    assert max(map(len, daily.splitlines())) < 80
    for needed in ("-p PID", "-n NAME", "-- CMD", "--output FILE", "--help-all", "  help  "):
        assert needed in daily
    assert "--overflow-entries" not in daily
    every = shown(capsys, "--help-all")
    assert "--overflow-entries N" in every
    assert "--allocator " not in every
    assert {line for line in daily.splitlines() if line.startswith("  -")} <= set(
        every.splitlines()
    )


NO_PROCESS = "a process is required; -p PID or -n NAME trace a running one, -- CMD starts one"
UNKNOWN = "unrecognized arguments: "
BEFORE = "? (the subcommand comes before all options)"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("", NO_PROCESS),
        ("--json", NO_PROCESS),
        ("ls -l", f"{UNKNOWN}ls -l; did you mean tracelloc -- ls -l?"),
        ("ls -p", f"{UNKNOWN}ls -p; did you mean tracelloc -- ls -p?"),
        ("--top 3 ls --json", f"{UNKNOWN}ls; did you mean tracelloc --top 3 -- ls --json?"),
        ("123", f"{UNKNOWN}123; did you mean tracelloc -p 123?"),
        ("-p 1 --intervall 2s", f"{UNKNOWN}--intervall 2s; did you mean --interval?"),
        ("-p 1 --max-overhead 0", "--max-overhead must be between 0.1% and 1000%"),
        (
            "-p 1 --max-overhead 5 --follow",
            "--max-overhead excludes --follow, which stops processes at forks",
        ),
        ("-p 1 --qqqq", f"{UNKNOWN}--qqqq; tracelloc --help-all shows all options"),
        ("simbols -p 1", f"{UNKNOWN}simbols -p 1; did you mean tracelloc symbols{BEFORE}"),
        ("--text diff", f"{UNKNOWN}diff; did you mean tracelloc diff{BEFORE}"),
        ("--", "no command follows --; write tracelloc -- CMD [ARG...]"),
    ],
)
def test_wrong_calls_say_what_to_do(call: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_options(call.split())
    assert str(raised.value) == said


def test_pids_are_numbers() -> None:
    with pytest.raises(UsageError, match=r"'redis' is not a PID.*; -n takes a name"):
        parse_options(["-p", "redis"])


def test_old_name_of_an_option() -> None:
    for option in ("--malloc", "--allocator"):
        assert parse_options(["-p", "1", option, "jemalloc"]).trace.selection.only == "jemalloc"


def test_memory_is_searched_unless_told_otherwise() -> None:
    assert parse_options(["-p", "1"]).trace.reads_memory
    assert not parse_options(["-p", "1", "--no-search"]).trace.reads_memory


def test_manual(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["help"]) == 0
    assert capsysbinary.readouterr().out.decode() == manual.contents()
    assert main(["help", "verdicts"]) == 0
    assert capsysbinary.readouterr().out.decode() == manual.text_of("verdicts")
    assert main(["help", "verdict"]) == 0
    assert capsysbinary.readouterr().out.decode() == manual.text_of("verdicts")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("verdcts", b"there is no topic 'verdcts'; did you mean verdicts?"),
        ("re", b"there is no topic 're'; did you mean recipes or recordings or reports?"),
        ("qqq", b"there is no topic 'qqq'; tracelloc help lists the topics"),
    ],
)
def test_topics_that_there_are_not(
    word: str, said: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["help", word]) == 2
    assert said in capsysbinary.readouterr().err


@pytest.mark.parametrize("topic", [None, *manual.topics()])
def test_manual_on_a_terminal(
    topic: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    manual.show(topic)
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "|---" not in text
    # What is too long for its column of a table would be cut.
    source = manual.contents() if topic is None else manual.text_of(topic)
    assert [word for word in re.findall(r"[\w.;+-]+…", text) if word not in source] == []
    assert max(map(len, text.splitlines())) <= 80


def completed(*words: str) -> set[str]:
    """What bash offers for the last of these words."""
    script = subprocess.run(
        [sys.executable, "-m", "tracelloc", "completion", "bash"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    line = " ".join(f"'{word}'" for word in words)
    script += f"\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
    script += '_shtab_tracelloc; printf "%s\\n" "${COMPREPLY[@]}"\n'
    return set(
        subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
    )


def test_completion() -> None:
    assert completed("tracelloc", "--follow") == {"--follow", "--follow-limit"}
    assert completed("tracelloc", "--metric", "pe") == {"peak"}
    assert completed("tracelloc", "comp") == {"completion"}
    assert completed("tracelloc", "help", "con") == {"containers"}


@pytest.mark.parametrize(
    ("shell", "line", "option"),
    [
        ("zsh", b"#compdef tracelloc\n", b"--fail-if"),
        ("fish", b"complete -c tracelloc", b"fail-if"),
    ],
)
def test_completion_for_others(shell: str, line: bytes, option: bytes, capsysbinary: Any) -> None:
    assert main(["completion", shell]) == 0
    script = capsysbinary.readouterr().out
    assert line in script
    assert option in script
