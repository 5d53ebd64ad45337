"""Without bcc everything works but probes. What needs these names the package that is missing."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import USES_LIBRARY, Builder, Target, Targets
from tracelloc.errors import PrivilegeError
from tracelloc.record.kernel.capabilities import why_no_probes

pytestmark = pytest.mark.skipif(USES_LIBRARY, reason="has a process that the library reports of")

WITHOUT = """
import sys
sys.modules["bcc"] = None
from tracelloc.__main__ import main
sys.exit(main())
"""
PACKAGES = (
    "install the distribution's package: apt install python3-bpfcc (Debian, Ubuntu), "
    "dnf install python3-bcc (Fedora, RHEL); only the distribution's own Python sees it, and "
    "environments made by /usr/bin/python3 -m venv --system-site-packages"
)


def check_all_ways(
    command: Sequence[str | Path], program: Path, target: Target, *, is_root: bool
) -> None:
    """Has an installation do all that it can for a user, in the current directory.

    ``program``: ``endings.c``. ``target``: ``lost.c``, the user's own.
    """

    def run(status: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        done = outcome(*command, *arguments)
        assert done.returncode == status, (arguments, done.stdout, done.stderr)
        return done

    run(0, "--json", "--report", "report.json", "--", program, "reachable")
    last = json.loads(Path("report.json").read_text().splitlines()[-1])
    assert (last["live_bytes"], last["live_allocations"], last["lost_events"]) == (128, 2, 0)
    run(5, "record", "-o", "a.rec", "--", program, "fail")
    run(0, "record", "-o", "b.rec", "--", program, "reachable")
    assert "128 B" in run(0, "report", "b.rec").stdout
    assert "endings" in run(0, "diff", "a.rec", "b.rec").stdout
    run(0, "merge", "a.rec", "b.rec", "-o", "both.rec")
    assert "leaked 200 bytes in 2 blocks" in run(3, "run", "--", program, "direct").stderr
    pid = target.pid
    assert target.ask("5 0") == "done"
    for words in ("heap", "holders", "symbols"):
        assert run(0, words, pid).stdout
    assert "lost" in run(3, "leaks", pid).stdout
    assert f" {pid} " in run(0, "top", "--count", "1", "--top", "1000").stdout
    lacking, refusal = "bcc is not installed; ", why_no_probes()
    if not is_root:
        refusal = PrivilegeError("probes need root (sudo)")
    if is_refused := isinstance(refusal, PrivilegeError):
        lacking = f"{refusal.message}, and {lacking}"
    started = ["--", program, "reachable"]
    for needs_probes in (["-p", pid, "--text"], ["--mmap", *started], ["--preload=off", *started]):
        said = run(1, *needs_probes).stderr.splitlines()
        assert len(said) == 1
        assert said[0].startswith(f"tracelloc: error: {lacking}")
        # What works without probes comes first, and doctor has the rest.
        by_doctor = needs_probes[0] == "-p" and is_refused
        assert said[0].endswith("how to get probes" if by_doctor else PACKAGES)
    done = run(0, "-p", pid, "--preload", "inject", "--text", "--count", "1")
    assert "events come by the injected library, not by probes" in done.stderr


def test_everything_but_probes_works(
    builder: Builder, targets: Targets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets.start(builder.c("lost"))
    monkeypatch.chdir(tmp_path)
    check_all_ways(
        [sys.executable, "-c", WITHOUT], builder.c("endings"), target, is_root=os.geteuid() == 0
    )
