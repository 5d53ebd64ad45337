"""Rules that end tracing, the command for leaks, and leaks that are put up with."""

import json
import os
import pwd
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import wait_until
from tests.options import parse_options
from tests.unit.leaks import LEAK, SESSIONS, Watched, watched
from tests.unit.reports import text_report
from tracelloc.command.commandline import Mode
from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.alerts.rules import WatchRule, parse_rule
from tracelloc.show.alerts.suppressions import Suppressions
from tracelloc.show.alerts.watching import LeakCommand, Watch, breach
from tracelloc.show.presentation.facts import summary
from tracelloc.system.invoker import effective_user, invoker
from tracelloc.text import format_size

PATIENCE_S = 30.0


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("leak", WatchRule("leak", 0)),
        ("leak > 1MiB/min", WatchRule("leak", 1 << 20)),
        (" leak>1.5k / min ", WatchRule("leak", 1536)),
        ("growth > 0/min", WatchRule("growth", 0)),
        ("live > 2GiB", WatchRule("live", 2 << 30)),
        ("peak > 3k", WatchRule("peak", 3072)),
        ("rss > 4096", WatchRule("rss", 4096)),
        ("lost > 1MiB", WatchRule("lost", 1 << 20)),
    ],
)
def test_rules(text: str, rule: WatchRule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a valid rule"),
        ("leaks > 1k/min", "is not a valid rule"),
        ("leak < 1k/min", "is not a valid rule"),
        ("leak > 1k/s", "is not a valid rule"),
        ("leak > 1k", "leak is a size per minute"),
        ("live > 1k/min", "live is a size, not one per minute"),
        ("rss", "needs a limit"),
        ("leak > much/min", "is not a size"),
    ],
)
def test_what_is_no_rule(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_rule(text)
    with pytest.raises(UsageError, match="--fail-if"):
        parse_options(["-p", "1", "--fail-if", text])


@pytest.mark.parametrize(
    ("text", "end_s", "said"),
    [
        ("leak", 400.0, "leak (RATE/min)"),
        ("leak > 45k/min", 400.0, "leak > 45.0 KiB/min (RATE/min)"),
        ("leak > 1MiB/min", 400.0, None),
        ("leak", 100.0, None),  # nothing is sure yet
        ("suspects", 100.0, "suspects (RATE/min)"),
        ("suspects > 45k/min", 400.0, "suspects > 45.0 KiB/min (RATE/min)"),
        ("suspects > 1MiB/min", 400.0, None),
        ("live > 100k", 100.0, "live > 100 KiB (251 KiB)"),
        ("live > 1MiB", 100.0, None),
        ("peak > 251KiB", 100.0, "peak > 251 KiB (PEAK)"),
        ("peak > 1MiB", 100.0, None),
        ("rss > 32MiB", 100.0, "rss > 32.0 MiB (64.0 MiB)"),
        ("growth > 1GiB/min", 100.0, None),
    ],
)
def test_when_rules_are_broken(text: str, end_s: float, said: str | None) -> None:
    watch = Watch([parse_rule(text)], None, (), print)
    found = watched(end_s)
    assert watch.check(found.snapshot(), found.namer) == (said is not None)
    rate = sum(suspect.judgement.rate_bytes_per_min for suspect in found.findings.suspects)
    peak = found.snapshot().peak
    assert peak.size_bytes > found.snapshot().live_bytes
    reason = said and said.replace("RATE", format_size(round(rate)))
    reason = reason and reason.replace("PEAK", format_size(peak.size_bytes))
    assert watch.broken == (reason and f"{reason} in process 42")
    ended = replace(found.snapshot(), rss_bytes=None)
    assert breach(parse_rule("rss > 1"), ended) is None


def test_usage_and_growth() -> None:
    later = watched(60.0).snapshot()
    early = replace(later, started_ns=later.started_ns + 10**9)
    assert (early.elapsed_ns, later.elapsed_ns) == (59 * 10**9, 60 * 10**9)
    rule = parse_rule("growth > 0/min")
    grown = early.growth_per_min + 1000
    assert breach(rule, replace(early, growth_per_min=grown)) is None
    assert breach(rule, replace(later, growth_per_min=grown)) is not None
    rule = ["--fail-if", "leak"]
    assert parse_options(["-p", "1", *rule], terminal=True).mode is Mode.TEXT
    assert parse_options(["-p", "1"], terminal=True).mode is Mode.TUI
    for arguments, said in (
        ([*rule, "--tui"], "--fail-if and --on-leak check reports"),
        (["--on-leak", "/none/such x"], "there is no command '/none/such'"),
        (["--on-leak", "echo 'x"], "is not a command"),
        (["--on-leak", " "], "the command is empty"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_options(["-p", "1", *arguments], terminal=True)
    options = parse_options(["-p", "1", "--on-leak", "sh -c 'cat > x'"])
    assert options.on_leak == ["sh", "-c", "cat > x"]


def suppressed(tmp_path: Path, text: str, end_s: float = 400.0) -> tuple[Watched, list[str]]:
    path = tmp_path / "known.supp"
    path.write_text(text)
    found = watched(end_s)
    findings = Suppressions([path]).apply(found.snapshot(), found.namer).findings
    changed = replace(found, findings=findings)
    return changed, list(text_report(changed.snapshot(), found.namer, 5))


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("record_request", ["session_new"]), ("^record", ["session_new"]),
        ("rec*quest$", ["session_new"]), ("^ecord", ["session_new", "record_request"]),
        ("record$", ["session_new", "record_request"]), ("handle_", ["record_request"]),
        ("/opt/app", []), ("nothing.like|this", ["session_new", "record_request"]),
    ],
)  # fmt: skip
def test_patterns(tmp_path: Path, pattern: str, left: list[str]) -> None:
    found, lines = suppressed(tmp_path, f"# known\n\n  leak:{pattern}\n")
    stacks = [found.namer.stack(found.snapshot(), s.stack) for s in found.findings.suspects]
    assert [stack.frames[0].symbol for stack in stacks] == left
    said = [line for line in lines if line.startswith("==> suppressed")]
    assert len(said) == (found.findings.suppressed.stacks > 0)


def test_what_is_suppressed_is_added_up(tmp_path: Path) -> None:
    whole = watched(400.0)
    single = whole.findings.suspects[1].judgement
    found, lines = suppressed(tmp_path, "leak:record_request\n")
    held = int(whole.snapshot().totals.live_bytes[LEAK])
    assert found.findings.suppressed.live_bytes == held
    assert found.findings.suppressed.rate_bytes_per_min == single.rate_bytes_per_min
    rate = format_size(round(single.rate_bytes_per_min))
    assert f"==> suppressed 1 suspect stack: {rate}/min, {format_size(held)} live" in lines
    assert summary(found.snapshot())["suppressed"]["live_bytes"] == held
    assert summary(whole.snapshot())["suppressed"] is None
    # No rule sees it, and the totals are what they were.
    assert breach(parse_rule("leak > 50k/min"), found.snapshot()) is None
    assert found.snapshot().live_bytes == whole.snapshot().live_bytes


def test_part_of_a_group_is_suppressed(tmp_path: Path) -> None:
    whole = watched(400.0).findings.suspects[0]
    found, _ = suppressed(tmp_path, "leak:handle_00\nleak:handle_01\n")
    part = found.findings.suspects[0]
    gone = set(SESSIONS[:2])
    assert {m.stack for m in part.members} == set(SESSIONS) - gone
    lost = sum(m.rate_bytes_per_min for m in whole.members if m.stack in gone)
    rate = whole.judgement.rate_bytes_per_min - lost
    assert part.judgement.rate_bytes_per_min == pytest.approx(rate)
    assert sum(m.share for m in part.members) == pytest.approx(1)


@pytest.mark.parametrize("text", ["race:x\n", "leak:\n", "record_request\n"])
def test_what_is_no_suppression(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.supp"
    path.write_text(f"leak:ok\n{text}")
    with pytest.raises(UsageError, match=r"bad\.supp:2: .* is not a suppression"):
        Suppressions([path])
    with pytest.raises(TracellocError, match="cannot be read: No such file"):
        Suppressions([tmp_path / "none"])


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "script.py"
    path.write_text(f"import os, sys, time\n{text}\n")
    return [sys.executable, str(path)]


def give(command: LeakCommand, end_s: float) -> None:
    found = watched(end_s)
    command.queue_new_leaks(found.snapshot(), found.namer)


def test_the_command_has_no_bound_on_memory_of_ours(tmp_path: Path) -> None:
    found = tmp_path / "out"
    text = (
        "sys.stdin.readline(); import resource\n"
        f"open({str(found)!r}, 'w').write(repr(resource.getrlimit(resource.RLIMIT_DATA)))"
    )
    before = resource.getrlimit(resource.RLIMIT_DATA)
    command = LeakCommand(script(tmp_path, text), print, PATIENCE_S)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, before[1]))
    try:
        give(command, 400.0)
        command.close()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert found.read_text() == repr(before)


