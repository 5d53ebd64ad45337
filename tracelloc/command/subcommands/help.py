"""Shows a topic of the manual, or what it says of a word.

To try it:
  tracelloc help oom
"""

from argparse import ArgumentParser, Namespace

from tracelloc.command.arguments import type_of
from tracelloc.command.subcommands import find_subcommand, subcommand_names


def add_arguments(parser: ArgumentParser) -> None:
    from tracelloc.show import manual

    known = sorted({*manual.names(), *subcommand_names()})
    parser.add_argument(
        "topic", nargs="?", metavar="WORD", choices=known, type=type_of(_find),
        help="a topic, a subcommand, or any other word (default: list the topics)",
    )  # fmt: skip


def _find(word: str) -> str:
    from tracelloc.show import manual

    return word if word in subcommand_names() else manual.find_topic(word)


def run(given: Namespace) -> None:
    from tracelloc.command.parser import subcommand_parser
    from tracelloc.show import manual

    if given.topic in subcommand_names():
        subcommand_parser(find_subcommand(given.topic)).print_help()
        print(flush=True)
    if given.topic is None or given.topic in manual.names():
        manual.show(given.topic)
