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
    group.addoption(
        "--tracelloc", action="store_true", help="measure each test's memory, and find its leaks"
    )
    group.addoption(
        "--tracelloc-json", metavar="FILE", help="write the figures of all tests as JSON"
    )
    group.addoption(
        "--tracelloc-top", metavar="N", type=int, default=10,
        help="tests and leaks to list (default 10)",
    )  # fmt: skip
    group.addoption(
        "--tracelloc-suppressions", metavar="FILE", action="append", default=[],
        help="known leaks, in LeakSanitizer's syntax (repeatable)",
    )  # fmt: skip
    group.addoption(
        "--tracelloc-no-search", action="store_true",
        help="search for leaks only in tests with limit_leaks",
    )  # fmt: skip


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Starts pytest again, before its output is captured and any test is imported."""
    options = early_config.known_args_namespace
    # Children of a worker inherit the variable, but are started otherwise.
    is_worker = "PYTEST_XDIST_WORKER" in os.environ and sys.argv[:1] == ["-c"]
    is_measured = VARIABLE in os.environ
    if options.tracelloc and not (is_measured or is_worker or _distributes(options)):
        if tuple(early_config.invocation_params.args) != tuple(sys.argv[1:]):
            raise pytest.UsageError(
                "--tracelloc: start pytest by its command, not by pytest.main()"
            )
        command = [
            *_launcher(early_config.known_args_namespace),
            sys.executable,
            *sys.orig_argv[1:],
        ]
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
