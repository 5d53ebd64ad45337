"""How large is a recording of a week, and what does a killed recorder leave?

``python -m tests.bench.recordings week [STEP_S]`` writes a simulated week, a moment each ``STEP_S``
seconds, each ten in the last day and each second at the end (older ones are further apart anyway),
and opens it.
``python -m tests.bench.recordings kill [COUNT]`` kills real recorders at random moments (as root).
Both print one JSON object.
"""

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.corpus.service import LEAKING, START_S, Service, service_namers
from tests.harness import Builder, Target, read_line, tracelloc_command
from tracelloc.model.verdicts import Verdict
from tracelloc.show.filters import Filters
from tracelloc.show.presentation.naming import Namers, frame_name
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.text import NS_PER_S

DAY_S = 86_400
LAST_S = 5_000.0  # The end of the week, with a moment each second as a recorder writes them
MOST_BYTES = 200 << 20


def leaks_in(recording: RecordedTrace, index: int) -> set[str]:
    """The innermost functions of the stacks that leak, as of a moment."""
    names = Namers(recording, Filters())
    one = recording.trace_at(index).root
    namer = names.namer_of(one.target)
    suspects = () if one.findings is None else one.findings.suspects
    return {
        frame_name(namer.stack(one, suspect.stack).frames[0])
        for suspect in suspects
        if suspect.judgement.verdict is Verdict.LEAKING
    }


def write_week(
    path: Path,
    service: Service,
    max_bytes: int,
    days: float = 7,
    last_s: float = LAST_S,
    last_day_step_s: float = 10.0,
) -> float:
    """Records some days of a service. Returns the CPU seconds that a moment took."""
    writer = RecordingWriter(path, max_bytes=max_bytes, max_s=7 * DAY_S)
    namers, spent_s = service_namers(), 0.0
    end_ns = service.now_ns + round(days * DAY_S * NS_PER_S)
    while service.now_ns < end_ns:
        left_s = (end_ns - service.now_ns) / NS_PER_S
        if left_s <= DAY_S + last_s:
            # What lies further back has a moment a minute at most in the end.
            service.step_s = min(service.step_s, 1.0 if left_s <= last_s else last_day_step_s)
        service.advance()
        trace = service.trace()
        began_s = time.process_time()
        writer.add(trace, namers)
        spent_s += time.process_time() - began_s
    writer.close()
    return spent_s / writer.count


def week(step_s: float, days: float) -> dict[str, Any]:
    """Figures of a week."""
    with tempfile.TemporaryDirectory(prefix="bench-week-") as name:
        path = Path(name) / "week.rec"
        spent_s = write_week(path, Service(step_s=step_s), MOST_BYTES, days)
        began_s = time.process_time()
        recording = RecordedTrace(path)
        opened_s = time.process_time() - began_s
        last = len(recording.moments) - 1
        moves_ms = []
        for index in random.Random(1).sample(range(last + 1), 200):
            began_s = time.process_time()
            recording.trace_at(index)
            moves_ms.append(1000 * (time.process_time() - began_s))
        return {
            "days": days,
            "step_s": step_s,
            "size_mib": path.stat().st_size / (1 << 20),
            "moments": last + 1,
            "reaches_back_days": (recording.moments[-1].time_s - recording.moments[0].time_s)
            / DAY_S,
            "write_ms_per_moment": 1000 * spent_s,
            "open_ms": 1000 * opened_s,
            "move_median_ms": statistics.median(moves_ms),
            "move_most_ms": max(moves_ms),
            "leaks_at_end": sorted(leaks_in(recording, last)),
            "leaks_after_a_day": sorted(leaks_in(recording, recording.find(START_S + DAY_S))),
            "leak_found": leaks_in(recording, last) == {LEAKING},
        }


def kill(count: int) -> dict[str, Any]:
    """Figures of recorders that are killed at random moments."""
    lost_s, apart_s, late = [], [], 0
    with tempfile.TemporaryDirectory(prefix="bench-kill-") as name:
        target = Target([Builder(Path(name)).c("lineage")])
        try:
            for number in range(count):
                try:
                    lost, apart = _killed(target, Path(name) / f"{number}.rec")
                except TimeoutError:
                    # The machine is too busy to attach in time.
                    late += 1
                    continue
                lost_s.append(lost)
                apart_s.append(apart)
                print(f"{number}: {lost:.2f} s lost, moments {apart:.2f} s apart", file=sys.stderr)
        finally:
            target.end()
    return {
        "killed": len(lost_s),
        "never_began": late,
        "lost_most_s": max(lost_s),
        "lost_median_s": statistics.median(lost_s),
        "moments_apart_most_s": max(apart_s),
        "lost_above_2_s": sum(lost > 2 for lost in lost_s),
    }


def _killed(target: Target, path: Path) -> tuple[float, float]:
    """Seconds before the kill of which nothing is recorded, and how far moments are apart."""
    recorder = subprocess.Popen(
        tracelloc_command("record", "-p", target.pid, "-o", path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        while "recording to" not in read_line(recorder.stderr, "tracelloc"):
            pass
    except TimeoutError:
        recorder.kill()
        recorder.communicate()
        raise
    while not _has_moment(path):
        time.sleep(0.01)
    target.ask("alloc 10 100")
    time.sleep(random.uniform(0.0, 3.0))
    killed_s = time.monotonic()
    recorder.send_signal(signal.SIGKILL)
    recorder.communicate()
    recording = RecordedTrace(path)
    last = recording.trace_at(len(recording.moments) - 1).root
    recording.close()
    times_s = [moment.uptime_s for moment in recording.moments]
    apart_s = max((b - a for a, b in pairwise(times_s)), default=0.0)
    return killed_s - last.now_ns / NS_PER_S, apart_s


def _has_moment(path: Path) -> bool:
    try:
        RecordedTrace(path).close()
    except Exception:  # noqa: BLE001 - there is nothing in it yet
        return False
    return True


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "week":
        step_s, days = float(rest[0]) if rest else 1.0, float(rest[1]) if rest[1:] else 7.0
        print(json.dumps(week(step_s, days), indent=1))
    else:
        print(json.dumps(kill(int(rest[0]) if rest else 100), indent=1))
