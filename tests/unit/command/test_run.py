"""A run's consumers: reports, rules, files and the endpoint are about one moment."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.options import parse_options
from tests.unit.events import A
from tests.unit.stage import Stage, Stages
from tracelloc.command import run as run_module
from tracelloc.command.outputs import Messages
from tracelloc.command.reports import Reports
from tracelloc.command.run import HURRY_PATIENCE_S, LAST_PATIENCE_S, Run
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.record.symbolization.symbolizer import SourceMap, Symbolizer, Symbolizers
from tracelloc.show.alerts.watching import Watch
from tracelloc.show.filters import Filters
from tracelloc.show.presentation import naming
from tracelloc.show.presentation.naming import Namer, Namers
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot


@contextmanager
def running(play: Stage, *arguments: str) -> Iterator[tuple[Run, list[TraceSnapshot], list[str]]]:
    """A run on a stage, the snapshots it takes, and what it says."""
    options = parse_options(["-p", "1", *arguments])
    said: list[str] = []
    messages = Messages()
    messages.say = said.append  # type: ignore[method-assign]
    symbolizers = Symbolizers(
        lambda number: play.session.processes.tracee_of(number).space, SourceMap(())
    )
    namers = Namers(symbolizers, Filters())
    watch = Watch(options.fail_if, options.on_leak, options.suppressions, said.append)
    run = Run(options, play.session, signals=None, messages=messages, namers=namers, watch=watch)
    taken: list[TraceSnapshot] = []
    snapshot = play.session.snapshot

    def counted(wanted: SnapshotRequest) -> TraceSnapshot:
        taken.append(snapshot(wanted))
        return taken[-1]

    play.session.snapshot = counted  # type: ignore[assignment, method-assign]
    try:
        yield run, taken, said
    finally:
        symbolizers.close()
        watch.close()


def front(monkeypatch: Any, tmp_path: Path) -> tuple[Reports, io.BytesIO]:
    reports = Reports(tmp_path / "report", has_stdout=True, began_s=0.0)
    stream = io.BytesIO()
    monkeypatch.setattr(reports, "_stream", stream)
    return reports, stream


def test_report_and_rules_see_one_snapshot(stage: Stages, monkeypatch: Any, tmp_path: Path) -> None:
    """What breaks a rule stands in the report of that moment, for each process."""
    play = stage()
    child = play.child()
    play.play(play.image(child), (A, 16, 5000, 1, child))
    with running(play, "--json", "--follow", "--fail-if", "live > 4k") as (run, taken, _):
        reports, stream = front(monkeypatch, tmp_path)
        assert reports._tick(run), "the rule is broken"
        assert len(taken) == 1
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert [(line["pid"], line["live_bytes"]) for line in lines] == [
            (play.root, 0), (child, 5000), (None, 5000)
        ]  # fmt: skip
        assert len({line["time"] for line in lines}) == 1
        assert run.watch.broken == f"live > 4.00 KiB (4.88 KiB) in process {child}"


def test_names_of_the_first_report_are_looked_up_ahead(
    stage: Stages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Names of the largest stacks; nobody waits for them."""
    play = stage()
    play.play(play.image(play.root), (A, 16, 700, 1, 7), (A, 32, 900, 2, 7), (A, 48, 8, 3, 7))
    asked: list[tuple[list[int], float | None]] = []

    def prepare(self: Namer, one: Snapshot, indices: list[int], timeout_s: float | None) -> bool:
        asked.append(([one.stack_stats([index])[0].live_bytes for index in indices], timeout_s))
        return False

    monkeypatch.setattr(Namer, "prepare", prepare)
    for mode in ("--json", "--push=http://x"):
        with running(play, mode, "--top", "2") as (run, _, _):
            reports, stream = front(monkeypatch, tmp_path)
            reports._look_up_ahead(run)
            assert stream.getvalue() == b""
    assert asked == [([900, 700], 0.0)]


