"""Counts the objects of a Python program by type.

It reports how their numbers change and who holds them, for CPython 3.11 and newer. Memory is
read from outside; the program is not stopped.

To try it:
  sudo tracelloc objects -n app.py --every 30s
"""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

from tracelloc.command.arguments import add_option, count_type, duration_type, positive_type
from tracelloc.command.processargument import add_process, named_process, report_numbers
from tracelloc.text import print_lines, progress_of

if TYPE_CHECKING:
    from tracelloc.model.objects import ObjectCensus

_GROWING_TYPES: Final = 5  # Types whose holders are shown if nothing else is asked for


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    add_process(parser, "process to inspect")
    add("--every TIME", "count again each TIME, until Ctrl-C or the end of the process, and show "
        "what has changed since the first count", type=duration_type)
    add("--count N", "end after N counts", type=positive_type)
    add("--top N", "types to list (default 20)", type=count_type, default=20)
    add("--holders N", "show the holders of the N types that grow most, or are largest in the "
        "first count (default 5 from the second count on; 0: none)", type=count_type)
    add("--json", "one line of JSON for each count, all types")
# fmt: on


def run(given: Namespace) -> None:
    process = named_process(given)
    from tracelloc.model.process import Target
    from tracelloc.record.runtimes.supported import object_counter
    from tracelloc.show.report.heap import json_census, text_census, wanted_types

    target = Target(process.pid, process.command())
    first: ObjectCensus | None = None
    with closing(object_counter(process)) as counter:
        for _ in report_numbers(given.every, given.count):
            with progress_of("counting objects"):
                now = counter.count()
                is_first, first = first is None, first or now
                usual = 0 if is_first else _GROWING_TYPES
                most = usual if given.holders is None else given.holders
                wanted = wanted_types(now, first, most) if most else []
                holders = counter.find_holders(wanted, new_only=not is_first)
            lines = text_census(target, now, first, given.top, holders)
            print_lines([json_census(target, now, first, holders)] if given.json else lines)
