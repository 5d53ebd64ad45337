"""``tracelloc objects``: counts a Python program's objects, and says who keeps those that grow."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Final

from tracelloc.model.process import Target
from tracelloc.record.process.processlist import open_target
from tracelloc.record.runtimes.cpython.census import Censuses
from tracelloc.record.runtimes.cpython.holders import HolderSearch, ObjectAddresses
from tracelloc.show.report.objects import json_census, text_census, wanted_types
from tracelloc.snapshots.objects import Holders, ObjectCensus
from tracelloc.text import progress_of

_GROWING_TYPES: Final = 5
"""Types whose holders are shown if nothing else is asked for."""


def count_objects(given: argparse.Namespace) -> None:
    """Prints a census, or one after the other. Raises TracellocError."""
    process = open_target(given.pid)
    censuses = Censuses(process)
    search = HolderSearch(process)
    target = Target(process.pid, process.command())
    first: ObjectCensus | None = None
    before: ObjectAddresses | None = None
    try:
        for number in itertools.count(1):
            with progress_of("counting objects"):
                now = censuses.take(keep=True)
                found = censuses.take_found()
                holders: dict[str, Holders] = {}
                most = given.holders if given.holders is not None else _GROWING_TYPES
                if first is None:
                    first, most = now, given.holders or 0
                if most:
                    wanted = wanted_types(now, first, most)
                    holders = search.find(found, wanted, before) if wanted else {}
                if before is None and given.every is not None:
                    before = ObjectAddresses(found)
                del found
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
        search.close()
