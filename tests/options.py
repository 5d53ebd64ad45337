"""Parses command lines for tests, and lists their options."""

from argparse import Action, ArgumentParser
from collections.abc import Sequence

from tracelloc.command.commandline import Options, parse_command_line
from tracelloc.command.options import completed


def parse_options(arguments: Sequence[str], *, terminal: bool = False) -> Options:
    """Options from the arguments after the program's name. Raises UsageError."""
    return completed(parse_command_line(arguments, terminal=terminal))


def actions_of(parser: ArgumentParser) -> Sequence[Action]:
    return parser._actions
