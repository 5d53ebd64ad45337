"""Finds lost blocks: nothing in the process points to them.

It searches the memory of a running process without tracing it, and groups lost blocks by size, C++
class and structure, however long ago they were allocated. The exit status is 3 if something is
lost. The process is neither probed nor stopped.

To try it:
  sudo tracelloc leaks -n shop
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelloc.command import processargument
from tracelloc.command.arguments import add_option, count_type, duration_type, positive_type
from tracelloc.show.alerts.rules import FAILED_STATUS
from tracelloc.text import print_lines, progress_of

if TYPE_CHECKING:
    from tracelloc.model.lostmemory import LostGroup

_CONTENTS_BYTES: Final = 64


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    processargument.add_process(parser, "process to search")
    add("--every TIME", "search again each TIME, until Ctrl-C or the end of the process, and list "
        "only what is new", type=duration_type)
    add("--count N", "end after N reports", type=positive_type)
    add("--top N", "groups to list (default 20)", type=count_type, default=20)
    add("--suppressions FILE", "leaks that are known: lines of leak:PATTERN, compared with the "
        "description of a group and with its class (repeatable)", action="append", type=Path,
        default=[])
    add("--contents", f"show the first {_CONTENTS_BYTES} bytes of a block of each group, which "
        "may be secret")
    add("--json", "one line of JSON for each report, all groups")
# fmt: on


def run(given: Namespace) -> int:
    process = processargument.named_process(given)
    from tracelloc.model.process import Target
    from tracelloc.record.reachability.lostblocks import LostBlockSearch
    from tracelloc.show.alerts.suppressions import read_patterns
    from tracelloc.show.report.pointers import describe, leak_lines, leaks_json

    patterns = read_patterns(given.suppressions)

    def is_suppressed(group: LostGroup) -> bool:
        texts = describe(group), group.class_name
        return any(match(text) for match in patterns for text in texts)

    target = Target(process.pid, process.command())
    status = 0
    shown = {"contents_bytes": _CONTENTS_BYTES if given.contents else 0, "debug": given.debug}
    with closing(LostBlockSearch(process, is_suppressed, **shown)) as search:
        for _ in processargument.report_numbers(given.every, given.count):
            with progress_of("searching for lost blocks"), processargument.reading_heap():
                found = search.find()
            status = FAILED_STATUS if found.groups else status
            lines = leak_lines(target, found, given.top)
            print_lines([leaks_json(target, found)] if given.json else lines)
    return status
