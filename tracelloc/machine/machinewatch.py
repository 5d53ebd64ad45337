"""``watch``: checks the whole machine at intervals, and begins the actions of broken rules.

All expensive work runs in child processes (``watchjobs``). A small file keeps what must survive a
restart: when rules were broken, for cool-down, and the counters of killed processes.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any, Final

from tracelloc.errors import TracellocError
from tracelloc.machine.killreports import KillReporter, KillWatch, memory_pressure
from tracelloc.machine.machinememory import MachineMemory
from tracelloc.machine.machinemetrics import MachineMetrics, WatchCounts
from tracelloc.machine.machinerules import WatchConfig
from tracelloc.machine.machinetext import by_growth
from tracelloc.machine.processes import ProcessReader
from tracelloc.machine.subjects import Breach, RuleBook, Subject, subjects_of
from tracelloc.machine.watchjobs import WatchFiles, WatchJobs
from tracelloc.record.process.procfs import boot_id
from tracelloc.show.publish.address import LISTEN_TOKEN, read_secret
from tracelloc.show.publish.endpoint import Endpoint, listen_on
from tracelloc.show.publish.openmetrics import metrics_text
from tracelloc.show.report.loglines import event_line, signed_size_word, size_word
from tracelloc.startup import not_ignored

_STATUS_EVERY_S: Final = 60.0
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
        # When rules were broken last, in seconds since 1970, by the subject's key
        self._broken_s: dict[str, float] = state.get("broken", {})
        counts, zero = state.get("counts", {}), {target.name: 0 for target in config.target}
        self._counts = WatchCounts(**{
            kind: zero | counts.get(kind, {}) for kind in ("rules", "kills", "leaking")
        })  # fmt: skip
        self._jobs.leaking = self._counts.leaking
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
        """Reads the memory of the machine once, and begins the actions of broken rules."""
        machine = self._reader.read_memory()
        own = self._jobs.pids | {os.getpid()}
        subjects = [
            subject
            for subject in subjects_of(machine, self._config.target)
            if subject.target.group or subject.processes[0].pid not in own
        ]
        kills = self._kills.take_kills(subjects, machine)
        breaches = self._rules.check(subjects, time.monotonic())
        with self._lock:
            self._machine = machine
            for kill in kills:
                name = kill.subject.target.name
                self._counts.kills[name] = self._counts.kills.get(name, 0) + kill.count
        for kill in kills:
            self._reporter.report(kill)
        for breach in breaches:
            self._act(breach)
        self._write_state()
        self._say_status(machine, subjects)

    def close(self) -> None:
        """Ends running actions, which may take as long as writing their files."""
        self._jobs.close()
        self._write_state()

    def _act(self, breach: Breach) -> None:
        """Begins a target's actions, except during its cool-down or while enough others run."""
        subject, now_s = breach.subject, time.time()
        cool_at_s = self._broken_s.get(subject.key, 0) + subject.target.cool_down
        if now_s < cool_at_s or self._jobs.running_count >= self._config.max_running:
            return
        self._broken_s[subject.key] = now_s
        name = subject.target.name
        with self._lock:
            self._counts.rules[name] = self._counts.rules.get(name, 0) + 1
        self.log({
            "target": name, "event": "rule", "rule": breach.rule.text, "figure": breach.figure,
            "name": subject.name, "actions": ",".join(subject.target.actions),
            **({"pid": str(subject.processes[0].pid)} if subject.processes else {}),
        })  # fmt: skip
        self._jobs.begin_actions(breach)

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
            key: at_s for key, at_s in self._broken_s.items() if now_s - at_s < longest_s
        }
        state = {
            "version": 1,
            "boot": boot_id(),
            "broken": self._broken_s,
            "counts": asdict(self._counts),
            "kills": self._kills.counts,
            "files": self._jobs.files_left(),
            "kept": self._jobs.kept,
        }
        if state != self._state_written:
            try:
                self._files.write_json(self._files.state, state)
                self._state_written = state
            except OSError as error:
                self.log({"event": "failed", "action": "state", "error": str(error)})


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
