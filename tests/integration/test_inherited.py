"""A program that tracelloc starts finds all of /proc/self as if it had been started alone."""

import ctypes
import json
import os
import resource
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import PATIENCE_S, tracelloc_command

pytestmark = [pytest.mark.bpf, pytest.mark.long]

LOOK = r"""
import ctypes, json, os, re
found = {}

for name in sorted(os.listdir("/proc/self")):
    path = "/proc/self/" + name
    if name in DIFFERS:
        continue
    try:
        if os.path.islink(path):
            found[name] = os.fsdecode(os.readlink(path))
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                found[name] = file.read(1 << 20).decode("latin-1")
    except OSError as error:
        found[name] = error.strerror
for folder in ("ns", "fd", "attr"):
    for name in sorted(os.listdir("/proc/self/" + folder)):
        path = f"/proc/self/{folder}/{name}"
        try:
            if os.path.islink(path):
                text = os.readlink(path)
                # That of this listing is among them.
                if "/proc/" not in text:
                    found[f"{folder}/{name}"] = text
            else:
                found[f"{folder}/{name}"] = open(path, "rb").read().decode("latin-1")
        except OSError as error:
            found[f"{folder}/{name}"] = error.strerror
for name in sorted(os.listdir("/proc/self/fdinfo")):
    try:
        text = open("/proc/self/fdinfo/" + name).read()
        found["flags of " + name] = re.search("flags:.*", text)[0]
    except OSError:
        pass
status = found.pop("status")
for line in status.split("\n"):
    key, _, value = line.partition(":")
    if key not in DIFFERS_IN_STATUS:
        found["status " + key] = value
stat = found.pop("stat").rpartition(")")[2].split()
found["group, session, terminal"] = [
    os.getpgrp(), os.getsid(0), stat[4]]
found["nice, priority, policy"] = [stat[16], stat[15], os.sched_getscheduler(0)]
libc = ctypes.CDLL(None)
number = ctypes.c_int()
libc.prctl(2, ctypes.byref(number), 0, 0, 0)
found["signal at parent's death"] = number.value
found["dumpable"] = libc.prctl(3, 0, 0, 0, 0)
found["keeps capabilities"] = libc.prctl(7, 0, 0, 0, 0)
libc.prctl(37, ctypes.byref(number), 0, 0, 0)
found["subreaper"] = number.value
found["slack"] = libc.prctl(30, 0, 0, 0, 0)
found["huge pages"] = libc.prctl(42, 0, 0, 0, 0)
found["umask"] = os.umask(0)
import resource, signal
found["timers"] = [signal.getitimer(n) for n in range(3)]
found["signals"] = {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()}
found["blocked"] = sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))
found["io"] = libc.syscall(252, 1, 0)
print(json.dumps(found))
"""
# Memory and time differ between any two runs; what is mounted, where others mount meanwhile: the
# namespace is compared.
DIFFERS = {
    "maps", "smaps", "smaps_rollup", "numa_maps", "statm", "auxv", "io", "sched", "schedstat",
    "oom_score", "wchan", "stack", "syscall", "pagemap", "mem", "clear_refs", "latency",
    "mounts", "mountinfo", "mountstats", "timers", "net", "arch_status", "task", "map_files",
    "ksm_stat", "task_size", "ksm_merging_pages",
}  # fmt: skip
# Also its own number, whose child it is (ours), that it is traced for as long as it begins, and the
# room that the kernel has for its descriptors.
DIFFERS_IN_STATUS = {
    "VmPeak", "VmSize", "VmLck", "VmPin", "VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem",
    "VmData", "VmStk", "VmExe", "VmLib", "VmPTE", "VmSwap", "HugetlbPages", "PPid",
    "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches", "SigQ", "TracerPid", "State", "FDSize",
    "Tgid", "Pid", "NStgid", "NSpid",
}  # fmt: skip
LOOK = f"DIFFERS = {DIFFERS!r}\nDIFFERS_IN_STATUS = {DIFFERS_IN_STATUS!r}\n{LOOK}"


