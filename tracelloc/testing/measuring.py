"""Measures each test, fails those beyond the limits of their markers, and reports at the end.

A process that runs tests asks the tracelloc that has started it. With pytest-xdist, each worker
asks, and its figures come with its reports.
"""

import errno
import inspect
import os
import shlex
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial

# The functions themselves, as a test may have replaced those of the modules.
from gc import collect, freeze, get_stats
from json import dumps, loads
from os import getpid
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest

from tracelloc import __version__
from tracelloc.dataclass import dataclass
from tracelloc.testing import FIGURES, SEARCH, VARIABLE
from tracelloc.testing.apart import begin_part, call_apart, end_part
from tracelloc.text import format_size, parse_size, plural, printable


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A function in a call stack, for ``filter_fn``."""

    function: str
    filename: str | None
    lineno: int | None


@dataclass(frozen=True, slots=True)
class Stack:
    """The call stack that allocated a leak, for ``filter_fn``."""

    frames: tuple[StackFrame, ...]  # Innermost first


@dataclass(frozen=True, slots=True)
class TestLimits:
    """The limits that a test's markers set; None: no limit."""

    memory: str | None  # Size as in the marker
    leaks: str | None  # Size as in the marker
    filter_leaks: Callable[[Stack], bool] | None

    @property
    def memory_bytes(self) -> int | None:
        """Most bytes that may be live at a time; None: no limit."""
        return None if self.memory is None else parse_size(self.memory)


def _limit(limit: str) -> str:
    parse_size(limit)
    return limit


def _leaks(limit: str, *, filter_fn: Callable[[Stack], bool] | None = None) -> Any:
    return _limit(limit), filter_fn


def limits_of(item: pytest.Item) -> TestLimits:
    """Returns the limits of a test's closest markers. Fails the test if a marker is wrong."""
    memory, leaks = map(item.get_closest_marker, ("limit_memory", "limit_leaks"))
    try:
        most = None if memory is None else _limit(*memory.args, **memory.kwargs)
        lost, kept = (None, None) if leaks is None else _leaks(*leaks.args, **leaks.kwargs)
    except (TypeError, ValueError, AttributeError) as error:
        pytest.fail(f"limit_memory, limit_leaks: {error}", pytrace=False)
    return TestLimits(most, lost, kept)


def broken_limits(limits: TestLimits, found: dict[str, Any]) -> list[str]:
    """Returns lines on the limits that a test has broken, with call stacks; empty: none."""
    lines: list[str] = []
    if "at_peak" in found:
        peak = found["peak_bytes"]
        lines.append(f'limit_memory("{limits.memory}"): the peak was {amount(peak)}, of which')
        for one in found["at_peak"]:
            if one["bytes"] * 100 >= (limits.memory_bytes or 0):
                lines += [f"{_blocks(one)}, allocated in", *stack_lines(one)]
    if limits.leaks is not None:
        most, limit = parse_size(limits.leaks), f'limit_leaks("{limits.leaks}")'
        beyond = [leak for leak in found["leaks"] if leak["bytes"] > most]
        if limits.filter_leaks is not None:
            beyond = [leak for leak in beyond if limits.filter_leaks(_stack(leak))]
        if beyond:
            total = sum(leak["bytes"] for leak in beyond)
            lines.append(f"{limit}: nothing points to {amount(total)} any more:")
            for one in beyond:
                lines += leak_lines(one)
        elif "problem" in found:
            lines.append(f"{limit}: not checked: {printable(found['problem'])}")
    elif "problem" in found and not found["allocated_blocks"]:
        lines.append(f'limit_memory("{limits.memory}"): not checked: {printable(found["problem"])}')
    return lines


def amount(size_bytes: int) -> str:
    """Formats a size, with the exact number of bytes if it is rounded."""
    text = format_size(size_bytes)
    return text if size_bytes < 1024 else f"{text} ({size_bytes:,} bytes)"


def _blocks(one: dict[str, Any]) -> str:
    return f"{amount(one['bytes'])} in {plural(one['blocks'], 'block')}"


def leak_lines(leak: dict[str, Any]) -> Iterator[str]:
    """Yields lines on a leak with its call stack."""
    kind = f" ({printable(leak['type'])})" if leak["type"] else ""
    yield f"{_blocks(leak)}{kind}, allocated in"
    yield from stack_lines(leak)


