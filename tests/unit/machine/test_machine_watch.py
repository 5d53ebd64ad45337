"""Rules on a machine's memory, kills by the kernel, and metrics: without running anything."""

import json
import os
import re
import sys
from dataclasses import fields
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.commands import outcome
from tests.harness import wait_until
from tests.unit.machine.test_machine import Machine, machine
from tests.unit.test_docs import DOCS
from tracelloc.command.subcommands.watch import _EXAMPLES
from tracelloc.errors import UsageError
from tracelloc.machine import killreports, machinewatch
from tracelloc.machine.killreports import KillWatch, group_kills, machine_kills, memory_pressure
from tracelloc.machine.machinerules import (
    MachineRule,
    RuleBook,
    Subject,
    WatchConfig,
    WatchTarget,
    parse_machine_rule,
    parse_watch_config,
    subjects_of,
)
from tracelloc.machine.machinewatch import LargestNames, MachineMetrics, MachineWatch
from tracelloc.machine.watchjobs import KILL_SUFFIX, WatchFiles
from tracelloc.show.publish.endpoint import metrics_text

__all__ = ["machine"]

FILES = DOCS / "files"
ID = "3f2a90d1c0de" + 52 * "0"
TARGET = '[[target]]\nname = "a"\nprocess = "b"\nrules = ["memory > 1"]\n'


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("memory > 80 %", ("memory", 0.8, True, 0)),
        ("memory>2 GiB for 30s", ("memory", 2 << 30, False, 30)),
        ("growth > 5 MiB/min for 10m", ("growth", 5 << 20, False, 600)),
        ("pressure > 10%", ("pressure", 0.1, True, 0)),
    ],
)
def test_rules(text: str, rule: tuple[str, float, bool, float]) -> None:
    assert parse_machine_rule(text) == MachineRule(text, *rule)


@pytest.mark.parametrize(
    "text",
    [
        "", "memory", "memory >", "memory > for 5m", "memory > 5MiB/min", "growth > 5MiB",
        "growth > 5 %/min", "pressure > 1GiB", "rss > 1GiB", "memory > 5 MiB for ever",
        "memory < 1GiB",
    ],
)  # fmt: skip
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (valid rule|duration)"):
        parse_machine_rule(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = ", "w.toml:1: this is not TOML"),
        ("intervall = '1s'", "w.toml:1: unknown key 'intervall'; did you mean 'interval'?"),
        ("\ninterval = 5", "w.toml:2: interval: a string is required"),
        ("interval = '10ms'", "w.toml:1: interval: at least 100ms is required"),
        ("directory = 'x'", "w.toml:1: directory: 'x' is not an absolute path"),
        ("max_running = 0", "w.toml:1: max_running: a number from 1 to 64 is required"),
        ("listen = 'x:y'", "w.toml:1: listen: 'x:y' is not [HOST:]PORT"),
        ("max_disk = '8MiB'", "w.toml: max_recording is above max_disk"),
        ("target = 1", "w.toml:1: target must be written as [[target]]"),
        (TARGET + "rule = 1", "w.toml:5: target 1: unknown key 'rule'; did you mean 'rules'?"),
        (TARGET + "actions = ['trace']", "w.toml:5: target 1: actions: 'trace' is not an action"),
        (TARGET + "actions = ['push']", "w.toml:1: target 1: push is needed both as a key and in"),
        (TARGET + "hook = 'a'", "w.toml:5: target 1: hook is needed both as a key and in actions"),
        (TARGET + "group = 'a'", "w.toml:5: target 1: either process or group is required"),
        (TARGET + "max_overhead = '0'", "w.toml:5: target 1: max_overhead: between 0.1% and"),
        (TARGET + TARGET, "w.toml:6: target 2: there are two targets 'a'"),
        (TARGET.replace('"a"', '"a/b"'), "w.toml:2: target 1: name: 'a/b' has characters"),
        (TARGET.replace("memory >", "memory"), "w.toml:4: target 1: rules: 'memory 1' is not a"),
        ("[[target]]\nname = 'a'", "w.toml:1: target 1: rules is missing"),
    ],
)
def test_errors_name_the_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        parse_watch_config(text, "w.toml")
    assert "\n" not in str(error.value)


