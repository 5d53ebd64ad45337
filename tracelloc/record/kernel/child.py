"""A child process on which tracelloc tests what probes cost and what they break."""

import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel import childprogram
from tracelloc.record.kernel.attach import Attachment
from tracelloc.record.kernel.method import Method
from tracelloc.record.mallocs.discovery import discover, functions_of
from tracelloc.record.mallocs.signatures import FREE
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace

IDLE_PROGRAM: Final = "do_nothing"  # The BPF program of the child's probes, which returns at once


class ChildEndedError(Exception):
    """Raised if the child process did not survive a requested function."""


class ProbedChild:
    """A context: a child process that runs ``childprogram``; its ``free`` can be probed."""

    def __init__(self) -> None:
        """Finds free. Raises UnsupportedError if the C library has no such function; OSError."""
        self._popen = subprocess.Popen(
            [sys.executable, "-IS", childprogram.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # ^C must not reach it
        )
        assert self._popen.stdout is not None
        self._popen.stdout.readline()
        self.process = Process(self._popen.pid)
        self._space = AddressSpace(self.process)
        functions = functions_of(discover(self._space.refresh()))
        found = [function for function in functions if function.signature == FREE]
        if not found:
            self.__exit__(None, None, None)
            raise UnsupportedError("the C library has no free that could be probed")
        self._free = found[0]
        found_at = self._free.module.elf.offsets(
            [
                (self._free.offset, self._free.size, FREE.registers),
                (self._free.offset, self._free.size, None),
            ]
        )
        if found_at is None or None in found_at:
            self.__exit__(None, None, None)
            raise UnsupportedError("the C library's code can't be probed")
        cheap, entry = (place for place in found_at if place is not None)
        self._offset, (beyond_entry, is_single_stepped) = cheap[0], entry
        # Whether the kernel emulates the first instruction
        self.has_cheap_entry = not (beyond_entry or is_single_stepped)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._space.close()
        for stream in (self._popen.stdin, self._popen.stdout):
            assert stream is not None
            stream.close()
        self._popen.wait()

    def point(self, *, at_entry: bool = False, returns: bool = False) -> ProbePoint:
        """Returns a probe point on free: a cheap one, or the first instruction (``at_entry``)."""
        offset = self._free.offset + (0 if at_entry else self._offset)
        return ProbePoint(
            self._free.module.open_path, offset, IDLE_PROGRAM, "free", returns=returns
        )

    def probed(
        self, method: Method, program: Callable[[str], int], *points: ProbePoint
    ) -> Attachment:
        """Attaches probes to the child process. Raises TracellocError."""
        return Attachment(method, self.process.pid, points, program)

    def ask(self, what: str, code: bytes = b"") -> float:
        """Makes the child run a ``childprogram`` function with its code. Raises ChildEndedError."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(f"{what} {code.hex()}\n".encode())
            self._popen.stdin.flush()
            return float(self._popen.stdout.readline())
        except (OSError, ValueError) as error:
            raise ChildEndedError(what) from error
