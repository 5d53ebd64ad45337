"""``watch``: checks the whole machine at intervals, and begins the actions of broken rules.

All expensive work runs in child processes (``watchjobs``). A small file keeps what must survive a
restart: when rules were broken, for cool-down, and the counters of killed processes.

A metrics database keeps each distinct series forever, so there are no PIDs in labels, and only the
largest names have series of their own. Other commands are summed; control groups are in each other,
so their sum would say nothing.
"""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from tracelloc.errors import TracellocError
from tracelloc.machine.killreports import KillReporter, KillWatch, memory_pressure
from tracelloc.machine.machinememory import GroupMemory, MachineMemory, by_growth
from tracelloc.machine.machinerules import Breach, RuleBook, Subject, WatchConfig, subjects_of
from tracelloc.machine.processes import ProcessReader
from tracelloc.machine.watchjobs import WatchFiles, WatchJobs
from tracelloc.record.process.procfs import boot_id
from tracelloc.show.publish.address import LISTEN_TOKEN, read_secret
from tracelloc.show.publish.endpoint import (
    Endpoint,
    family_lines,
    label_text,
    listen_on,
    metrics_text,
)
from tracelloc.show.report.suspects import event_line, signed_size_word, size_word
from tracelloc.startup import not_ignored

MOST_NAMES: Final = 20  # Commands, and control groups, that have series of their own
OTHERS: Final = "(others)"
_LONGEST_LABEL: Final = 100


# By target how often rules were broken ("rules") and processes killed for want of memory ("kills")
# since watching began, restarts included; and the leaking call stacks in the newest recording.
WatchCounts = Mapping[str, dict[str, int]]


