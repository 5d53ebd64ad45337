"""The actions of ``tracelloc watch``: subcommands, pushing and hooks, as child processes.

The number of actions at a time and the size of all files are limited: the oldest make room.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tracelloc.machine.machinememory import ProcessMemory
from tracelloc.machine.machinerules import Breach, Subject, WatchConfig
from tracelloc.show.alerts.rules import ON_LEAK_PATIENCE_S
from tracelloc.text import printable

EventLog = Callable[[Mapping[str, str]], None]  # Writes one line of `key=value`

# How much longer than asked for a child may take: reading heaps and names takes its time.
_PATIENCE_S: Final = 120.0
_END_PATIENCE_S: Final = 20.0  # Time limit for children to write their files when watching ends
KILL_SUFFIX: Final = ".killed.json"
RECORDING_SUFFIX: Final = ".rec"
_WALK: Final = ".heap.txt"
_OWN: Final = re.compile(r".+-\d+-\d{8}-\d{6}\.(rec|heap\.txt|killed\.json)")
_MOST_SUSPECTS: Final = 50
_MOST_KEPT: Final = 64  # Files that are deleted last


class WatchFiles:
    """The directory of recordings, heap walks, reports on kills, and the watch's state."""

    def __init__(self, config: WatchConfig) -> None:
        """Creates the directory for its owner only. Raises OSError, also if others may write."""
        self._directory = config.directory
        self._most_bytes = config.max_disk
        self._lock = threading.Lock()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._directory.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write to it")
        self.state = self._directory / "state.json"

    def new_path(self, target: str, pid: int, suffix: str) -> Path:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        return self._directory / f"{target}-{pid}-{stamp}{suffix}"

    def write_json(self, path: Path, content: dict[str, Any]) -> None:
        """Replaces a file by JSON: readers see the old or the new content. Raises OSError."""
        temporary = path.with_name(f".{path.name}")
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", opener=_private, encoding="utf-8") as stream:
            json.dump(content, stream)
        temporary.rename(path)

    def make_room(self, size_bytes: int, kept: Collection[str]) -> None:
        """Removes the oldest files until ``size_bytes`` are free; files in ``kept`` go last."""
        with self._lock:
            files = [
                (str(path) in kept or path.name.endswith(KILL_SUFFIX), path.stat().st_mtime, path)
                for path in self._directory.iterdir()
                if _OWN.fullmatch(path.name)
            ]
            used = sum(path.stat().st_size for *_, path in files)
            for _, _, path in sorted(files):
                if used + size_bytes <= self._most_bytes:
                    return
                used -= path.stat().st_size
                path.unlink()


