"""Help, the manual and completions; and what is said of calls that are wrong."""

import os
import re
import resource
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.commands import background, run
from tests.options import parse_options
from tracelloc.command.cli import main
from tracelloc.command.failures import report_failure
from tracelloc.command.parser import parse_subcommand
from tracelloc.command.subcommands import find_subcommand, subcommand_names
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


def test_help_completion_and_old_names(capsys: pytest.CaptureFixture[str]) -> None:
    daily = shown(capsys, "--help")
    assert daily == shown(capsys, "-h")
    assert len(daily.splitlines()) <= 60
    assert max(map(len, daily.splitlines())) < 80
    for needed in ("-p PID", "--name NAME", "-- CMD", "--output FILE", "--help-all", "  help  "):
        assert needed in daily
    assert re.search(r"^  -n( NAME)?, --name NAME ", daily, re.MULTILINE)  # Python 3.13: without
    assert "--max-frames" not in daily
    every = shown(capsys, "--help-all")
    assert "--max-frames N" in every
    assert "--allocator " not in every
    flags = re.compile(r"^  (-\S[^ ]*(?: \S+)*)", re.MULTILINE)
    assert set(flags.findall(daily)) <= set(flags.findall(every))
    for option in ("--malloc", "--allocator"):
        assert parse_options(["-p", "1", option, "jemalloc"]).trace.selection.only == "jemalloc"
    assert parse_options(["-p", "1"]).trace.reads_memory
    assert not parse_options(["-p", "1", "--no-search"]).trace.reads_memory
    assert completed("tracelloc", "--follow") == {"--follow", "--follow-limit"}
    assert completed("tracelloc", "--metric", "pe") == {"peak"}
    assert completed("tracelloc", "comp") == {"completion"}
    assert completed("tracelloc", "help", "conta") == {"container", "containers"}
    assert str(os.getpid()) in completed("tracelloc", "leaks", "-p", "")
    name = Path("/proc/self/comm").read_text().strip()
    assert completed("tracelloc", "-n", name[:-1]) >= {name}
    assert completed("tracelloc", "open", "/etc/host") >= {"/etc/hosts", "/etc/hostname"}


SEE_HELP = "tracelloc --help shows the options"
NO_DURATION = f"is not a duration: write seconds, or 500ms, 30s, 5m, 1h30m; {SEE_HELP}"
TOO_MANY = f"more than 16777216 entries are not supported; {SEE_HELP}"
NO_PROCESS = "a process is required; -p PID or -n NAME trace a running one, -- CMD starts one"
UNKNOWN = "unrecognized arguments: "
REQUIRED = "the following arguments are required"
BEFORE = "? (the subcommand comes before all options)"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("", NO_PROCESS),
        ("ls -l", f"{UNKNOWN}ls -l; did you mean tracelloc -- ls -l?"),
        ("--top 3 ls --json", f"{UNKNOWN}ls; did you mean tracelloc --top 3 -- ls --json?"),
        ("123 456", f"{UNKNOWN}123 456; did you mean tracelloc -p 123?"),
        ("123 -p 456", "--pid and 123 both name a process; leave out one"),
        ("-n x 123", "--name and 123 both name a process; leave out one"),
        ("123 -- ls", "-p traces a running process, -- CMD starts one; leave out one of them"),
        ("-p 1 --intervall 2s", f"{UNKNOWN}--intervall 2s; did you mean --interval?"),
        ("-p 1 --temporary soon", f"argument --temporary: 'soon' {NO_DURATION}"),
        ("-p 1 --overflow-entries 16777217", f"argument --overflow-entries: {TOO_MANY}"),
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