def test_names_that_the_last_report_lacks_are_counted(
    stage: Stages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All processes are asked before any is waited for."""
    play = stage()
    play.play(play.image(play.root), (A, 16, 700, 1, 7))
    child = play.child()
    asked: list[tuple[int, float | None]] = []

    def prepare(_: Namer, one: Snapshot, _indices: object, timeout_s: float | None) -> bool:
        asked.append((one.target.pid, timeout_s))
        return False

    monkeypatch.setattr(Namer, "prepare", prepare)
    monkeypatch.setattr(Symbolizer, "waiting", 1234)
    with running(play, "--json", "--follow") as (run, _, said):
        reports, _ = front(monkeypatch, tmp_path)
        run.finish(reports)
    assert asked[:2] == [(play.root, 0.0), (child, 0.0)]
    assert [pid for pid, left_s in asked if left_s] == [play.root, child, play.root, child]
    assert said == [
        "the last report lacks names or lines of 2,468 addresses: no time was left to look them up"
    ]


def test_files_hold_what_the_report_says(stage: Stages, monkeypatch: Any, tmp_path: Path) -> None:
    """The last report, the files and the rules: one snapshot, with all processes."""
    play = stage()
    play.play(play.image(play.root), (A, 16, 700, 1, 7))
    play.session.ended(play.child(), 0)
    out = tmp_path / "out.folded"
    with running(play, "--json", "--follow", "-o", str(out)) as (run, taken, said):
        reports, stream = front(monkeypatch, tmp_path)
        run.finish(reports)
        assert len(taken) == 1
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["live_bytes"] for line in lines] == [700, 700, 1400]
    assert [line.get("ended") for line in lines] == [False, True, None]
    assert sum(int(line.rpartition(" ")[2]) for line in out.read_text().splitlines()) == 1400
    assert said == [f"wrote {out}"]


def test_who_asks_over_the_network_gets_recent_snapshots(stage: Stages) -> None:
    """Many ask at once; but when tracing has ended, what was before is not recent."""
    with running(stage()) as (run, taken, _):
        first = run.snapshots.recent()
        assert run.snapshots.recent() is first
        run.snapshot()
        assert len(taken) == 2
        run.snapshots.expire()
        assert run.snapshots.recent() is not first


class SlowNames:
    """Symbols that take for ever, on a clock of its own, which they move on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.waits = 0
        monkeypatch.setattr(naming, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(Symbolizer, "prepare", self.prepare)
        monkeypatch.setattr(Symbolizer, "_work", lambda _: None)

    def prepare(self, _addresses: object, timeout_s: float | None = None) -> bool:
        """Waits in vain."""
        self.waits += 1
        assert self.waits < 1000, "nobody gives up"
        assert timeout_s is not None, "somebody would wait for ever"
        self.now_s += timeout_s
        return False


@pytest.mark.parametrize(
    ("arguments", "most_s"),
    [(("--interval", "1"), 0.5), (("--interval", "60"), 2.0), (("--count", "1"), 4.0)],
    ids=str,
)
def test_reports_are_in_time_without_names(
    stage: Stages,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    most_s: float,
) -> None:
    """However many processes there are; rules are looked at each time."""
    play = stage()
    for number in range(5):
        play.play(play.image(play.root), (A, 16 + 16 * number, 700, 1, 7))
        play.fork(play.image(play.root), 7)
        play.child()
    names = SlowNames(monkeypatch)
    with running(play, "--follow", "--fail-if", "live > 1k", *arguments) as (run, _, _):
        reports, stream = front(monkeypatch, tmp_path)
        start_s = names.now_s
        assert reports._tick(run)
        assert names.now_s - start_s <= most_s
        assert run.watch.broken is not None
    assert "naming…" in stream.getvalue().decode()


@pytest.mark.parametrize("has_ended", [False, True])
def test_ends_are_quick_without_names(
    stage: Stages, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_ended: bool
) -> None:
    """Files hold what is known. A program that has ended by itself keeps nobody waiting."""
    play = stage()
    play.play(play.image(play.root), (A, 16, 700, 1, 7))
    if has_ended:
        monkeypatch.setattr(run_module.select, "select", lambda ready, *_: (ready, [], []))
    names, out = SlowNames(monkeypatch), tmp_path / "out.folded"
    with running(play, "--text", "-o", str(out)) as (run, _, said):
        reports, _ = front(monkeypatch, tmp_path)
        start_s = names.now_s
        run.finish(reports)
        assert names.now_s - start_s == (LAST_PATIENCE_S if has_ended else HURRY_PATIENCE_S)
    assert out.read_text().rpartition(" ")[2] == "700\n"
    assert said[-2:] == ["no time left for names: 1 still to be looked up", f"wrote {out}"]
