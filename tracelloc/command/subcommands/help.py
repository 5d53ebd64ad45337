"""Shows a topic, a subcommand's help, or the list of topics."""

from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.arguments import type_of
from tracelloc.command.subcommands import (
    Subcommand,
    SubcommandGroup,
    find_subcommand,
    subcommand_names,
)


def _add_arguments(parser: ArgumentParser) -> None:
    from tracelloc.show import manual

    known = sorted({*manual.topics(), *subcommand_names()})
    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", choices=known,
        help="a topic, else a subcommand (default: list the topics)", type=type_of(_find),
    )  # fmt: skip


def _find(word: str) -> str:
    from tracelloc.show import manual

    is_topic = word in manual.topics() or word in manual.ALIASES
    return word if word in subcommand_names() and not is_topic else manual.find_topic(word)


def _run(given: Namespace) -> None:
    from tracelloc.command.parser import subcommand_parser
    from tracelloc.show import manual

    if given.topic is None or given.topic in manual.topics():
        manual.show(given.topic)
    else:
        subcommand_parser(find_subcommand(given.topic)).print_help()


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.HELP, _add_arguments, _run)