def config_of(*targets: str) -> WatchConfig:
    return parse_watch_config("\n".join(f"[[target]]\n{each}" for each in targets), "w.toml")


def test_rules_and_targets(machine: Machine) -> None:
    config = config_of(
        "name='a'\nprocess='b*'\nrules=['memory > 1']\nactions=['hook','record','heap']\n"
        "hook='page \"the shop\"'\nmax_overhead='none'\ncool_down='2m'"
    )
    (target,) = config.target
    assert target.actions == ("heap", "record", "hook")
    assert target.hook == ("page", "the shop")
    assert (target.max_overhead, target.cool_down, target.record_for) == ("", 120, 300)
    assert config.max_running == 1
    group = machine.groups / f"docker-{ID}.scope"
    (group / "inner").mkdir(parents=True)
    for directory, used in ((group, 800 << 10), (group / "inner", 300 << 10)):
        (directory / "memory.current").write_text(str(used))
        (directory / "memory.stat").write_text(f"inactive_file {100 << 10}\n")
    (group / "memory.max").write_text(str(1000 << 10))
    machine.set(7, "shopd", f"/docker-{ID}.scope/inner", anonymous=400)
    machine.set(8, "shopd", f"/docker-{ID}.scope", anonymous=500)
    machine.set(9, "other", "/", anonymous=1024)
    config = config_of(
        "name='one'\ngroup='3f2a90d1c0de'\nrules=['memory > 60 %']",
        f"name='path'\ngroup='/docker-{ID[:4]}*'\nrules=['memory > 900 KiB']",
        "name='all'\nprocess='*'\nrules=['memory > 45 %']",
        "name='none'\ngroup='x.service'\nrules=['memory > 1']",
    )
    found = list(subjects_of(machine.look(), config.target))
    # 800 KiB, of which the kernel can drop 100, of 1000; of the limit above, or of 4 MiB.
    container = "container 3f2a90d1c0de"
    assert sorted((each.target.name, each.name, each.used_share) for each in found) == [
        ("all", "other", 0.25), ("all", "shopd", 0.4), ("all", "shopd", 0.5),
        ("one", container, 0.7), ("path", container, 0.7),
    ]  # fmt: skip
    assert [process.pid for process in found[0].processes] == [8, 7]
    breaches = RuleBook(config, lambda _path: None).check(found, 0.0)
    assert [(each.subject.target.name, each.figure) for each in breaches] == [
        ("one", "70 %"), ("all", "50 %"),
    ]  # fmt: skip


def test_rules_hold_for_as_long_as_they_say(machine: Machine) -> None:
    """Growth, pressure, and that the time begins again after a pause."""
    config = config_of(
        "name='a'\nprocess='server'\nrules=['growth > 1 MiB/min for 1m', 'pressure > 30 %']"
    )
    pressures = {20: 0.31}
    book = RuleBook(config, lambda _path: pressures.get(round(machine.now_s) - 1000, 0.1))
    fired = []
    size = 0
    for second in range(0, 300, 10):
        size += 0 if second == 60 else 512
        machine.set(7, anonymous=size)
        subjects = list(subjects_of(machine.look(10 if second else 0), config.target))
        fired += [(second, b.rule.quantity) for b in book.check(subjects, machine.now_s)]
    # Growth is known after ten seconds, and 3 MiB a minute but for one look.
    assert fired[0] == (20, "pressure")
    assert fired[1] == (70, "growth")
    assert [each for each in fired[2:] if each[1] != "growth"] == []


