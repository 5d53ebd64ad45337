"""The parser of the command line, its help, and its messages about wrong command lines."""

import argparse
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn

from tracelloc.command.arguments import add_trace_options, is_pid
from tracelloc.command.processargument import take_plain
from tracelloc.command.subcommands import (
    Subcommand,
    SubcommandGroup,
    all_subcommands,
    subcommand_names,
)
from tracelloc.errors import UsageError

_USAGE: Final = """tracelloc [[-p] PID | [-n] NAME] [options]
       tracelloc [options] -- CMD [ARG...]
       tracelloc SUBCOMMAND ..."""
_DESCRIPTION: Final = "Shows which call stacks allocate memory that is never freed, and which leak."
_TRACES: Final = [
    "  -p PID        Traces a running process: the screen, or reports.",
    "  -- CMD        Traces a program from its start; its exit status is kept.",
]
_EPILOG: Final = (
    "SIZE is bytes, or 4k, 8MiB, 1.5g (powers of 1024). AGE, TIME and S are seconds, or 500ms, "
    "30s, 5m, 2h. Ctrl-C ends tracing, SIGUSR1 writes the files, SIGUSR2 sets a mark."
)

_UNKNOWN: Final = "unrecognized arguments: "
# Options of other programs, and what they are called here.
_OTHER_NAMES: Final = {"--verbose": "--debug", "-v": "--debug", "-V": "--version"}


class Formatter(argparse.HelpFormatter):
    """Formats help: wraps paragraphs, but neither lists nor words such as ``--help``."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapper = textwrap.TextWrapper(
            width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
        parts = text.strip().split("\n\n")
        return "\n\n".join(part if "\n  " in part else wrapper.fill(part) for part in parts)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError for a wrong command line."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more, formatter_class=Formatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help shows the options")

    def flags(self) -> list[str]:
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        return [flag for action in shown for flag in action.option_strings]


class TraceParser(Parser):
    """The parser of the command without a subcommand; its help lists the subcommands."""

    def format_help(self) -> str:
        """Returns the help text, for which each subcommand's module is imported."""
        lists = {group: [f"{group.value}:"] for group in SubcommandGroup}
        lists[SubcommandGroup.TRACE] += _TRACES
        for subcommand in all_subcommands():
            lists[subcommand.group].append(f"  {subcommand.name:<14}{subcommand.summary}")
        listed = "\n".join(line for lines in lists.values() for line in lines)
        self.description = f"{_DESCRIPTION}\n\n{listed}"
        return super().format_help()


def build_parser() -> Parser:
    """Returns the parser of a trace's options, with defaults and units in their help."""
    parser = TraceParser(
        prog="tracelloc", usage=_USAGE, description=_DESCRIPTION, epilog=_EPILOG, add_help=False
    )
    add_trace_options(parser)
    return parser


def subcommand_parser(subcommand: Subcommand) -> Parser:
    """Returns the parser of a subcommand's arguments."""
    parser = Parser(prog=f"tracelloc {subcommand.name}", description=subcommand.about)
    subcommand.add_arguments(parser)
    return parser


def whole_parser() -> Parser:
    """Returns a parser of all options and subcommands, for completions and the man page."""
    parser = build_parser()
    parser.usage = "tracelloc [options] [[-p] PID | [-n] NAME | -- CMD [ARG...] | SUBCOMMAND]"
    parsers = parser.add_subparsers(prog="tracelloc", title="subcommands", metavar="SUBCOMMAND")
    for one in all_subcommands():
        one.add_arguments(parsers.add_parser(one.name, help=one.summary, description=one.about))
    return parser


def parse_trace(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a trace's arguments, those before ``--``. Raises UsageError with a suggestion."""

    def is_process(word: str) -> bool:
        from tracelloc.record.process.identity import is_running  # noqa: PLC0415 - help needs none

        return "--wait" in arguments or is_pid(word) or is_running(word)

    parser = build_parser()
    if arguments and not (arguments[0].startswith("-") or is_process(arguments[0])):
        _refuse(arguments, arguments, parser.flags())
    given, unknown = parser.parse_known_args(arguments)
    # A positional argument would swallow what belongs to an unknown option.
    if len(unknown) == 1 and not unknown[0].startswith("-") and is_process(unknown[0]):
        given.process = unknown.pop()
        take_plain(given)
    if unknown:
        _refuse(arguments, unknown, parser.flags())
    return given


def parse_subcommand(subcommand: Subcommand, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a subcommand's arguments, those before ``--``. Raises UsageError."""
    parser = subcommand_parser(subcommand)
    given, unknown = parser.parse_known_intermixed_args(arguments)
    process = getattr(given, "process", None) or ""
    word = process if "/" in process else next(iter(unknown), "-")
    if subcommand.takes_command and not word.startswith("-"):
        raise UsageError(f"{_UNKNOWN}{word}", hint=_command_hint(parser.prog, arguments, word))
    if unknown:
        parser.error(f"{_UNKNOWN}{shlex.join(unknown)}")
    if hasattr(given, "process"):
        take_plain(given)
    return given


def _command_hint(program: str, arguments: Sequence[str], word: str) -> str:
    at = arguments.index(word)
    meant = [*program.split(), *arguments[:at], "--", *arguments[at:]]
    return f"did you mean {shlex.join(meant)}?"


def _refuse(arguments: Sequence[str], unknown: Sequence[str], flags: Iterable[str]) -> NoReturn:
    word = unknown[0]
    message = f"{_UNKNOWN}{shlex.join(unknown)}"
    if word.startswith("-"):
        name = word.partition("=")[0]
        close = [_OTHER_NAMES[name]] if name in _OTHER_NAMES else get_close_matches(name, flags, 1)
        hint = f"did you mean {close[0]}?" if close else "tracelloc --help-all shows all options"
    elif word.isdecimal():
        hint = f"did you mean tracelloc -p {word}?"
    elif close := get_close_matches(word, subcommand_names(), 1):
        hint = f"did you mean tracelloc {close[0]}? (the subcommand comes before all options)"
    else:
        hint = _command_hint("tracelloc", arguments, word)
    raise UsageError(message, hint=hint)
