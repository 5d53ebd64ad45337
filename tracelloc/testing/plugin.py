"""The options, markers and start of ``pytest --tracelloc``.

pytest imports this module whenever it starts, so it imports nothing else until the option is
given. pytest then starts again below tracelloc, which preloads its library.
"""

import os
import sys
from collections.abc import Generator
from typing import Any, Final

import pytest

from tracelloc.testing import VARIABLE

_MARKERS: Final = (
    'limit_memory(limit): with --tracelloc, the test fails if its peak is above it ("24 MiB")',
    (
        "limit_leaks(limit, filter_fn=None): with --tracelloc, the test fails if a call stack has "
        'lost more ("0 B"): memory that nothing points to when the test has ended'
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the plug-in's options to pytest."""
    group = parser.getgroup("tracelloc", "memory of tests (tracelloc help pytest)")

    def add(name: str, about: str, **more: Any) -> None:
        group.addoption(name, help=about, **more)

    add("--tracelloc", "measure each test's memory, and find its leaks", action="store_true")
    add("--tracelloc-json", "write the figures of all tests as JSON", metavar="FILE")
    top = "tests and leaks to list (default 10)"
    add("--tracelloc-top", top, metavar="N", type=int, default=10)
    known = "known leaks, in LeakSanitizer's syntax (repeatable)"
    add("--tracelloc-suppressions", known, metavar="FILE", action="append", default=[])
    search = "search for leaks only in tests with limit_leaks"
    add("--tracelloc-no-search", search, action="store_true")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Starts pytest again, before its output is captured and any test is imported."""
    options = early_config.known_args_namespace
    # Children of a worker inherit the variable, but are started otherwise.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ and sys.argv[:1] == ["-c"]
    is_measured = VARIABLE in os.environ
    if options.tracelloc and not (is_measured or is_worker or _distributes(options)):
        if tuple(early_config.invocation_params.args) != tuple(sys.argv[1:]):
            why = "--tracelloc: start pytest by its command, not by pytest.main()"
            raise pytest.UsageError(why)
        command = [*_launcher(options), sys.executable, *sys.orig_argv[1:]]
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(command[0], command)  # noqa: S606 - no shell is needed
    return (yield)


def _distributes(options: Any) -> bool:
    how = getattr(options, "dist", "no"), getattr(options, "numprocesses", None)
    return how[0] != "no" or bool(how[1]) or bool(getattr(options, "tx", None))


def _launcher(options: Any) -> list[str]:
    """Returns the command line of tracelloc, to which that of a Python is added."""
    known = [word for path in options.tracelloc_suppressions for word in ("--suppressions", path)]
    return [sys.executable, "-P", "-m", "tracelloc", "run", "--tests", *known, "--"]


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers, and the measuring hooks if they are requested."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("tracelloc"):
        from tracelloc.testing.measuring import TestMemory  # noqa: PLC0415 - only if needed

        measuring = TestMemory(config, _launcher(config.option))
        config.pluginmanager.register(measuring, "tracelloc-memory")
