"""Prints a script that completes tracelloc's options in a shell."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from tracelloc.command.subcommands import Subcommand, SubcommandGroup
from tracelloc.text import print_lines


def _add_arguments(parser: ArgumentParser) -> None:
    shells = ["bash", "zsh", "fish"]
    name = "|".join(shells)
    parser.add_argument("shell", choices=shells, metavar=name, help="shell to complete for")


def _run(given: Namespace) -> None:
    import shtab

    from tracelloc.command.parser import whole_parser

    parser = whole_parser()
    for action in parser._actions:
        if action.type is Path or action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print_lines([shtab.complete(parser, given.shell)])


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.HELP, _add_arguments, _run)