class WatchJobs:
    """Runs the actions of broken rules in the background."""

    def __init__(self, config: WatchConfig, files: WatchFiles, log: EventLog) -> None:
        self._config, self._files, self._log = config, files, log
        self._pool = ThreadPoolExecutor(config.max_running, "job")
        self._explaining = ThreadPoolExecutor(1, "explain")
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._is_ending = False
        self._last: dict[str, Future[None]] = {}  # The last job of each subject, by its key
        # The newest heap walk and recording of each subject, also while they are written
        self.files: dict[str, list[str]] = {}
        self.leaking: dict[str, int] = {}  # Leaking call stacks in the newest recording, by target
        self.kept: list[str] = []  # Files that explain why a process was killed

    @property
    def running_count(self) -> int:
        """Number of subjects whose actions run or wait."""
        return sum(not job.done() for job in self._last.values())

    @property
    def pids(self) -> set[int]:
        with self._lock:
            return {child.pid for child in self._children}

    def begin_actions(self, breach: Breach) -> None:
        self._last = {key: job for key, job in self._last.items() if not job.done()}
        self._last[breach.subject.key] = self._pool.submit(self._do, breach)

    def explain(self, subject: Subject, work: Callable[[str | None], None]) -> None:
        """Calls ``work`` with the subject's newest recording, once complete, or walk, or None."""
        job, files = self._last.get(subject.key), self.files.get(subject.key, [])

        def run() -> None:
            if job is not None:
                with suppress(Exception):
                    job.result()
            found = [file for file in files if Path(file).exists()]
            found.sort(key=lambda file: file.endswith(RECORDING_SUFFIX))
            try:
                work(found[-1] if found else None)
            except Exception as error:  # noqa: BLE001 - reported
                self._fail(subject, "explain", str(error) or type(error).__name__)

        self._explaining.submit(run)

    def files_left(self) -> dict[str, list[str]]:
        """Returns the newest files of each subject that still exist, by the subject's key."""
        busy = {key for key, job in self._last.items() if not job.done()}
        every = list(self.files.items())
        found = {key: [file for file in files if Path(file).exists()] for key, files in every}
        for key in found.keys() - busy:
            self.files[key] = found[key]
        self.files = {key: files for key, files in self.files.items() if files}
        return {key: files for key, files in found.items() if files}

    def keep_files(self, *files: str | None) -> None:
        """Has ``files`` deleted only after all others; None is ignored."""
        self.kept = [*self.kept, *(file for file in files if file is not None)][-_MOST_KEPT:]

    def close(self) -> None:
        """Interrupts all child processes, so that they write their files, and waits for them."""
        with self._lock:
            self._is_ending = True
            children = list(self._children)
            for child in children:
                child.send_signal(signal.SIGINT)
        end_s = time.monotonic() + _END_PATIENCE_S
        for child in children:
            while child.poll() is None and time.monotonic() < end_s:
                time.sleep(0.05)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        for pool in (self._pool, self._explaining):
            pool.shutdown(cancel_futures=True)

    def _do(self, breach: Breach) -> None:
        subject = breach.subject
        process = next((one for one in subject.processes if one.pid != os.getpid()), None)
        facts = facts_of(subject) | {"rule": breach.rule.text, "figure": breach.figure}
        files: dict[str, str] = {}
        for action in subject.target.actions:
            try:
                if action == "hook":
                    given = json.dumps(facts | {"files": files}).encode() + b"\n"
                    command = list(subject.target.hook)
                    self._execute(subject, action, command, given, limit_s=ON_LEAK_PATIENCE_S)
                elif process is not None:
                    files |= self._trace(action, subject, process)
            except Exception as error:  # noqa: BLE001 - the others are done all the same
                self._fail(subject, action, str(error) or type(error).__name__)

    def _fail(self, subject: Subject, action: str, reason: str) -> None:
        if not self._is_ending:
            self._log({
                "target": subject.target.name, "event": "failed", "action": action,
                "error": printable(reason),
            })  # fmt: skip

    def _trace(self, action: str, subject: Subject, process: ProcessMemory) -> dict[str, str]:
        name, pid = subject.target.name, process.pid
        self._files.make_room(self._config.max_recording, self.kept)
        if action == "heap":
            path = self._files.new_path(name, pid, _WALK)
            with open(path, "xb", opener=_private) as stream:
                self._note_file(subject, path)
                self._run(subject, action, ["heap", "-p", pid], _PATIENCE_S, stdout=stream)
            return {action: str(path)}
        limit_s = subject.target.record_for + _PATIENCE_S
        if action == "push":
            self._run(subject, action, list(_push_words(subject, pid)), limit_s)
            return {}
        path = self._files.new_path(name, pid, RECORDING_SUFFIX)
        self._note_file(subject, path)
        words = [
            "record", "-p", pid, "-o", path, "--duration", f"{subject.target.record_for:g}s",
            "--max-size", self._config.max_recording, "--max-memory", self._config.max_memory,
            *_overhead_words(subject),
        ]  # fmt: skip
        self._run(subject, action, words, limit_s)
        self._tell(subject, path)
        return {action: str(path)}

    def _tell(self, subject: Subject, recording: Path) -> None:
        report = None if self._is_ending else report_on(str(recording), _MOST_SUSPECTS)
        if report is None:
            return
        suspects = report["suspects"]
        leaking = [each for each in suspects if each["verdict"] == "leaking"]
        self.leaking[subject.target.name] = len(leaking)
        line = {
            "target": subject.target.name, "event": "recorded", "pid": str(report["pid"]),
            "leaking": str(len(leaking)), "growing": str(len(suspects) - len(leaking)),
        }  # fmt: skip
        for number, each in enumerate(suspects[:3], 1):
            line[f"stack{number}"] = stack_name(each["stack"])
        self._log(line | {"recording": str(recording)})

    def _note_file(self, subject: Subject, path: Path) -> None:
        others = self.files.get(subject.key, [])
        self.files[subject.key] = [
            *(file for file in others if Path(file).suffix != path.suffix), str(path)
        ]  # fmt: skip

    def _run(
        self, subject: Subject, action: str, words: Sequence[object], limit_s: float, **streams: Any
    ) -> None:
        command = [sys.executable, "-m", "tracelloc", *map(str, words)]
        self._execute(subject, action, command, None, limit_s=limit_s, **streams)

    def _execute(
        self, subject: Subject, action: str, command: list[str], given: bytes | None, *,
        limit_s: float, stdout: Any = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        with self._lock:
            if self._is_ending:
                return
            child = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
            )
            self._children.add(child)
        try:
            errors = child.communicate(given, limit_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            raise
        finally:
            with self._lock:
                self._children.discard(child)
        if child.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            reason = last.removeprefix("tracelloc: ")
            self._fail(subject, action, reason or f"it ended with status {child.returncode}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _overhead_words(subject: Subject) -> Iterator[str]:
    if subject.target.max_overhead:
        yield from ("--max-overhead", subject.target.max_overhead)


def _push_words(subject: Subject, pid: int) -> Iterator[object]:
    target = subject.target
    yield from ("-p", pid, "--push", target.push, "--duration", f"{target.record_for:g}s")
    yield from ("--push-label", f"target={target.name}", *_overhead_words(subject))
    if target.push_password_file:
        yield from ("--push-password-file", target.push_password_file)


def facts_of(subject: Subject) -> dict[str, Any]:
    """Returns a subject's figures as JSON fields, for hooks and files."""
    return {
        "target": subject.target.name, "name": subject.name, "group": subject.group or None,
        "memory_bytes": subject.trend.size_bytes, "limit_bytes": subject.limit_bytes,
        "used_share": round(subject.used_share, 4), "growth_bytes_per_min": subject.trend.rate,
        "growing_s": round(subject.trend.growing_s, 3),
        "processes": [
            {
                "pid": process.pid,
                "command": process.command,
                "memory_bytes": process.trend.size_bytes,
                "growth_bytes_per_min": process.trend.rate,
            }
            for process in subject.processes
        ],
    }  # fmt: skip


_REPORT_S: Final = 120.0


def report_on(recording: str, top: int) -> dict[str, Any] | None:
    """Returns the JSON report on a recording's end with ``top`` stacks; None if unreadable."""
    words = ["report", recording, "--format", "json", "--top", str(top)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tracelloc", *words], stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_REPORT_S, check=True,
        )  # fmt: skip
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return report


def stack_name(stack: Sequence[Mapping[str, Any]]) -> str:
    """Returns the name and line of a stack's innermost function that is not hidden."""
    frame = next((one for one in stack if not one.get("hidden")), None)
    if frame is None:
        return "?"
    name = printable(frame.get("symbol") or frame.get("label") or "?")
    file, line = frame.get("file"), frame.get("line")
    return f"{name} ({printable(file.rpartition('/')[2])}:{line})" if file else name
