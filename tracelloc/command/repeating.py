"""Reports about a running process that are repeated, and how failing to read it is reported."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tracelloc.errors import TargetError, scarcity


def report_numbers(every_s: float | None, most: int | None) -> Iterator[int]:
    """Yields the number of each report, from 1, when it is due: once if ``every_s`` is None."""
    for number in itertools.count(1):
        began_s = time.monotonic()
        yield number
        sys.stdout.flush()
        if every_s is None or number == most:
            return
        time.sleep(max(0.0, began_s + every_s - time.monotonic()))


@contextmanager
def reading_heap() -> Iterator[None]:
    """Reports errors of reading a process's heap: raises TargetError for OSError, MemoryError."""
    try:
        yield
    except MemoryError as error:
        raise TargetError("the heap can't be read: there is no memory left") from error
    except OSError as error:
        raise TargetError(f"the heap can't be read: {scarcity(error) or error}") from error
