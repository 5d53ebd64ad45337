"""Memory limits of tests, set by markers, and the messages for tests that exceed them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tracelloc.dataclass import dataclass
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
    frames = (
        StackFrame(frame["function"], frame["file"], frame["line"]) for frame in leak["stack"]
    )
    return Stack(tuple(frames))
