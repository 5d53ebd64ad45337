"""The parser of the command line, and what it says of calls that are wrong."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from tracelloc.command.arguments import add_all
from tracelloc.errors import UsageError

SUBCOMMANDS: Final = (
    "completion", "diff", "doctor", "help", "lane-path", "merge", "objects", "open", "record",
    "report", "symbols",
)  # fmt: skip
"""Words that stand before all options; ``subcommands`` has them."""
_USAGE: Final = """tracelloc [-p PID | -n NAME] [options]
       tracelloc [options] -- CMD [ARG...]
       tracelloc record -p PID -o FILE record now (or -n NAME, or -- CMD)
       tracelloc open|report FILE      look later, as of any moment
       tracelloc doctor [-p PID]       will it work, and what will be missing?
       tracelloc symbols -p PID        where names and source lines come from
       tracelloc objects -p PID        objects of a Python program by type
       tracelloc diff BEFORE AFTER     compare two exports
       tracelloc help [TOPIC]          the manual
       tracelloc completion SHELL      completions for bash, zsh or fish"""
_DESCRIPTION: Final = (
    "Shows which call stacks of a running process allocate memory that is not freed, and which of "
    "them leak. With -- CMD, a program is traced from its first allocation; its exit status "
    "becomes tracelloc's."
)
_EPILOG: Final = (
    "SIZE is bytes, or 4k, 8MiB, 1.5g (powers of 1024). AGE, TIME and S are seconds, or 500ms, "
    "30s, 5m, 2h. Ctrl-C ends tracing, SIGUSR1 writes the files, SIGUSR2 sets a mark."
)


class Formatter(argparse.HelpFormatter):
    """Wraps paragraphs, and leaves words such as ``--help`` whole."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line, like every other error."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more, formatter_class=Formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError instead of printing the usage and exiting."""
        raise UsageError(message, hint=f"{self.prog} --help shows the options")

    def flags(self) -> list[str]:
        """All options by name."""
        return [flag for action in self._actions for flag in action.option_strings]


def build_parser() -> Parser:
    """All options of a trace, defaults and units in their help."""
    parser = Parser(
        prog="tracelloc",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        add_help=False,
    )
    add_all(parser)
    return parser


def parse_trace(arguments: Sequence[str]) -> argparse.Namespace:
    """Arguments before ``--``. Raises UsageError, with what was probably meant."""
    parser = build_parser()
    if arguments and not arguments[0].startswith("-"):
        _refuse(arguments, arguments, parser.flags())
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(arguments, unknown, parser.flags())
    return given


def _refuse(arguments: Sequence[str], unknown: Sequence[str], flags: Iterable[str]) -> NoReturn:
    word = unknown[0]
    message = f"unrecognized arguments: {shlex.join(unknown)}"
    if word.startswith("-"):
        close = get_close_matches(word.partition("=")[0], flags, 1)
        hint = f"did you mean {close[0]}?" if close else "tracelloc --help-all shows all options"
    elif word.isdecimal():
        hint = f"did you mean tracelloc -p {word}?"
    elif close := get_close_matches(word, SUBCOMMANDS, 1):
        hint = f"did you mean tracelloc {close[0]}? (it stands before all options)"
    else:
        at = arguments.index(word)
        meant = ["tracelloc", *arguments[:at], "--", *arguments[at:]]
        hint = f"did you mean {shlex.join(meant)}?"
    raise UsageError(message, hint=hint)
