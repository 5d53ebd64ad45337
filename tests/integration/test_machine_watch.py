"""``watch``: a leak in a group that the kernel kills, restarts, and Debian's own Prometheus."""

import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.commands import mounted, run
from tests.harness import PATIENCE_S, Builder, Target, tracelloc_command, wait_until
from tests.integration.test_groups import ControlGroup
from tests.schema import Schema
from tests.unit.test_docs import DOCS

pytestmark = [pytest.mark.bpf, pytest.mark.long]

MIB = 1 << 20
SIZE = 4000
LIMIT = 48 * MIB


class Watcher:
    """A running ``tracelloc watch``, and its log."""

    def __init__(self, directory: Path, *lines: str) -> None:
        self.files = directory / "files"
        config, self.out = directory / "watch.toml", directory / f"log-{time.monotonic_ns()}"
        config.write_text(f'interval = "100ms"\ndirectory = "{self.files}"\n' + "\n".join(lines))
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                tracelloc_command("watch", "--config", config),
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def text(self) -> str:
        return self.out.read_text()

    def wait_for(self, words: str) -> str:
        """The first line with these words."""
        return wait_until(lambda: re.search(f".*{re.escape(words)}.*\n", self.text()))[0]

    def recording(self) -> Path | None:
        """The file that is being recorded to, once it has a snapshot."""
        for path in self.files.glob("*.rec"):
            with (
                suppress(sqlite3.Error),
                closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as file,
            ):
                if file.execute("SELECT count(*) FROM moments").fetchone()[0]:
                    return path
        return None

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    made = ControlGroup()
    made.limit(LIMIT)
    yield made
    wait_until(lambda: not (made.path / "cgroup.procs").read_text())
    made.remove()


@pytest.fixture
def shop(builder: Builder, group: ControlGroup) -> Iterator[Target]:
    target = Target([builder.c("lineage")])
    group.take(target.pid)
    yield target
    target.kill()


def target_of(group: ControlGroup, *lines: str) -> str:
    return "\n".join(["[[target]]", 'name = "shop"', f'group = "{group.id[:12]}"', *lines])


def test_a_killed_process_is_explained(group: ControlGroup, shop: Target, tmp_path: Path) -> None:
    """Its heap is walked and it is recorded; the recording has every block up to its end."""
    hook = shutil.which("tee")
    watcher = Watcher(
        tmp_path,
        target_of(
            group, 'rules = ["memory > 25 %"]', 'actions = ["heap", "record", "hook"]',
            f'hook = "{hook} {tmp_path}/hook"', 'record_for = "60s"', 'max_overhead = "none"',
        ),
    )  # fmt: skip
    try:
        watcher.wait_for("watched=1")
        assert json.loads(shop.ask(f"alloc 4000 {SIZE}")) == [4000, 4000 * SIZE]
        assert watcher.wait_for("event=rule").endswith(f"pid={shop.pid}\n")
        recording = wait_until(watcher.recording)
        assert json.loads(shop.ask(f"alloc 3000 {SIZE}")) == [7000, 7000 * SIZE]
        shop.say(f"alloc 20000 {SIZE}")
        line = watcher.wait_for("event=killed")
        hooked = json.loads(wait_until((tmp_path / "hook").read_text))
    finally:
        watcher.kill()
    assert watcher.text().count("event=rule") == watcher.text().count("event=killed") == 1
    assert "event=failed" not in watcher.text()
    assert f"pid={shop.pid} leaking=0 growing=" in watcher.wait_for("event=recorded")
    (path,) = watcher.files.glob("*.killed.json")
    told = json.loads(path.read_text())
    assert [victim["pid"] for victim in told["victims"]] == [shop.pid]
    (stack,) = told["stacks"]
    assert stack["stack"][0]["symbol"] == "keep"
    assert stack["bytes"] % SIZE == 0
    assert 3000 * SIZE <= stack["bytes"] < LIMIT - 4000 * SIZE
    assert 'text="killed by the kernel at ' in line
    assert re.search(r"1 call stack held \d\d %, blocks from before the recording \d\d %", line)
    assert ", like those of keep" in line
    assert 'stack1="' in line
    assert "lineage.c:" in line
    assert f"recording={recording}" in line
    (walk,) = watcher.files.glob("*.heap.txt")
    assert "4,0" in walk.read_text()
    Schema().check(hooked, "watch_hook")
    assert hooked["files"] == {"heap": str(walk), "record": str(recording)}
    assert [each["pid"] for each in hooked["processes"]] == [shop.pid]
    for file in watcher.files.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_restarts(builder: Builder, group: ControlGroup, shop: Target, tmp_path: Path) -> None:
    """A rule is not broken again while it is cooling down; what ran is ended in order."""
    rule = target_of(
        group, 'rules = ["memory > 1 MiB"]', 'actions = ["record"]', 'max_overhead = "none"'
    )
    shop.ask(f"alloc 1000 {SIZE}")
    watcher = Watcher(tmp_path, rule)
    try:
        watcher.wait_for("event=rule")
        recording = wait_until(watcher.recording)
        watcher.stop()
    finally:
        watcher.kill()
    assert "event=failed" not in watcher.text()
    assert not recording.with_name(f"{recording.name}-wal").exists()
    # The kernel kills it while nobody watches.
    shop.say(f"alloc 20000 {SIZE}")
    wait_until(lambda: not (group.path / "cgroup.procs").read_text())
    # One that breaks the rule, too.
    other = Target([builder.c("lineage")])
    group.take(other.pid)
    other.ask(f"alloc 1000 {SIZE}")
    again = Watcher(tmp_path, rule)
    try:
        line = again.wait_for("event=killed")
        again.stop()
    finally:
        again.kill()
        other.kill()
    assert f"recording={recording}" in line
    assert re.search(r"blocks from before the recording held \d+ %", line)
    assert "event=rule" not in again.text()


