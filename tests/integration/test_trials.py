"""What probes break on some kernels is tried first, and avoided there.

None of the kernels that can be had has any of these faults, so that it breaks something is
made up here: by a program that does not survive, and by what a trial is said to have found.
"""

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness import Target, Targets, run_tracelloc, traced
from tests.integration.test_attach import HAS_MULTI
from tests.sessions import tracing
from tracelloc.architecture import native
from tracelloc.record.kernel import childprogram, trials
from tracelloc.record.kernel.captureconfig import Method
from tracelloc.record.kernel.trials import Trial, killing_filter, trial_passes

pytestmark = [pytest.mark.bpf, pytest.mark.long]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def cache(tmp_path: Path, build_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the results of trials, in a cache of its own that has compiled probes."""
    with suppress(OSError):
        shutil.copytree(build_cache / "tracelloc/probes", tmp_path / "cache/tracelloc/probes")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/tracelloc/trials.json"


def claim(cache: Path, boot: str = BOOT_ID, **results: bool) -> None:
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps({"boot": boot, "results": results}))


@pytest.mark.parametrize("trial", Trial)
def test_this_kernel_passes(cache: Path, trial: Trial) -> None:
    """Those of which tests/kernels has a table do."""
    assert trial_passes(trial)
    assert json.loads(cache.read_text())["results"] == {trial.value: True}


def test_each_boot_is_tried_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Trial] = []
    monkeypatch.setattr(trials, "_try", lambda trial: not tried.append(trial))
    claim(cache, boot="another", seccomp=False)
    assert trial_passes(Trial.SECCOMP)
    assert trial_passes(Trial.SECCOMP)
    assert tried == [Trial.SECCOMP]
    cache.write_text("damaged")
    assert trial_passes(Trial.SECCOMP)
    # What others could have written is not believed.
    claim(cache, seccomp=False)
    cache.chmod(0o666)
    assert trial_passes(Trial.SECCOMP)
    assert tried == [Trial.SECCOMP] * 3


def test_a_child_that_is_killed_is_noticed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a filter that kills at every system call below 387."""
    monkeypatch.setattr(trials, "killing_filter", lambda _: killing_filter(range(387)))
    assert not trial_passes(Trial.SECCOMP)
    assert trial_passes(Trial.SHADOW_STACK)
    assert json.loads(cache.read_text())["results"] == {"seccomp": False, "shadow_stack": True}


@pytest.mark.skipif(not HAS_MULTI, reason="uprobe_multi came with Linux 6.6")
def test_links_that_miss_threads_are_not_used(cache: Path, targets: Targets) -> None:
    claim(cache, threads=False, seccomp=True, shadow_stack=True)
    target = targets.c("books", 2, 100, 1, 100)
    with tracing(target) as session:
        assert session.method is Method.PERF


SANDBOXED = """
import ctypes, sys, threading
sys.path.insert(0, DIRECTORY)
import childprogram
done = threading.Event()
def sandbox():
    childprogram.seccomp(FILTER)
    print('ready', flush=True)
    done.wait()
threading.Thread(target=sandbox, daemon=True).start()
sys.stdin.readline()
print('done', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sandboxed(targets: Targets) -> Target:
    """One of its threads has a filter that kills at system calls it does not know."""
    directory = repr(str(Path(childprogram.__file__).parent))
    code = repr(killing_filter(native().system_calls.unassigned))
    program = SANDBOXED.replace("DIRECTORY", directory).replace("FILTER", code)
    return targets.start(sys.executable, "-c", program)


def test_sandboxed_programs_live_on(sandboxed: Target) -> None:
    traced(sandboxed, "go")
    assert sandboxed.end() == 0


@pytest.mark.parametrize("options", [(), ("--follow",)])
def test_sandboxed_programs_are_refused_where_they_would_be_killed(
    cache: Path, sandboxed: Target, options: tuple[str, ...]
) -> None:
    claim(cache, threads=True, seccomp=False)
    done = run_tracelloc("-p", sandboxed.pid, "--text", "--count", 1, *options, status=1)
    assert "on this kernel: it runs under a seccomp filter" in done.stderr
    assert sandboxed.ask("go") == "done"


def test_others_are_not(cache: Path, targets: Targets) -> None:
    claim(cache, threads=True, seccomp=False, shadow_stack=False)
    traced(targets.c("chain"), "go")
