"""Shows a topic of the manual, or lists the topics."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final

from tracelloc.command.arguments import type_of
from tracelloc.command.subcommands import Subcommand, SubcommandGroup


def _add_arguments(parser: ArgumentParser) -> None:
    from tracelloc.show import manual

    parser.add_argument(
        "topic", nargs="?", metavar="TOPIC", choices=manual.topics(),
        help="default: list the topics", type=type_of(manual.find_topic),
    )  # fmt: skip


def _run(given: Namespace) -> None:
    from tracelloc.show import manual

    manual.show(given.topic)


SUBCOMMAND: Final = Subcommand(__name__, SubcommandGroup.HELP, _add_arguments, _run)