def stack_lines(one: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a call stack, innermost first."""
    for frame in one["stack"]:
        line = f":{frame['line']}" if frame["line"] else ""
        place = f" ({frame['file']}{line})" if frame["file"] else ""
        within = f" in {frame['module']}" if frame["module"] else ""
        yield printable(f"    {frame['function']}{within}{place}")
    if not one["stack"]:
        yield "    [no call stack]"


def _stack(leak: dict[str, Any]) -> Stack:
    frames = (StackFrame(one["function"], one["file"], one["line"]) for one in leak["stack"])
    return Stack(tuple(frames))


# The name of a test's run (it may have several); None: it has not begun.
_RUN: Final = pytest.StashKey[str | None]()
# Words of a block that may point to the type of a Python object: behind the collector's words.
_TYPE_WORDS: Final = (1, 3, 5)
_UNITS: Final = "bytes", "blocks"
_FIGURES: Final = "peak_bytes", "allocated_bytes", "allocated_blocks", "live_bytes", "live_blocks"
_LOST: Final = {**dict.fromkeys(_FIGURES, 0), "problem": "its figures were lost"}
_NO_LEAKS: Final = {"leaked_bytes": 0, "leaked_blocks": 0, "leaks": ()}
_MOST_BLOCKS: Final = 30_000  # That tests may leave until they are searched for
# After how many tests, or how long, their figures are asked for.
_MOST_WAITING: Final = 64
_LONGEST_WAIT_S: Final = 0.25


def _collections() -> list[int]:
    """Returns how often Python's garbage collector has collected each generation."""
    return [one["collections"] for one in get_stats()]


def _collect_since(before: list[int]) -> None:
    """Collects the generations in which objects are that were created since then."""
    pairs = zip(before, _collections(), strict=True)
    older = [at + 1 for at, (then, now) in enumerate(pairs) if now != then]
    collect(min(2, max(older, default=0)))


def _type_of(leak: dict[str, Any], head: list[int], types: dict[int, type]) -> str | None:
    """Returns the type of the Python object in a leaked block, if the block has room for it."""
    for word in _TYPE_WORDS:
        kind = types.get(head[word]) if word < len(head) else None
        if kind and leak["bytes"] >= leak["blocks"] * (8 * (word - 1) + kind.__basicsize__):
            return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return None


def _code_of(item: pytest.Item) -> Any:
    """Returns the code object of a test's function; None: it has none, as doctests."""
    function = getattr(item, "function", None)
    # What Hypothesis calls for each example. Its own function wraps nothing.
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    return getattr(function and inspect.unwrap(function), "__code__", None)


class Channel:
    """A connection to the tracelloc that started this process."""

    def __init__(self) -> None:
        """Takes over the inherited socket, and removes tracelloc's environment variables."""
        number, *added = os.environ.pop(VARIABLE).split()
        for name in added:
            os.environ.pop(name, None)
        self.pid = getpid()
        self._socket = socket.socket(fileno=int(number))
        self._socket.set_inheritable(False)
        self._sent = 0  # How many requests
        self._received = b""

    def ask(self, request: bytes) -> Iterator[dict[str, Any]]:
        """Yields the answer of ``TestRun``, and says why if there will be none.

        Answers come before it for which an earlier call has not waited: a signal's handler, such as
        that of a time limit, may have raised an exception there.
        """
        self._sent += 1
        try:
            self._socket.sendall(b"%s %d\n" % (request, self._sent))
            yield from self._answers()
        except (ConnectionError, EOFError):
            yield {"problem": "tracelloc has ended"}
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOTSOCK):
                raise  # It may be that of a signal's handler, such as TimeoutError
            yield {"problem": "a test has closed the connection to tracelloc"}

    def _answers(self) -> Iterator[dict[str, Any]]:
        answered = 0
        while answered != self._sent:
            line, end, rest = self._received.partition(b"\n")
            if end:
                answer = loads(line)
                answered = answer["number"]
                yield answer
                self._received = rest  # Again, if an exception came before
            elif piece := self._socket.recv(1 << 16):
                self._received += piece
            else:
                raise EOFError