def oddly() -> None:
    """A state that no program begins with: all of it is to be passed on.

    All but that SIGPIPE and SIGXFSZ are ignored: Python ignores them itself before any code of
    ours runs, so that nobody can tell, and programs get the default.
    """
    os.umask(0o037)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGRTMIN})
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, 5000))
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 30))
    resource.setrlimit(
        resource.RLIMIT_STACK, (1 << 24, resource.getrlimit(resource.RLIMIT_STACK)[1])
    )
    os.dup2(os.open("/dev/zero", os.O_RDONLY), 17, inheritable=True)
    os.setpriority(os.PRIO_PROCESS, 0, 3)
    Path("/proc/self/oom_score_adj").write_text("77")
    Path("/proc/self/coredump_filter").write_text("0x1")
    ctypes.CDLL(None).personality(0x0040000)
    ctypes.CDLL(None).prctl(29, 123_456, 0, 0, 0)


def plainly() -> None:
    """As a shell would."""


ENVIRONMENT = {
    b"PATH": os.environb[b"PATH"], b"LANG": b"C", b"ODD": b"\xff\xfe=\n", b"HOME": b"/nonexistent",
    b"OPENBLAS_NUM_THREADS": b"7", b"PYTHONMALLOC": b"malloc", b"EMPTY": b"",
}  # fmt: skip


def look(
    command: Sequence[str], directory: Path, prepare: Any, environment: dict[bytes, bytes]
) -> dict[str, Any]:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=(directory / "err").open("wb"), preexec_fn=prepare, env=environment, cwd=directory,
        timeout=PATIENCE_S, check=False, close_fds=False,
    )  # fmt: skip
    assert done.returncode == 0, (directory / "err").read_text()
    found: dict[str, Any] = json.loads(done.stdout)
    assert len(found) > 80
    return found


@pytest.mark.parametrize("prepare", [plainly, oddly])
@pytest.mark.parametrize("environment", [{}, {b"LC_ALL": b"C.UTF-8"}], ids=["coerced", "UTF-8"])
def test_proc_self(tmp_path: Path, prepare: Any, environment: dict[bytes, bytes]) -> None:
    program = ["/usr/bin/python3", "-E", "-S", "-c", LOOK]
    environment = ENVIRONMENT | environment
    alone = look(program, tmp_path, prepare, environment)
    traced = traced_look(program, tmp_path, prepare, environment, "--preload", "off")
    assert difference(alone, traced) == {}


@pytest.mark.parametrize(
    ("prepare", "own", "preload"),
    [(plainly, b"", "on"), (oddly, b"libm.so.6", "on"), (plainly, b"", "auto")],
)
def test_proc_self_with_the_library(tmp_path: Path, prepare: Any, own: bytes, preload: str) -> None:
    """The library has taken out what was put into the environment, and left zeros behind it."""
    program = ["/usr/bin/python3", "-E", "-S", "-c", LOOK]
    environment = ENVIRONMENT | ({b"LD_PRELOAD": own} if own else {})
    alone = look(program, tmp_path, prepare, environment)
    traced = traced_look(program, tmp_path, prepare, environment, "--preload", preload)
    said = "come by the preloaded library" if preload == "on" else "have functions of Python"
    assert said in (tmp_path / "err").read_text()
    for found in (alone, traced):
        found["environ"] = found["environ"].rstrip("\0")
    assert difference(alone, traced) == {}


def traced_look(
    program: Sequence[str], directory: Path, prepare: Any, environment: dict[bytes, bytes],
    *options: str,
) -> dict[str, Any]:  # fmt: skip
    command = tracelloc_command(
        "--report", directory / "report", "--text", *options, "--", *program
    )
    return look(command, directory, prepare, environment)


def difference(alone: dict[str, Any], traced: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    # The pipe of its output is another one in each run.
    for found in (alone, traced):
        assert found.pop("fd/1").startswith("pipe:")
    differing = {name for name in alone | traced if alone.get(name) != traced.get(name)}
    return {name: (alone.get(name), traced.get(name)) for name in differing}