class LargestNames:
    """Chooses the names that get series of their own; a chosen one stays while it is large."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._chosen: set[str] = set()

    def choose(self, sizes: Mapping[str, int]) -> set[str]:
        """Returns at most ``most`` names, mostly those with the largest sizes in bytes."""
        order = sorted(sizes, key=lambda name: (-sizes[name], name))
        stays = self._chosen.intersection(order[: 2 * self._most])
        free = self._most - len(stays)
        self._chosen = stays | set([name for name in order if name not in stays][:free])
        return self._chosen


class MachineMetrics:
    """Formats figures of a machine as metrics. For one thread at a time."""

    def __init__(self) -> None:
        self._commands, self._groups = LargestNames(), LargestNames()

    def lines(self, machine: MachineMemory, counts: WatchCounts) -> Iterator[str]:
        yield from _gauge("machine_memory_bytes", "state", "Memory of the machine", {
            "available": machine.available_bytes,
            "used": machine.total_bytes - machine.available_bytes,
            "swapped": machine.swap_used_bytes,
        })  # fmt: skip
        yield from self._processes(machine)
        yield from self._group_lines(machine)
        text = "Leaking call stacks in the newest recording"
        yield from _gauge("leaking_stacks", "target", text, counts["leaking"])
        for name, text, by_target in (
            ("rules_broken", "Rules that targets have broken", counts["rules"]),
            ("memory_kills", "Processes of targets killed when memory ran out", counts["kills"]),
        ):
            yield from family_lines(f"tracelloc_{name}", "counter", "", text)
            for target, count in by_target.items():
                yield f"tracelloc_{name}_total{label_text({'target': target})} {count}"

    def _processes(self, machine: MachineMemory) -> Iterator[str]:
        counts, sizes, rates = Counter[str](), Counter[str](), Counter[str]()
        for process in machine.processes:
            name = process.command[:_LONGEST_LABEL]
            counts[name] += 1
            sizes[name] += process.trend.size_bytes
            rates[name] += process.trend.rate
        chosen = self._commands.choose(sizes)
        for metric, text, figures in (
            ("processes", "Processes", counts),
            ("process_memory_bytes", "Memory of processes, swapped out included", sizes),
            ("process_growth_bytes_per_min", "Growth of processes per minute", rates),
        ):
            shown = Counter[str]()
            for name, figure in figures.items():
                shown[name if name in chosen else OTHERS] += figure
            yield from _gauge(metric, "command", text, shown)

    def _group_lines(self, machine: MachineMemory) -> Iterator[str]:
        # Of two groups with one name, as of a container's scope and what is in it, the outer one.
        order = sorted(machine.groups, key=lambda group: (-group.trend.size_bytes, group.path))
        groups: dict[str, GroupMemory] = {}
        for group in order:
            groups.setdefault(group.name[:_LONGEST_LABEL], group)
        chosen = self._groups.choose({name: one.trend.size_bytes for name, one in groups.items()})
        shown = {name: group for name, group in groups.items() if name in chosen}
        labels = {
            name: {k: text[:_LONGEST_LABEL] for k, text in group.owner.labels().items() if text}
            for name, group in shown.items()
        }
        for metric, text, figure in _GROUP_METRICS:
            figures = {name: attrgetter(figure)(group) for name, group in shown.items()}
            known = {name: figure for name, figure in figures.items() if figure is not None}
            yield from _gauge(metric, "group", text, known, labels)


_GROUP_METRICS: Final = (
    ("group_memory_bytes", "Memory of control groups", "trend.size_bytes"),
    ("group_growth_bytes_per_min", "Growth of control groups per minute", "trend.rate"),
    ("group_limit_bytes", "Limits of control groups", "limit_bytes"),
    ("group_free_bytes", "What is left below the limit, and what the kernel could drop",
     "free_bytes"),
    ("group_limit_reached_seconds", "Time until the limit is reached if growth goes on",
     "limit_in_s"),
)  # fmt: skip


def _gauge(
    name: str, label: str, text: str, figures: Mapping[str, float],
    more: Mapping[str, dict[str, str]] = MappingProxyType({}),
) -> Iterator[str]:  # fmt: skip
    unit = next((unit for unit in ("bytes", "seconds") if name.endswith(unit)), "")
    yield from family_lines(f"tracelloc_{name}", "gauge", unit, text)
    for value, figure in figures.items():
        labels = {label: value} | more.get(value, {})
        yield f"tracelloc_{name}{label_text(labels)} {figure:.15g}"


_STATUS_EVERY_S: Final = 60.0
_HOUR_S: Final = 3600.0
_LARGEST_STATE_BYTES: Final = 4 << 20


class MachineWatch:
    """Checks the machine at each call. For one thread, except for ``log`` and ``metrics``."""

    def __init__(self, config: WatchConfig, reader: ProcessReader) -> None:
        """Creates the directory of files, and reads the state of the last run. Raises OSError."""
        self._config, self._reader = config, reader
        self._files = WatchFiles(config)
        self._lock = threading.Lock()  # Guards standard output, and the newest figures
        self._jobs = WatchJobs(config, self._files, self.log)
        state = self._read_state()
        self._state_written = state
        self._state_error = ""  # Why the state could not be written, until it could
        # When rules were broken last, in seconds since 1970, by the subject's key
        self._broken_s: dict[str, float] = state.get("broken", {})
        self._begun_s: list[float] = state.get("begun", [])  # When actions began, in the last hour
        self._refused: dict[str, str] = {}  # Why a subject's actions could not begin, by its key
        counts, zero = state.get("counts", {}), {target.name: 0 for target in config.target}
        self._counts = {kind: zero | counts.get(kind, {}) for kind in ("rules", "kills", "leaking")}
        self._jobs.leaking = self._counts["leaking"]
        self._kills = KillWatch(state.get("kills", {}))
        self._jobs.files.update(state.get("files", {}))
        self._jobs.kept = state.get("kept", [])
        self._reporter = KillReporter(self._files, self._jobs, self.log)
        self._rules = RuleBook(config, memory_pressure)
        self._metrics = MachineMetrics()
        self._machine: MachineMemory | None = None
        self._status_due_s = 0.0

    def log(self, pairs: Mapping[str, str]) -> None:
        """Writes an event as one line to standard output. From any thread."""
        line = event_line(time.time(), pairs) + "\n"
        with self._lock:
            sys.stdout.buffer.write(line.encode(errors="backslashreplace"))
            sys.stdout.flush()

    def metrics(self) -> str:
        """Returns all metrics as OpenMetrics text. From any thread. Raises TracellocError."""
        with self._lock:
            if self._machine is None:
                raise TracellocError("nothing has been read yet")
            return metrics_text(self._metrics.lines(self._machine, self._counts))

    def check_machine(self) -> None:
        machine = self._reader.read_memory()
        own = self._jobs.pids | {os.getpid()}
        found = subjects_of(machine, self._config.target)
        subjects = [s for s in found if s.target.group or s.processes[0].pid not in own]
        kills = self._kills.take_kills(subjects, machine)
        breaches = self._rules.check(subjects, time.monotonic())
        with self._lock:
            self._machine = machine
            for kill in kills:
                self._counts["kills"][kill.subject.target.name] += kill.count
        for kill in kills:
            self._reporter.report(kill)
        for breach in breaches:
            self._act(breach, machine)
        self._write_state()
        self._say_status(machine, subjects)

    def close(self) -> None:
        """Ends running actions, which may take as long as writing their files."""
        self._jobs.close()
        self._write_state()

    def _act(self, breach: Breach, machine: MachineMemory) -> None:
        """Begins a target's actions, except during its cool-down or while enough others run."""
        subject, now_s = breach.subject, time.time()
        cool_at_s = self._broken_s.get(subject.key, 0) + subject.target.cool_down
        if now_s < cool_at_s or self._jobs.running_count >= self._config.max_running:
            return
        name = subject.target.name
        if refusal := self._refusal(subject, machine, now_s):
            if self._refused.get(subject.key) != refusal:
                self._refused[subject.key] = refusal
                self.log({
                    "target": name, "event": "postponed", "rule": breach.rule.text,
                    "name": subject.name, "reason": refusal,
                })  # fmt: skip
            return
        self._refused.pop(subject.key, None)
        self._broken_s[subject.key] = now_s
        self._begun_s = [*self._begun_s, now_s]
        with self._lock:
            self._counts["rules"][name] += 1
        self.log({
            "target": name, "event": "rule", "rule": breach.rule.text, "figure": breach.figure,
            "name": subject.name, "actions": ",".join(subject.target.actions),
            **({"pid": str(subject.processes[0].pid)} if subject.processes else {}),
        })  # fmt: skip
        self._jobs.begin_actions(breach)

    def _refusal(self, subject: Subject, machine: MachineMemory, now_s: float) -> str:
        """Returns why a target's actions can't begin now; empty if they can."""
        self._begun_s = [at_s for at_s in self._begun_s if now_s - _HOUR_S < at_s <= now_s]
        if len(self._begun_s) >= self._config.max_per_hour:
            return f"max_per_hour = {self._config.max_per_hour}"
        is_traced = not {"record", "push"}.isdisjoint(subject.target.actions)
        if is_traced and machine.available_bytes < self._config.max_memory:
            most = size_word(self._config.max_memory)
            return f"less memory is available than max_memory = {most}"
        return ""

    def _say_status(self, machine: MachineMemory, subjects: Sequence[Subject]) -> None:
        now_s = time.monotonic()
        if now_s < self._status_due_s:
            return
        self._status_due_s = now_s + _STATUS_EVERY_S
        used = machine.total_bytes - machine.available_bytes
        pairs = {
            "processes": str(len(machine.processes)),
            "memory": f"{size_word(used)}/{size_word(machine.total_bytes)}",
            "watched": str(len(subjects)),
            "running": str(self._jobs.running_count),
        }
        fastest = min(machine.processes, key=by_growth, default=None)
        if fastest is not None and fastest.trend.rate > 0:
            rate = signed_size_word(fastest.trend.rate)
            pairs |= {"fastest": f"{fastest.command}({fastest.pid})", "growth": f"{rate}/min"}
        self.log(pairs)

    def _read_state(self) -> dict[str, Any]:
        with suppress(OSError, ValueError), self._files.state.open("rb") as stream:
            state = json.loads(stream.read(_LARGEST_STATE_BYTES))
            if isinstance(state, dict) and state.get("version") == 1:
                if state.get("boot") != boot_id():
                    state |= {"kills": {}, "files": {}}
                return state
        return {}

    def _write_state(self) -> None:
        now_s, longest_s = time.time(), max((t.cool_down for t in self._config.target), default=0)
        self._broken_s = {
            key: min(at_s, now_s)  # The clock may have been set back.
            for key, at_s in self._broken_s.items()
            if now_s - at_s < longest_s
        }
        state = {
            "version": 1, "boot": boot_id(), "broken": self._broken_s, "begun": self._begun_s,
            "counts": {kind: dict(counts) for kind, counts in self._counts.items()},
            "kills": self._kills.counts, "files": self._jobs.files_left(), "kept": self._jobs.kept,
        }  # fmt: skip
        if state != self._state_written:
            try:
                self._files.write_json(self._files.state, state)
                self._state_written, self._state_error = state, ""
            except OSError as error:
                if self._state_error != (reason := error.strerror or str(error)):
                    self._state_error = reason
                    self.log({"event": "failed", "action": "state", "error": reason})


def watch(config: WatchConfig, count: int | None) -> None:
    """Watches until a signal comes, or for ``count`` checks. Raises TracellocError."""
    listener = None if config.listen is None else listen_on(config.listen)
    token = read_secret(None, LISTEN_TOKEN)
    ended = threading.Event()
    for number in not_ignored((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), interrupts=True):
        signal.signal(number, lambda *_: ended.set())
    with closing(ProcessReader()) as reader:
        try:
            machine_watch = MachineWatch(config, reader)
        except OSError as error:
            raise TracellocError(f"{config.directory} cannot be used: {error.strerror}") from error
        endpoint = None
        try:
            machine_watch.check_machine()
            if listener is not None:
                endpoint = Endpoint(listener, list, token, machine_watch.metrics)
                machine_watch.log({"event": "listening", "url": f"{endpoint.url}metrics"})
            done = 1
            while done != count and not ended.wait(config.interval):
                machine_watch.check_machine()
                done += 1
        finally:
            machine_watch.close()
            if endpoint is not None:
                endpoint.close()
