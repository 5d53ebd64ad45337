"""Shared fixtures: compiled target programs, and whether this machine can trace."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import declared
from tests.forked import FORKER
from tests.harness import Builder, Targets
from tracelloc.errors import TracellocError
from tracelloc.record.kernel import capabilities as system

# Whoever runs this in the background, or by nohup, has signals ignored or blocked, and with that
# all that is started. A handler is none for what is executed, and keeps us from being ended.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda _number, _frame: None)
for _number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, signal.SIGALRM):
    signal.signal(_number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
# Nobody's own filters have a say in what tests see.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
# Nor what earlier runs have found out. Root could make any other directory.
os.environ["XDG_CACHE_HOME"] = "/dev/null"

# Half of the time to find the tests is for rewriting their assertions: pytest keeps what it wrote,
# except where root would leave files in someone else's directories.
sys.dont_write_bytecode = Path(__file__).stat().st_uid != os.geteuid()

# Set by continuous integration: then nothing is skipped that a machine of ours can do, and what
# tests use of the system must belong to packages of ``system-packages.sh``.
IS_COMPLETE = bool(os.environ.get("TEST_COMPLETE"))
sys.addaudithook(declared.note)


def _cannot_trace() -> str | None:
    try:
        system.check_all()
    except TracellocError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without BPF those tests are skipped with the reason; where it must work, they fail."""
    reason = _cannot_trace()
    if reason is None or IS_COMPLETE:
        return
    for item in items:
        if item.get_closest_marker("bpf"):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Modules and tests stay: that each collection of garbage looks at them takes its time.

    It took a fifth of the screen's tests, which make widgets by the thousand.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Adds what a worker of xdist has used."""
    declared.used.update(getattr(node, "workeroutput", {}).get("used", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the session if it used something that no list of packages declares."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["used"] = sorted(declared.used)
    elif IS_COMPLETE and (unknown := declared.undeclared(declared.used)):
        for path, package in unknown.items():
            print(f"\n{path} ({package}) is not declared in tests/system-packages.sh", end="")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts skipped tests by reason in the file ``TEST_SKIPPED``, for all sessions of a target."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
    )
    path = os.environ.get("TEST_SKIPPED")
    if path and "PYTEST_XDIST_WORKER" not in os.environ:  # the controller has all reports
        with open(path, "a") as file:
            file.writelines(f"{n} skipped: {reason}\n" for reason, n in reasons.most_common())


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes have which run these tests."""
    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    return directory


@pytest.fixture(scope="session")
def build_cache(shared: Path) -> Path:
    """A directory for what is compiled once, for all processes that run these tests.

    With ``TEST_CACHE`` set, it is that directory, and serves other sessions as well.
    """
    cache = Path(os.environ.get("TEST_CACHE") or shared / "cache")
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@pytest.fixture(scope="session")
def go_cache(build_cache: Path) -> Path:
    """``GOCACHE``: Go compiles its own library for the first program only."""
    return build_cache / "go"


@pytest.fixture(scope="session", autouse=True)
def _probes_compiled_once(build_cache: Path) -> Iterator[None]:
    """What is compiled for one test serves the others; what stacks came by does not."""
    (build_cache / "tracelloc").mkdir(exist_ok=True)
    (build_cache / "tracelloc/call-sites").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(build_cache))
        yield


@pytest.fixture(scope="session", autouse=True)
def _modules_compiled_once(shared: Path) -> Iterator[None]:
    """tracelloc is started hundreds of times, and leaves nothing in the source's folders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "pycache"))
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _environment_of_what_is_forked(
    _probes_compiled_once: None, _modules_compiled_once: None
) -> None:
    """Tests that change it execute tracelloc."""
    FORKER.remember_variables()


@pytest.fixture(scope="session")
def builder(shared: Path) -> Builder:
    """Compiles the programs in ``tests/targets``, each once per session."""
    directory = shared / "targets"
    directory.mkdir(exist_ok=True)
    return Builder(directory)


@pytest.fixture
def targets(builder: Builder) -> Iterator[Targets]:
    """Targets started by a test; whatever is left of them is killed at its end."""
    started = Targets(builder)
    yield started
    for target in started:
        target.kill()
