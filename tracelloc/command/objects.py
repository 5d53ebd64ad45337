"""``tracelloc objects``: counts a Python program's objects, and says who keeps those that grow."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Final

from tracelloc.model.process import Target
from tracelloc.record.process.processlist import open_target
from tracelloc.record.runtimes.supported import object_counter
from tracelloc.show.report.objects import json_census, text_census, wanted_types
from tracelloc.snapshots.objects import ObjectCensus
from tracelloc.text import progress_of

_GROWING_TYPES: Final = 5
"""Types whose holders are shown if nothing else is asked for."""


def count_objects(given: argparse.Namespace) -> None:
    """Prints a census, or one after the other. Raises TracellocError."""
    process = open_target(given.pid)
    counter = object_counter(process)
    target = Target(process.pid, process.command())
    first: ObjectCensus | None = None
    try:
        for number in itertools.count(1):
            with progress_of("counting objects"):
                now = counter.count()
                is_first, first = first is None, first or now
                most = given.holders if given.holders is not None else _GROWING_TYPES
                if is_first:
                    most = given.holders or 0
                wanted = wanted_types(now, first, most) if most else []
                holders = counter.find_holders(wanted, new_only=not is_first)
            if given.json:
                lines = [json_census(target, now, first, holders)]
            else:
                lines = list(text_census(target, now, first, given.top, holders))
            text = "".join(f"{line}\n" for line in lines)
            sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
            sys.stdout.flush()
            if given.every is None or number == given.count:
                break
            time.sleep(max(0.0, now.time_s + given.every - time.time()))
    finally:
        counter.close()
