"""Shows what keeps a process's memory: who points to it.

For blocks of a class, of a size or at an address, it lists the paths that lead to them from a
variable, a thread's stack or other memory, and how much freeing that would free. Without WHAT, it
lists the roots that keep most of the heap. The process is neither probed nor stopped.

To try it:
  sudo tracelloc holders -n shop
"""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from functools import partial

from tracelloc.command.arguments import add_option, positive_type
from tracelloc.command.processargument import add_process, named_process, reading_heap
from tracelloc.text import print_lines, progress_of


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    add_process(parser, "process to inspect")
    parser.add_argument("what", metavar="WHAT", nargs="?", help="a C++ class (app::Session), a "
        "size in bytes (64), or an address (0x55ff365b8cf0): whose holders to show; without it, "
        "what keeps most of the heap")
    add("--top N", "holders to list (default 10)", type=positive_type, default=10)
    add("--json", "one line of JSON")
# fmt: on


def run(given: Namespace) -> None:
    process = named_process(given)
    from tracelloc.model.process import Target
    from tracelloc.record.reachability.blockholders import HolderFinder, selection
    from tracelloc.show.report import pointers

    target = Target(process.pid, process.command())
    with (
        closing(HolderFinder(process, debug=given.debug)) as finder,
        progress_of("searching for holders"),
        reading_heap(),
    ):
        if given.what is None:
            top = finder.top(given.top)
            lines = pointers.top_holder_lines(target, top)
            text = pointers.top_holders_json(target, top) if given.json else ""
        else:
            found = finder.holders(selection(given.what), given.top)
            lines = pointers.holder_lines_of(target, given.what, found)
            text = pointers.holders_json(target, given.what, found) if given.json else ""
    print_lines([text] if given.json else lines)