def test_the_command_is_run_once_for_each_leak(tmp_path: Path) -> None:
    target = tmp_path / "out"
    text = f"data = sys.stdin.read()\nopen({str(target)!r}, 'a').write(data)"
    command = LeakCommand(script(tmp_path, text), print, PATIENCE_S)
    for end_s in (100.0, 200.0, 400.0, 400.0, 400.0):
        give(command, end_s)
    command.close()
    reports = [json.loads(line) for line in target.read_text().splitlines()]
    # One was sure at 200 s, the other one later.
    assert [r["suspect"]["stack"][0]["symbol"] for r in reports] == [
        "record_request", "session_new",
    ]  # fmt: skip
    assert {r["suspect"]["verdict"] for r in reports} == {"leaking"}
    assert {r["pid"] for r in reports} == {42}
    assert reports[1]["elapsed_s"] == 400.0


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    pids, said = tmp_path / "pids", list[str]()
    text = f"os.fork()\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)"
    command = LeakCommand(script(tmp_path, text), said.append, 3.0)
    began = time.monotonic()
    give(command, 200.0)
    assert time.monotonic() - began < PATIENCE_S / 2, "nobody waits for it"
    wait_until(lambda: bool(said))
    assert "took more than 3 s and was killed" in said[0]
    command.close()
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not _runs(pid))


