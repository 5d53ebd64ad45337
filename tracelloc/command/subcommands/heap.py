"""Shows how a process uses its heap, without tracing it.

It finds every block of glibc, jemalloc, mimalloc, tcmalloc or musl, however old, and shows what is
in use by arena, size and C++ class, and what is free but still resident. It reads memory from
outside: the process is neither probed nor stopped.

To try it:
  sudo tracelloc heap -n shop
"""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Final

from tracelloc.command import processargument
from tracelloc.command.arguments import add_option, count_type, duration_type, positive_type
from tracelloc.text import print_lines, progress_of

_CONTENTS_BYTES: Final = 64


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    processargument.add_process(parser, "process to inspect")
    add("--every TIME", "look again each TIME, until Ctrl-C or the end of the process",
        type=duration_type)
    add("--count N", "end after N looks", type=positive_type)
    add("--top N", "rows of each table (default 10)", type=count_type, default=10)
    add("--largest N", "list the N largest blocks (default 5)", type=count_type, default=5)
    add("--contents", f"show the first {_CONTENTS_BYTES} bytes of the largest blocks, which may "
        "be secret")
    add("--json", "one line of JSON for each look, all sizes and classes")
# fmt: on


def run(given: Namespace) -> None:
    process = processargument.named_process(given)
    from tracelloc.model.process import Target
    from tracelloc.record.heapwalk.arenas import NotWalkableError
    from tracelloc.record.heapwalk.measuring import measure_heap, measure_memory
    from tracelloc.show.presentation.memoryparts import part_lines
    from tracelloc.show.report.heap import heap_json, heap_lines

    target = Target(process.pid, process.command())
    contents_bytes = _CONTENTS_BYTES if given.contents else 0
    for _ in processargument.report_numbers(given.every, given.count):
        with progress_of("walking the heap"), processargument.reading_heap():
            try:
                heap = measure_heap(process, largest=given.largest, contents_bytes=contents_bytes)
            except NotWalkableError:
                # Where memory is otherwise is known all the same.
                usage = measure_memory(process)
                print_lines([heap_json(target, usage)] if given.json else part_lines(usage.account))
                raise
        lines = heap_lines(target, heap, given.top)
        print_lines([heap_json(target, heap)] if given.json else lines)
