"""Measures each test, fails those beyond their limits, and reports at the end.

A process that runs tests asks the tracelloc that has started it. With pytest-xdist, each worker
asks, and its figures come with its reports.
"""

import gc
import json
import os
import shlex
import socket
import sys
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tracelloc import __version__
from tracelloc.testing import VARIABLE
from tracelloc.testing.apart import call_apart
from tracelloc.testing.limits import amount, broken_limits, leak_lines, limits_of
from tracelloc.text import format_size, plural, printable

_FOUND: Final = pytest.StashKey[dict[str, Any]]()
# Words of a block that may point to the type of a Python object: behind the collector's words.
_TYPE_WORDS: Final = (1, 3, 5)


class Channel:
    """A connection to the tracelloc that started this process. Waiting allocates nothing."""

    def __init__(self) -> None:
        """Takes over the inherited socket, and removes tracelloc's environment variables."""
        number, *added = os.environ.pop(VARIABLE).split()
        for name in added:
            os.environ.pop(name, None)
        self._socket = socket.socket(fileno=int(number))
        self._socket.set_inheritable(False)
        self._one, self._piece = bytearray(1), bytearray(1 << 16)
        self._send, self._receive = self._socket.send, self._socket.recv_into

    def begin(self) -> None:
        """Begins the figures of a test."""
        self._send(b"begin\n")
        self._receive(self._one)

    @staticmethod
    def request(**wanted: Any) -> bytes:
        """Returns the request for ``end``, to be made before ``begin``."""
        return json.dumps(wanted).encode() + b"\n"

    def end(self, request: bytes) -> dict[str, Any]:
        """Returns the figures since ``begin``, as ``TestRun`` has them."""
        self._send(request)
        answer = bytearray()
        while not answer.endswith(b"\n"):
            count = self._receive(self._piece)
            if not count:
                raise EOFError("tracelloc has ended")
            answer += self._piece[:count]
        found: dict[str, Any] = json.loads(answer)
        return found


class TestMemory:
    """The hooks of pytest that measure tests and report their memory."""

    __test__ = False

    def __init__(self, config: pytest.Config, launcher: list[str]) -> None:
        """``launcher``: the command line of tracelloc, to which that of a Python is added."""
        self._config = config
        self._launcher = launcher
        # None: other processes run the tests
        self._channel = Channel() if VARIABLE in os.environ else None
        self._tests: list[dict[str, Any]] = []
        self._unmeasured = 0

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measures a test's own function, without its fixtures."""
        if self._channel is None:
            return (yield)
        limits = limits_of(item)
        search = limits.leaks is not None or not self._config.getoption("tracelloc_no_search")
        request = self._channel.request(memory=limits.memory_bytes, search=search)
        begin, runtest = self._channel.begin, item.runtest

        def run() -> None:
            begin()
            runtest()

        item.runtest = partial(call_apart, run)  # type: ignore[method-assign, assignment]
        try:
            result = yield
        finally:
            del item.runtest
            found = self._measure(self._channel, item, request)
        if lines := broken_limits(limits, found):
            pytest.fail("\n".join(lines), pytrace=False)
        return result

    def _measure(self, channel: Channel, item: pytest.Item, request: bytes) -> dict[str, Any]:
        # What only a cycle of references keeps is no leak.
        gc.collect()
        # What ended functions have left in the memory of Python's frames: 160 KiB.
        _places["overwrite"](_DEPTH)
        found = channel.end(request)
        names = _names_of_types() if found["leaks"] else {}
        for leak in found["leaks"]:
            head = leak.pop("head")
            types = (names.get(head[word]) for word in _TYPE_WORDS if word < len(head))
            leak["type"] = next(filter(None, types), None)
        item.stash[_FOUND] = found
        return found

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds the figures to the report, which xdist sends to the main process."""
        report = yield
        if call.when == "call" and _FOUND in item.stash:
            report.tracelloc = item.stash[_FOUND]  # type: ignore[attr-defined]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the figures of a test's report."""
        if report.when != "call":
            return
        found = getattr(report, "tracelloc", None)
        if found is None:
            self._unmeasured += 1
        else:
            self._tests.append({"test": report.nodeid, "outcome": report.outcome, **found})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        """Has xdist start its workers below tracelloc."""
        for spec in specs:
            if spec.popen:
                python = shlex.split(spec.python) if spec.python else [sys.executable]
                spec.python = shlex.join([*self._launcher, *python])

    def pytest_sessionfinish(self) -> None:
        """Writes the figures of all tests to the file of ``--tracelloc-json``."""
        path = self._config.getoption("tracelloc_json")
        if path and not hasattr(self._config, "workerinput"):
            file = Path(self._config.invocation_params.dir, path)
            content = {"tracelloc": __version__, "tests": self._tests}
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Lists the tests with the highest peaks, and the leaks."""
        top = self._config.getoption("tracelloc_top")
        write = terminalreporter.write_line
        terminalreporter.section(f"memory of {plural(len(self._tests), 'test')} (tracelloc)")
        if self._unmeasured:
            write(f"{plural(self._unmeasured, 'test')} not measured: not started by tracelloc")
        if not self._tests:
            return
        write(_ROW.format("peak", "allocated", "blocks", "live", "leaked", "test"))
        for one in sorted(self._tests, key=lambda test: -test["peak_bytes"])[:top]:
            write(_row(one))
        if (more := len(self._tests) - top) > 0:
            write(f"and {plural(more, 'more test')} (--tracelloc-top, --tracelloc-json)")
        leaks = [(leak, one["test"]) for one in self._tests for leak in one["leaks"]]
        leaks.sort(key=lambda each: -each[0]["bytes"])
        for leak, test in leaks[:top]:
            write(f"{printable(test)} leaked")
            for line in leak_lines(leak):
                write(line)
        if rest := leaks[top:]:
            total = sum(leak["bytes"] for leak, _ in rest)
            write(f"and {amount(total)} of {plural(len(rest), 'more call stack')}")
        for one in self._tests:
            if "problem" in one:
                write(f"{printable(one['test'])}: {printable(one['problem'])}")


_ROW: Final = "{:>10} {:>10} {:>11} {:>10} {:>10}  {}"


def _row(one: dict[str, Any]) -> str:
    sizes = [format_size(one[f"{name}_bytes"]) for name in ("peak", "allocated", "live", "leaked")]
    blocks = f"{one['allocated_blocks']:,}"
    return _ROW.format(*sizes[:2], blocks, *sizes[2:], printable(one["test"]))


_VARIABLES: Final = " = ".join(f"v{number}" for number in range(200))
_DEPTH: Final = 100
_places: dict[str, Any] = {}
exec(  # noqa: S102 - a function with very many variables
    f"def overwrite(depth):\n {_VARIABLES} = None\n if depth: overwrite(depth - 1)", _places
)


def _names_of_types() -> dict[int, str]:
    found: dict[int, str] = {}
    new: list[type] = [object]
    while new:
        one = new.pop()
        if id(one) not in found:
            found[id(one)] = f"{one.__module__}.{one.__qualname__}".removeprefix("builtins.")
            new += type.__subclasses__(one)
    return found