def _runs(pid: int) -> bool:
    """Orphans may stay zombies where nobody waits for them."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_goes_wrong_with_a_command_is_said(tmp_path: Path) -> None:
    for words, expected in (
        (script(tmp_path, "sys.exit(7)"), "ended with status 7"),
        ([str(tmp_path / "none")], "none: No such file or directory"),
    ):
        said: list[str] = []
        command = LeakCommand(words, said.append, PATIENCE_S)
        give(command, 200.0)
        command.close()
        assert len(said) == 1
        assert expected in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")
@pytest.mark.parametrize("is_caller", [True, False])
def test_whose_rights_the_command_has(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], is_caller: bool
) -> None:
    """Under sudo the caller's, and neither tracelloc's variables nor sudo's."""
    for name, value in (
        ("SUDO_UID", "65534"), ("SUDO_GID", "65534"), ("SUDO_USER", "nobody"), ("HOME", "/root"),
        ("TRACELLOC_PUSH_PASSWORD", "secret"), ("KEPT", "kept"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    code = (
        "import json, os, sys; sys.stdin.read(); words = [os.getresuid(), os.getresgid()]"
        "; words += sorted(name for name in os.environ if 'TRACELLOC' in name or 'SUDO' in name)"
        "; words += [os.getgroups(), os.environ['HOME'], os.environ['KEPT']]"
        "; words += [line for line in open('/proc/self/status') if line.startswith('CapEff')]"
        "; print(json.dumps(words))"
    )
    said: list[str] = []
    who = invoker() if is_caller else effective_user()
    command = LeakCommand(["/usr/bin/python3", "-c", code], said.append, PATIENCE_S, who)
    give(command, 200.0)
    command.close()
    found = json.loads(capfd.readouterr().err)
    assert said == []
    if is_caller:
        home = pwd.getpwuid(65534).pw_dir
        ids = [65534, 65534, 65534]
        assert found == [ids, ids, [65534], home, "kept", "CapEff:\t0000000000000000\n"]
    else:
        assert found[:2] == [[0, 0, 0], [0, 0, 0]]
        # Root's own environment keeps what says who called sudo.
        assert found[2:5] == ["SUDO_GID", "SUDO_UID", "SUDO_USER"]
        assert found[6:-1] == ["/root", "kept"]
