"""Reports which processes the kernel has killed for want of memory, and what held the memory.

Formats: Documentation/accounting/psi.rst, cgroup-v2.rst (memory.events) and cgroup-v1/memory.rst
(memory.oom_control, which counts a group's own processes only); ``oom_kill`` of /proc/vmstat counts
those of the whole machine.
"""

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.machine.machinememory import MachineMemory, ProcessMemory
from tracelloc.machine.machinerules import Subject
from tracelloc.machine.watchjobs import (
    KILL_SUFFIX,
    RECORDING_SUFFIX,
    EventLog,
    WatchFiles,
    WatchJobs,
    facts_of,
    report_on,
    stack_name,
)
from tracelloc.record.process.procfs import PROC
from tracelloc.show.report.suspects import size_word
from tracelloc.system.memorylimits import CGROUPS, numbers_in
from tracelloc.text import format_percent, plural, printable

_SOME: Final = re.compile(r"^some .*\bavg60=(\d+\.\d+)", re.MULTILINE)
_VERSION_2: Final = ("", "unified")  # Where groups of version 2 may be found


def memory_pressure(path: str, cgroups: Path = CGROUPS, root: Path = PROC) -> float | None:
    """Returns the share of the last minute that a group, or else the machine, waited for memory."""
    places = [cgroups / folder / path.lstrip("/") / "memory.pressure" for folder in _VERSION_2]
    for file in [*places, root / "pressure/memory"]:
        with suppress(OSError):
            if (match := _SOME.search(file.read_text())) is not None:
                return float(match[1]) / 100
    return None


def machine_kills(root: Path = PROC) -> int:
    """Returns how many processes the kernel has killed for want of memory since it started."""
    return numbers_in(root / "vmstat").get("oom_kill", 0)


def group_kills(path: str, cgroups: Path = CGROUPS) -> int | None:
    """Returns how many processes of a group were killed for want of memory; None: no group."""
    for folder in _VERSION_2:
        events = numbers_in(cgroups / folder / path.lstrip("/") / "memory.events")
        if "oom_kill" in events:
            return events["oom_kill"]
    group = cgroups / "memory" / path.lstrip("/")
    # Below the root there are all others.
    files = group.glob("memory.oom_control") if path == "/" else group.rglob("memory.oom_control")
    counts = [numbers_in(file).get("oom_kill", 0) for file in files]
    return sum(counts) if counts else None


_STACKS: Final = 3
# After so many looks, a killed process is no longer in /proc: the kernel counts it earlier.
_LOOKS: Final = 3


@dataclass(frozen=True, slots=True)
class Kill:
    """A subject of which the kernel has killed processes."""

    subject: Subject  # The subject as it was before the kill
    victims: tuple[ProcessMemory, ...]  # The processes killed; empty if unknown
    count: int  # Number of killed processes