class TestMemory:
    """The hooks of pytest that measure tests and report their memory."""

    __test__ = False

    def __init__(self, config: pytest.Config, launcher: list[str]) -> None:
        """``launcher``: the command line of tracelloc, to which that of a Python is added."""
        self._config, self._launcher = config, launcher
        # None: other processes run the tests
        self._opened = Channel() if VARIABLE in os.environ else None
        self._worker = getattr(config, "workerinput", {}).get("workerid", "")
        self._tests: dict[str, dict[str, Any]] = {}  # By runs
        self._unmeasured = 0
        self._runs = 0
        self._begun: list[str] = []  # Runs of the test functions that this process has begun
        self._asked, self._due_s = 0, 0.0  # How many figures were asked for, and when more are due
        self._figures: dict[str, dict[str, Any]] = {}  # By runs
        self._unsent: dict[str, dict[str, Any]] = {}  # Figures that no report has
        self._leaks: dict[str, dict[str, Any]] = {}  # What searches have found, by runs
        self._searched = 0  # Number of functions that the last search was after
        self._unsearched = 0  # Blocks that tests since then have left
        self._searches_all = not config.getoption("tracelloc_no_search")

    @property
    def _channel(self) -> Channel | None:
        """The connection; None if this process has none, also if a test has forked it."""
        opened = self._opened
        return opened if opened is not None and opened.pid == getpid() else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Leaves the modules' objects, of which no test is the owner, out of later collections."""
        if self._channel is not None:
            collect()
            freeze()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measures a test's own function, without its fixtures."""
        if (channel := self._channel) is None:
            return (yield)
        item.stash[_RUN] = None
        limits = limits_of(item)
        runtest, own = item.runtest, vars(item).get("runtest")
        # Leaks and peaks beyond limits are shown with their call stacks.
        is_limited = limits.leaks is not None or limits.memory is not None
        kind = 2 if self._searches_all else int(is_limited)
        self._runs += 1
        name = f"{self._worker} {self._runs}"
        collections, number = _collections(), len(self._begun) + 1

        def run() -> None:
            self._begun.append(name)
            begin_part(kind, number)
            runtest()

        code = _code_of(item)
        item.runtest = partial(call_apart, run, code)  # type: ignore[method-assign, assignment]
        try:
            result = yield
        finally:
            del item.runtest
            if own is not None:  # that of another plug-in
                item.runtest = own  # type: ignore[method-assign]
            found: dict[str, Any] = {}
            # Another plug-in may have skipped the test, or the test have forked this process.
            if name in self._begun[-1:] and self._channel is not None:
                item.stash[_RUN] = name
                # What only a cycle of references keeps is no leak.
                _collect_since(collections)
                end_part(limits.memory_bytes)
                count = len(self._begun) - self._asked
                if is_limited or count >= _MOST_WAITING or monotonic() > self._due_s:
                    self._ask(channel, may_search=limits.leaks is not None)
                    found = self._figures[name] | self._leaks.get(name, {})
        if lines := broken_limits(limits, found) if is_limited and found else []:
            pytest.fail("\n".join(lines), pytrace=False)
        return result

    def _ask(self, channel: Channel, *, may_search: bool) -> None:
        """Asks for the figures of tests that have ended, and searches for their leaks if due."""
        problem: dict[str, str] = {}
        for answer in channel.ask(FIGURES):
            problem = self._take(answer) or problem
        for name in self._begun[self._asked :]:
            if name not in self._figures:
                self._figures[name] = self._unsent[name] = _LOST | problem | _NO_LEAKS
        live = self._figures[self._begun[-1]]["live_blocks"]
        self._asked, self._due_s = len(self._begun), monotonic() + _LONGEST_WAIT_S
        if (may_search and live) or (self._searches_all and self._unsearched > _MOST_BLOCKS):
            self._search(channel)

    def _search(self, channel: Channel) -> None:
        """Searches for what the tests since the last search have leaked."""
        collect()
        # What ended functions have left in the memory of Python's frames: 160 KiB.
        _places["overwrite"](_DEPTH)
        problem: dict[str, str] = {}
        for answer in channel.ask(SEARCH):
            problem = self._take(answer)
        if problem:
            for test in self._begun[self._searched if self._searches_all else -1 :]:
                self._leaks[test] = self._leaks.get(test, {}) | problem
        self._searched, self._unsearched = len(self._begun), 0

    def _take(self, answer: dict[str, Any]) -> dict[str, str]:
        """Takes the figures or leaks in an answer; returns why some are incomplete, if so."""
        problem = {"problem": answer["problem"]} if answer.get("problem") else {}
        for number, figures in answer.get("tests", {}).items():
            name = self._begun[int(number) - 1]
            self._figures[name] = self._unsent[name] = figures | problem | _NO_LEAKS
            self._unsearched += figures["live_blocks"]
        leaks: dict[str, list[dict[str, Any]]] = answer.get("leaks", {})
        types = _known_types() if leaks else {}
        for number, some in leaks.items():
            for leak in some:
                leak["type"] = _type_of(leak, leak.pop("head"), types)
            total = {f"leaked_{unit}": sum(leak[unit] for leak in some) for unit in _UNITS}
            self._leaks[self._begun[int(number) - 1]] = {**total, "leaks": some}
        return problem

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Adds the figures to the report, which xdist sends to the main process."""
        report = yield
        if call.when == "call" and _RUN in item.stash:
            report.tracelloc = item.stash[_RUN], self._unsent  # type: ignore[attr-defined]
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the figures of a test's report."""
        # A subtest's memory is its test's.
        if report.when != "call" or hasattr(report, "context"):
            return
        if not hasattr(report, "tracelloc"):
            self._unmeasured += 1
        else:
            name, figures = report.tracelloc
            if figures is self._unsent:  # Sent with this report: others may have been dropped
                self._unsent = {}
            self._figures |= figures
            if name is not None:
                self._tests[name] = {"test": report.nodeid, "outcome": report.outcome}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: list[Any]) -> None:
        """Has xdist start its workers below tracelloc."""
        for spec in specs:
            if spec.popen:
                python = shlex.split(spec.python) if spec.python else [sys.executable]
                spec.python = shlex.join([*self._launcher, *python])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes what a worker has found."""
        figures, leaks = getattr(node, "workeroutput", {}).get("tracelloc", ({}, {}))
        self._figures |= figures
        self._leaks |= leaks

    def pytest_sessionfinish(self) -> None:
        """Searches the last time, and writes the file of ``--tracelloc-json``."""
        if (channel := self._channel) is not None:
            if len(self._begun) > self._asked:
                self._ask(channel, may_search=False)
            if self._unsearched and self._searches_all:
                self._search(channel)
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["tracelloc"] = self._unsent, self._leaks
            return
        for name, test in self._tests.items():
            test.update(self._figures.get(name, _LOST | _NO_LEAKS) | self._leaks.get(name, {}))
        if path := self._config.getoption("tracelloc_json"):
            file = Path(self._config.invocation_params.dir, path)
            content = {"tracelloc": __version__, "tests": list(self._tests.values())}
            file.write_text(dumps(content, indent=1) + "\n", encoding="utf-8")

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
        tests = list(self._tests.values())
        for one in sorted(tests, key=lambda test: -test["peak_bytes"])[:top]:
            write(_row(one))
        if (more := len(tests) - top) > 0:
            write(f"and {plural(more, 'more test')} (--tracelloc-top, --tracelloc-json)")
        leaks = [(leak, one["test"]) for one in tests for leak in one["leaks"]]
        leaks.sort(key=lambda each: -each[0]["bytes"])
        for leak, test in leaks[:top]:
            write(f"{printable(test)} leaked")
            for line in leak_lines(leak):
                write(line)
        if rest := leaks[top:]:
            total = sum(leak["bytes"] for leak, _ in rest)
            write(f"and {amount(total)} of {plural(len(rest), 'more call stack')}")
        problems = [one for one in tests if "problem" in one]
        for one in problems[:top]:
            write(f"{printable(one['test'])}: {printable(one['problem'])}")
        if (more := len(problems) - top) > 0:
            write(f"and {plural(more, 'more test')} with such problems")


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


def _known_types() -> dict[int, type]:
    found: dict[int, type] = {}
    new: list[type] = [object]
    while new:
        one = new.pop()
        if id(one) not in found:
            found[id(one)] = one
            new += type.__subclasses__(one)
    return found