NO_METRIC = "invalid choice: 'weight'"
TOO_SHORT = "between 1s and a day"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("-p x", "whole number"), ("-p 0", "whole number"), ("-p 1 --top -1", "--top"),
        ("-p 1 --min-size 12q", "'12q' is not a size"), ("-p 1 --max-size -1", "--max-size"),
        ("-p 1 --min-size 99999999999999999999", "too large"),
        ("-p 1 --min-size 2k --max-size 1k", "--max-size is below --min-size"),
        ("-p 1 --max-overhead 0", "must be between 0.1% and 1000%"),
        ("-p 1 --max-overhead 5 --follow", "--max-overhead excludes --follow, which stops"),
        ("-p 1 --interval 0", "--interval must be at least 10ms"), ("-p 1 --count 0", "at least 1"),
        ("-p 1 --duration 0s", "--duration must be more than 0"),
        ("-p 1 --events-size 2GiB", "--events-size must be between"),
        ("-p 1 --sample 0", "--sample must be between 1 and 1TiB"), ("-p 1 -o a.x", "unknown"),
        ("-p 1 --metric weight", NO_METRIC),
        ("-p 1 --text --json", "not allowed with"), ("-p 1 --as-root", "is for CMD and --on-leak"),
        ("-p 1 --verbose", "did you mean --debug?"), ("-p 1 --listen x", "'x' is not [HOST:]PORT"),
        ("-p 1 --push ftp://x", "the URL to push to must look like"),
        ("-p 1 --push-label a=b", "need --push URL"), ("-p 1 --push-interval 1m", "need --push"),
        ("-p 1 --push http://x --push-interval 0", TOO_SHORT), ("--tui -- ls", "needs a terminal"),
        ("--program-output x -- true", "redirect the program's own output"),
        ("-p 1 --wait", "--wait needs -n NAME or --group NAME"),
        ("--group a -p 1", "-p and --group both name a process"),
        ("-p 1 --source otel", "'otel' is not usdt, and not usdt: with the name of a provider"),
        ("-p 1 --source usdt:", "'usdt:' is not usdt, and not usdt: with the name of a provider"),
        ("--source usdt -- ls", "--source=usdt:NAME names the provider"),
        *((f"-p 1 --source usdt {option}{value}", f"--source excludes {option}")
          for option, value in (("--sample", "=1m"), ("--mmap", ""), ("--malloc", "=libc"),
                                ("--preload", "=on"))),
    ],
)  # fmt: skip
def test_wrong_values_are_named(call: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_options(call.split())


@pytest.mark.parametrize(
    ("subcommand", "call", "pid", "name", "what"),
    [
        ("leaks", "123", 123, None, None),
        ("leaks", "-p 123", 123, None, None),
        ("heap", "shop --json", None, "shop", None),
        ("objects", "--json -n shop", None, "shop", None),
        ("doctor", "", None, None, None),
        ("record", "shop --duration 1", None, "shop", None),
        ("holders", "shop", None, "shop", None),
        ("holders", "123 64", 123, None, "64"),
        ("holders", "shop --top 3 app::Session", None, "shop", "app::Session"),
        ("holders", "64 -p 123", 123, None, "64"),
        ("holders", "-n shop", None, "shop", None),
    ],
)
def test_processes_of_subcommands(
    subcommand: str, call: str, pid: int | None, name: str | None, what: str | None
) -> None:
    given = parse_subcommand(find_subcommand(subcommand), call.split())
    assert (given.pid, given.name, getattr(given, "what", None)) == (pid, name, what)


def test_wrong_subcommand_calls(capsys: pytest.CaptureFixture[str]) -> None:
    for call, said in (
        ("leaks", "a process is required; write its PID or its name"),
        ("leaks shop -p 1", "--pid and shop both name a process; leave out one"),
        ("leaks -n shop -p 1", "--pid and --name both name a process; leave out one"),
        ("holders -p 1 shop 64", "--pid and shop both name a process; leave out one"),
        ("heap 1 2", f"{UNKNOWN}2; tracelloc heap --help shows the options"),
        ("run ./x -v", f"{UNKNOWN}./x; did you mean tracelloc run -- ./x -v?"),
        ("run --top 3 x", f"{UNKNOWN}x; did you mean tracelloc run --top 3 -- x?"),
        ("record ./x", f"{UNKNOWN}./x; did you mean tracelloc record -- ./x?"),
        ("run", "a program is required; tracelloc run --leaks -- CMD [ARG...]"),
        ("completion", f"{REQUIRED}: bash|zsh|fish; tracelloc completion --help shows the options"),
    ):
        assert main(call.split()) == 2
        assert capsys.readouterr().err == f"tracelloc: error: {said}\n"


def test_a_process_needs_no_option(tmp_path: Path) -> None:
    """By its PID, or by a name that a process has; with --wait, one that some process will have."""
    assert parse_options(["123", "--json"]).pid == 123
    assert parse_options(["--top", "3", "123"]).pid == 123
    name = shutil.copy("/bin/sleep", tmp_path / "no-option").name
    with background(tmp_path / name, "60"):
        assert parse_options([name, "--json"]).name == name
        assert parse_options(["--json", name]).name == name
    assert parse_options(["no-such-name", "--wait"]).name == "no-such-name"
    with pytest.raises(UsageError, match=r"'redis' is not a PID.*; -n takes a name"):
        parse_options(["-p", "redis"])


@pytest.mark.parametrize("name", subcommand_names())
def test_every_subcommand_has_a_page(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Its options, then what the manual says of it."""
    assert main(["help", name]) == 0
    page = capfdbinary.readouterr().out.decode()
    with pytest.raises(SystemExit):
        main([name, "--help"])
    options = capfdbinary.readouterr().out.decode()
    assert options.startswith(f"usage: tracelloc {name} ")
    told = "" if name in ("completion", "help") else manual.text_of(name)
    assert page == f"{options}\n{told}"


def test_topics_of_the_manual(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for words, page in (
        (["help"], manual.contents()), (["help", "verdicts"], manual.text_of("verdicts")),
        (["help", "verdict"], manual.text_of("verdicts")),
    ):  # fmt: skip
        assert main(words) == 0
        assert capsysbinary.readouterr().out.decode() == page
    for word, said in (
        ("verdcts", b"there is no topic 'verdcts'; did you mean verdicts?"),
        ("re", b"there is no topic 're'; did you mean recipes or record or recorder or "),
        ("qqq", b"there is no topic 'qqq'; tracelloc help lists the topics"),
    ):
        assert main(["help", word]) == 2
        assert said in capsysbinary.readouterr().err


@pytest.mark.parametrize("topic", [None, *manual.topics(), "kernel"])
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


@cache
def bash_script() -> str:
    return run(sys.executable, "-m", "tracelloc", "completion", "bash")


def completed(*words: str) -> set[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"{bash_script()}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
    script += '_shtab_tracelloc; printf "%s\\n" "${COMPREPLY[@]}"\n'
    return set(run("bash", "-c", script).split())


def test_completion_for_others(capsysbinary: Any) -> None:
    for shell, line, option in (
        ("zsh", b"#compdef tracelloc\n", b"--fail-if"),
        ("fish", b"complete -c tracelloc", b"fail-if"),
    ):
        assert main(["completion", shell]) == 0
        script = capsysbinary.readouterr().out
        assert line in script
        assert option in script


def test_modules_that_find_no_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a limit on address space, such errors have other causes."""
    errors = (
        SystemError("error return without exception set"),
        ImportError("/x.so: failed to map segment from shared object"),
    )
    for limit, words in ((1 << 30, "no memory left"), (resource.RLIM_INFINITY, "is a bug")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, bound=limit: (bound, bound))
        for error in errors:
            assert report_failure(error, debug=False) == 1
            assert words in capsys.readouterr().err
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 30, 1 << 30))
    report_failure(ImportError("No module named 'x'"), debug=False)
    assert "is a bug" in capsys.readouterr().err