def test_full_disk(group: ControlGroup, shop: Target, tmp_path: Path) -> None:
    """A failed write is reported once; the watch continues, and writes when there is space."""
    with mounted(tmp_path / "files", "size=64k,mode=700") as files:
        filler, state = files / "filler", files / "state.json"
        with suppress(OSError), filler.open("wb", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass
        shop.ask(f"alloc 1000 {SIZE}")
        watcher = Watcher(tmp_path, target_of(group, 'rules = ["memory > 1 MiB"]'))
        try:
            said = watcher.wait_for("event=failed action=state")
            assert 'error="No space left on device"' in said
            assert "No space left on device" in watcher.wait_for("event=failed action=heap")
            filler.unlink()
            assert json.loads(wait_until(lambda: state.exists() and state.read_text()))["broken"]
            watcher.stop()
        finally:
            watcher.kill()
        assert watcher.text().count("action=state") == 1


def test_an_end_by_sigkill(group: ControlGroup, shop: Target, tmp_path: Path) -> None:
    """What records goes on to its end, and what watches next does not record it again."""
    rule = target_of(
        group, 'rules = ["memory > 1 MiB"]', 'actions = ["record"]', 'record_for = "5s"'
    )
    shop.ask(f"alloc 1000 {SIZE}")
    watcher = Watcher(tmp_path, rule)
    try:
        recording = wait_until(watcher.recording)
    finally:
        watcher.kill()
    again = Watcher(tmp_path, rule)
    try:
        again.wait_for("watched=1")
        wait_until(lambda: not recording.with_name(f"{recording.name}-wal").exists())
        run(*tracelloc_command("report", recording))
        again.stop()
    finally:
        again.kill()
    assert "event=rule" not in again.text()
    assert [path.name for path in again.files.glob("*.rec")] == [recording.name]


@pytest.mark.nightly
def test_prometheus(group: ControlGroup, shop: Target, tmp_path: Path) -> None:
    """It scrapes, and the shipped alert fires for the group that is nearly full."""
    alerts = DOCS / "files" / "prometheus-alerts.yml"
    run("promtool", "check", "rules", alerts)
    ports = [free_port(), free_port()]
    watcher = Watcher(tmp_path, f'listen = "127.0.0.1:{ports[0]}"')
    rules = tmp_path / "alerts.yml"
    rules.write_text(re.sub(r"for: \d+m", "for: 1s", alerts.read_text()))
    (tmp_path / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [{
            "job_name": "tracelloc",
            "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}],
        }],
    }))  # fmt: skip
    watcher.wait_for("event=listening")
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=10).read()
    subprocess.run(["promtool", "check", "metrics"], input=metrics, check=True)
    server = subprocess.Popen(
        [
            "prometheus", f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{ports[1]}",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def asked(path: str) -> Any:
        try:
            url = f"http://127.0.0.1:{ports[1]}/api/v1/{path}"
            with urllib.request.urlopen(url, timeout=10) as stream:
                return json.load(stream)["data"]
        except OSError:
            return None

    def firing() -> dict[str, Any]:
        found = asked("alerts") or {"alerts": []}
        return {
            alert["labels"]["alertname"]: alert
            for alert in found["alerts"]
            if alert["state"] == "firing" and group.id[:12] in alert["labels"].get("group", "")
        }

    try:
        wait_until(lambda: (asked("query?query=tracelloc_processes") or {}).get("result"))
        assert firing() == {}
        shop.ask(f"alloc 11500 {SIZE}")
        alert = wait_until(lambda: firing().get("GroupNearMemoryLimit"))
        assert alert["labels"]["group"] == f"container {group.id[:12]}"
        assert 0 < float(alert["value"]) < 0.1
        (target,) = asked("targets")["activeTargets"]
        assert target["health"] == "up"
        watcher.stop()
    finally:
        server.kill()
        server.wait()
        watcher.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
