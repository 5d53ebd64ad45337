"""Shows which processes and containers of this machine grow.

It watches the memory of all processes and control groups, and reports their growth over the last
one, ten and sixty minutes. It traces nothing and needs no rights, except for processes that /proc
hides.

To try it:
  tracelloc top
"""

from argparse import ArgumentParser, Namespace
from contextlib import closing
from functools import partial
from typing import Final

from tracelloc.command import arguments
from tracelloc.command.processargument import report_numbers
from tracelloc.text import print_lines

_SORTS: Final = ("growth", "memory")
_REPORTS_S, _SCREEN_S = 10.0, 5.0  # Time between reports, and between looks for the screen


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(arguments.add_option, parser)
    add("--text", "reports in place of the screen that a terminal gets")
    add("--interval TIME", "time between reports (default 10s, on the screen 5s)",
        type=arguments.duration_type)
    add("--count N", "end after N reports (default: with Ctrl-C)", type=arguments.positive_type)
    add("--top N", "rows of each table (default 10)", type=arguments.count_type, default=10)
    add("--sort BY", "growth (default): what grows fastest first; memory: what is largest",
        choices=_SORTS, default=_SORTS[0])
    arguments.add_plain(parser)
    add("--json", "one line of JSON for each report, all processes")
# fmt: on


def run(given: Namespace) -> None:
    from tracelloc.command.cli import has_screen
    from tracelloc.machine.machinememory import by_growth, by_size, machine_json, machine_lines
    from tracelloc.machine.processes import ProcessReader
    from tracelloc.record.kernel.capabilities import raise_file_limit

    raise_file_limit()
    key = by_growth if given.sort == "growth" else by_size
    with closing(ProcessReader()) as reader:
        if has_screen() and not (given.text or given.json or given.count):
            from tracelloc.ui.machinescreen import show_machine

            show_machine(reader.read_memory, given.interval or _SCREEN_S, plain=given.plain)
            return
        for _ in report_numbers(given.interval or _REPORTS_S, given.count):
            machine = reader.read_memory()
            rows = sorted(machine.processes, key=key)
            lines = machine_lines(machine, rows, given.top)
            print_lines([machine_json(machine, rows)] if given.json else lines)