def test_actions_wait(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """For memory, for the next hour, and not for ever after the clock was set back."""
    now_s = [1e9]
    monkeypatch.setattr(machinewatch.time, "time", lambda: now_s[0])
    text = f"directory='{tmp_path}'\nmax_per_hour=2\n" + "".join(
        f"[[target]]\nname='{name}'\nprocess='{name}'\nrules=['memory > 1']\ncool_down='60s'\n"
        f"actions={how}\n"
        for name, how in (("two", "['record']"), ("one", "['hook']\nhook='true'"))
    )
    watcher = MachineWatch(parse_watch_config(text, "w.toml"), machine.reader)
    machine.set(7, "one", anonymous=1000)
    machine.set(8, "two", anonymous=1000)

    def events(after_s: float) -> list[tuple[str, str]]:
        wait_until(lambda: not watcher._jobs.running_count)
        now_s[0] += after_s
        watcher.check_machine()
        lines = [line for line in capsys.readouterr().out.splitlines() if "event=" in line]
        return [re.search(r"target=(\w+) event=(\w+)", line).groups() for line in lines]

    try:
        assert events(0) == [("two", "postponed"), ("one", "rule")]  # 1 of 512 MiB is available
        assert events(60) == [("one", "rule")]
        assert events(60) == [("two", "postponed"), ("one", "postponed")]
        assert events(60) == []
        assert events(3600) == [("two", "postponed"), ("one", "rule")]
        assert events(-1e6) == []
        assert events(60) == [("one", "rule")]
    finally:
        watcher.close()


@pytest.mark.parametrize("version_1", [False, True])
def test_kills_and_pressure_are_read(tmp_path: Path, version_1: bool) -> None:
    groups, proc = tmp_path / "groups", tmp_path / "proc"
    (proc / "pressure").mkdir(parents=True)
    (proc / "vmstat").write_text("oom_kill 7\n")
    (proc / "pressure/memory").write_text("some avg10=9.00 avg60=1.50 avg300=0.00 total=5\n")
    inner = groups / ("memory" if version_1 else "") / "a" / "b"
    inner.mkdir(parents=True)
    if version_1:
        (inner / "memory.oom_control").write_text("under_oom 0\noom_kill 2\n")
        (inner.parent / "memory.oom_control").write_text("under_oom 0\noom_kill 1\n")
        (groups / "memory/memory.oom_control").write_text("under_oom 0\noom_kill 9\n")
    else:
        (inner.parent / "memory.events").write_text("oom 4\noom_kill 3\n")
        (inner.parent / "memory.pressure").write_text("some avg10=0.00 avg60=25.00 avg300=0\n")
    assert group_kills("/a", groups) == 3
    assert group_kills("/gone", groups) is None
    assert group_kills("/", groups) == (9 if version_1 else None)
    assert machine_kills(proc) == 7
    assert memory_pressure("/a", groups, proc) == (0.015 if version_1 else 0.25)
    assert memory_pressure("/a", groups, tmp_path) == (None if version_1 else 0.25)


GROUP = "name='g'\ngroup='x.service'\nrules=['memory > 1GiB']"
PROCESS = "name='p'\nprocess='b'\nrules=['memory > 1GiB']"


class Scene:
    """Three processes in one group, looked at again and again."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, *targets: str) -> None:
        self.machine, self.config = machine, config_of(*targets)
        self.total, self.of_groups = 0, {"/x.service": 3}
        monkeypatch.setattr(killreports, "machine_kills", lambda: self.total)
        monkeypatch.setattr(killreports, "group_kills", self.of_groups.get)
        (machine.groups / "x.service").mkdir()
        (machine.groups / "x.service/memory.current").write_text("5")
        for pid, name in ((7, "a"), (8, "b"), (9, "b")):
            machine.set(pid, name, "/x.service", anonymous=pid)
        self.kills = KillWatch({})

    def kill(self, path: str = "/x.service") -> None:
        """The kernel counts it."""
        self.total += 1
        self.of_groups[path] = self.of_groups.get(path, 0) + 1

    def end(self, pid: int) -> None:
        (self.machine.proc / f"{pid}/statm").write_text("")

    def look(self) -> list[tuple[str, list[int], int]]:
        found = self.machine.look(1)
        subjects: list[Subject] = list(subjects_of(found, self.config.target))
        return [
            (kill.subject.target.name, [one.pid for one in kill.victims], kill.count)
            for kill in self.kills.take_kills(subjects, found)
        ]


def test_kills_are_told_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The victim is in /proc for a while after the kernel has counted it."""
    scene = Scene(machine, monkeypatch, GROUP, PROCESS)
    assert [scene.look(), scene.look()] == [[], []]
    scene.kill()
    assert scene.look() == []
    scene.end(8)
    assert scene.look() == [("g", [8], 1), ("p", [8], 1)]
    assert [scene.look() for _ in range(4)] == [[]] * 4
    # Another one ends by itself, and one is killed elsewhere.
    scene.end(9)
    scene.kill("/y")
    assert [scene.look() for _ in range(4)] == [[]] * 4


def test_a_group_that_goes_with_its_processes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container ends when its first process is killed."""
    scene = Scene(machine, monkeypatch, GROUP)
    scene.look()
    scene.kill()
    del scene.of_groups["/x.service"]
    for pid in (7, 8, 9):
        scene.end(pid)
    ((name, victims, count),) = scene.look()
    assert (name, len(victims), count) == ("g", 1, 1)
    assert scene.look() == []


def test_kills_while_nobody_watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The victim came and went between two looks: the group's target tells it all the same."""
    scene = Scene(machine, monkeypatch, GROUP, PROCESS)
    scene.look()
    scene.kill()
    assert scene.kills.counts == {"/x.service": 3}
    scene.kills = KillWatch(scene.kills.counts)
    assert [scene.look() for _ in range(4)] == [[], [], [("g", [], 1)], []]


def test_the_oldest_files_make_room(tmp_path: Path) -> None:
    files = WatchFiles(WatchConfig(directory=tmp_path / "new", max_disk=10_000))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    names = [
        *(f"{name}-77-20261126-034902{suffix}" for name, suffix in (
            ("a", ".rec"), ("b", KILL_SUFFIX), ("c", ".rec"), ("d", ".heap.txt"), ("e", ".rec"),
        )),
        "mine.rec",
    ]  # fmt: skip
    for age, name in enumerate(names):
        (tmp_path / "new" / name).write_bytes(bytes(2000))
        os.utime(tmp_path / "new" / name, (age, age))

    def left() -> str:
        return "".join(sorted(path.name[0] for path in (tmp_path / "new").iterdir()))

    kept = [str(tmp_path / "new" / names[0])]
    files.make_room(0, kept)
    assert left() == "abcdem"
    files.make_room(1000, kept)
    assert left() == "abdem"
    files.make_room(6000, kept)
    assert left() == "abm"
    files.make_room(8000, kept)
    assert left() == "bm"
    tmp_path.chmod(0o777)
    with pytest.raises(OSError, match="others may write to it"):
        WatchFiles(WatchConfig(directory=tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o777


def test_names_with_series_stay_and_metrics(machine: Machine) -> None:
    names = LargestNames(2)
    assert names.choose({"a": 5, "b": 4, "c": 3, "d": 2, "e": 1}) == {"a", "b"}
    assert names.choose({"a": 2, "b": 3, "c": 4, "d": 5, "e": 1}) == {"a", "b"}
    assert names.choose({"a": 0, "b": 3, "c": 4, "d": 5, "e": 1}) == {"b", "d"}
    assert names.choose({"c": 4}) == {"c"}
    # The others are summed, and names that processes choose are harmless.
    for number in range(25):
        machine.set(100 + number, f"command{number}", anonymous=100 + number)
    machine.set(200, 'x"}\\n 1', anonymous=5000)
    for path in (f"docker-{ID}.scope", f"docker-{ID}.scope/container"):
        (machine.groups / path).mkdir()
        (machine.groups / path / "memory.current").write_text(str(900 + len(path)))
    (machine.groups / f"docker-{ID}.scope/memory.max").write_text("4096")
    machine.set(201, "in", f"/docker-{ID}.scope/container", anonymous=1)
    lines = MachineMetrics().lines(
        machine.look(), {"rules": {"shop": 2}, "kills": {"shop": 0}, "leaking": {"shop": 3}}
    )
    text = metrics_text(lines)
    figures: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = next(iter(sample.labels.values()))
            figures.setdefault(sample.name, {})[label] = sample.value
    memory = figures["tracelloc_process_memory_bytes"]
    assert len(memory) == 21
    assert memory['x"}\\n 1'] == 5000 << 10
    # The 19 largest of the others have series of their own.
    assert memory["(others)"] == (sum(range(100, 106)) + 1) << 10
    assert figures["tracelloc_processes"]["(others)"] == 7
    assert sum(figures["tracelloc_processes"].values()) == 27
    name = "container 3f2a90d1c0de"
    used = 900 + len(f"docker-{ID}.scope/container")
    assert figures["tracelloc_group_memory_bytes"] == {name: used}
    assert figures["tracelloc_rules_broken_total"] == {"shop": 2}
    assert figures["tracelloc_memory_kills_total"] == {"shop": 0}
    assert figures["tracelloc_leaking_stacks"] == {"shop": 3}
    assert figures["tracelloc_machine_memory_bytes"]["available"] == 1 << 20


def test_shipped_files() -> None:
    """All can be printed; alert rules and the dashboard use metrics that there are."""
    example = (FILES / "watch.toml").read_text()
    parse_watch_config(example, "watch.toml")
    whole = re.sub("^# (?=push|hook)", "", example, flags=re.MULTILINE)
    whole = whole.replace('"record"]', '"record", "push", "hook"]')
    parse_watch_config(whole, "watch.toml")
    keys = {field.name for kind in (WatchConfig, WatchTarget) for field in fields(kind)}
    assert keys - {"target"} <= set(re.findall(r"^(\w+) = ", whole, re.MULTILINE))
    text = (DOCS / "watch.md").read_text()
    for example in _EXAMPLES:
        assert f"`tracelloc watch --example {example}`" in text or example == "config"
    dashboard = json.loads((FILES / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) == 6
    known = set(re.findall(r"`(tracelloc_\w+)`", text))
    for name in ("grafana-dashboard.json", "prometheus-alerts.yml"):
        used = set(re.findall(r"\btracelloc_\w+", (FILES / name).read_text()))
        assert used <= known
        assert len(used) > 4


def test_the_service_is_valid(tmp_path: Path) -> None:
    unit = (FILES / "tracelloc-watch.service").read_text()
    path = tmp_path / "tracelloc-watch.service"
    path.write_text(unit.replace("=tracelloc w", f'="{sys.executable}" -m tracelloc w'))
    done = outcome("systemd-analyze", "verify", "--man=no", path)
    assert done.returncode == 0
    assert "tracelloc-watch" not in done.stderr


def test_the_kubernetes_manifest() -> None:
    for path in FILES.glob("*.yaml"):
        for manifest in yaml.safe_load_all(path.read_text()):
            kubernetes_validate.validate(manifest, "1.31", strict=True)
    config, daemon = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())
    assert [config["kind"], daemon["kind"]] == ["ConfigMap", "DaemonSet"]
    given = parse_watch_config(config["data"]["watch.toml"], "watch.toml")
    pod = daemon["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert daemon["spec"]["selector"]["matchLabels"] == labels
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert container["ports"][0]["containerPort"] == given.listen.port
    named = {f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]}
    assert {"CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"} <= named
    assert {name for name in named if name not in (DOCS / "processes.md").read_text()} == {
        "CAP_SYS_ADMIN",
    }  # fmt: skip