class KillWatch:
    """Detects that processes of subjects were killed. For one thread at a time."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        """``counts``: the attribute as an earlier run left it, if the kernel still runs."""
        self.counts = dict(counts)  # Killed processes by control group
        self._total = -1
        self._known: dict[str, Subject] = {}
        # Control groups with kills that are to be told, how many, and for how many looks
        self._open: dict[str, tuple[int, int]] = {}

    def take_kills(self, subjects: Sequence[Subject], machine: MachineMemory) -> list[Kill]:
        """Returns the kills since the last call, once their victims are known."""
        total, before = machine_kills(), self._total
        paths = {subject.group for subject in [*subjects, *self._known.values()]} - {""}
        for path in paths:
            if total != before or path not in self.counts:
                self._count(path, is_gone_by_kill=0 <= before < total)
        self._total = total
        current = {subject.key: subject for subject in subjects}
        for key, subject in current.items():
            if subject.group not in self._open or key not in self._known:
                self._known[key] = subject
        living = {process.pid for process in machine.processes}
        kills = [kill for key in list(self._known) if (kill := self._kill_of(key, living))]
        told = {kill.subject.group for kill in kills}
        for path in told & self._open.keys():
            del self._open[path]
        self._open = {path: (n, looks - 1) for path, (n, looks) in self._open.items() if looks > 1}
        self._known = {
            key: current.get(key, subject) if subject.group not in self._open else subject
            for key, subject in self._known.items()
            if key in current or subject.group in self._open
        }
        self.counts = {path: self.counts[path] for path in paths & self.counts.keys()}
        return kills

    def _count(self, path: str, *, is_gone_by_kill: bool) -> None:
        now, before = group_kills(path), self.counts.get(path)
        if now is None:
            # The root of version 2 has no counter, but is not gone.
            if self.counts.pop(path, None) is not None and is_gone_by_kill:
                self._open[path] = 1, _LOOKS
            return
        self.counts[path] = now
        if before is not None and now > before:
            self._open[path] = now - before, _LOOKS

    def _kill_of(self, key: str, living: set[int]) -> Kill | None:
        subject = self._known[key]
        count, looks = self._open.get(subject.group, (0, 0))
        if not count:
            return None
        victims = tuple(one for one in subject.processes if one.pid not in living)
        is_last = looks == 1 and bool(subject.target.group)
        return Kill(subject, victims[:count], count) if victims or is_last else None


class KillReporter:
    """Writes a line and a file about each kill, with the stacks that held the memory."""

    def __init__(self, files: WatchFiles, jobs: WatchJobs, log: EventLog) -> None:
        self._files, self._jobs, self._log = files, jobs, log

    def report(self, kill: Kill) -> None:
        time_s = time.time()
        self._jobs.explain(kill.subject, lambda file: self._tell(kill, time_s, file))

    def _tell(self, kill: Kill, time_s: float, file: str | None) -> None:
        subject = kill.subject
        victim = kill.victims[0] if kill.victims else None
        at = time.strftime("%H:%M:%S", time.localtime(time_s))
        facts = facts_of(subject) | {"killed_at": time_s, "kills": kill.count, "file": file}
        stacks = [] if file is None or not file.endswith(RECORDING_SUFFIX) else _stacks_in(file)
        earlier = stacks.pop() if stacks else None
        what = "nothing was recorded" if file is None else f"see {file}"
        if earlier is not None:
            what = _held(stacks, earlier)
        text = f"killed by the kernel at {at}; {what}"
        pid = 0 if victim is None else victim.pid
        path = self._files.new_path(subject.target.name, pid, KILL_SUFFIX)
        self._files.write_json(path, facts | {
            "victims": [{"pid": one.pid, "command": one.command} for one in kill.victims],
            "stacks": stacks, "text": text,
        })  # fmt: skip
        self._jobs.keep_files(file, str(path))
        line = {
            "target": subject.target.name,
            "event": "killed",
            "pid": "?" if victim is None else str(victim.pid),
            "command": "?" if victim is None else victim.command,
            "memory": size_word(subject.trend.size_bytes),
            "limit": size_word(subject.limit_bytes),
            "text": text,
        }
        for number, each in enumerate(stacks, 1):
            line[f"stack{number}"] = f"{format_percent(each['share'], 0)} {each['name']}"
        self._log(line | {"file": str(path)} | ({"recording": file} if earlier and file else {}))


def _held(stacks: Sequence[Mapping[str, Any]], earlier: Mapping[str, Any]) -> str:
    parts = []
    if stacks:
        share = format_percent(sum(each["share"] for each in stacks), 0)
        parts.append(f"{plural(len(stacks), 'call stack')} held {share}")
    if earlier["bytes"]:
        held = "" if stacks else "held "
        share = format_percent(earlier["share"], 0)
        alike = f", like those of {earlier['name']}" if earlier["name"] else ""
        parts.append(f"blocks from before the recording {held}{share}{alike}")
    return ", ".join(parts) or "no live block was recorded"


def _stacks_in(recording: str) -> list[dict[str, Any]]:
    """Returns the largest stacks at a recording's end; the last one: blocks from before it."""
    report = report_on(recording, _STACKS)
    if report is None:
        return []
    whole = max(report["live_bytes"], 1)
    earlier = report.get("earlier") or {}
    kinds = [kind for kind in earlier.get("top_kinds", ()) if kind["alike"]]
    largest = max(kinds, key=lambda kind: kind["bytes"], default=None)
    alike = "" if largest is None else printable(largest["alike"]["allocated_in"])
    stacks = [(one["stack"], one["bytes"]) for one in report["top_allocators"] if one["bytes"] > 0]
    found = [{"name": stack_name(stack), "bytes": size, "stack": stack} for stack, size in stacks]
    found.append({"name": alike, "bytes": earlier.get("bytes", 0), "stack": []})
    return [each | {"share": each["bytes"] / whole} for each in found]
