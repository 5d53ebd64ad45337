"""Shows where names, source lines and unwind tables come from.

It lists each file that a process has mapped as code, and which package or option would add what is
missing. Nothing is traced.

To try it:
  sudo tracelloc symbols -n shop
"""

from argparse import ArgumentParser, Namespace
from functools import partial

from tracelloc.command.arguments import add_option
from tracelloc.command.processargument import add_process, named_process
from tracelloc.text import print_lines


def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    add_process(parser, "process to inspect")
    add("--json", "one JSON array instead of text")


def run(given: Namespace) -> None:
    process = named_process(given)
    from tracelloc.record.symbolization import inventory

    reports = inventory.take_inventory(process)
    lines = inventory.text_inventory(reports)
    print_lines([inventory.json_inventory(reports)] if given.json else lines)
