"""Prints a script that completes options and PIDs in a shell.

To try it:
  tracelloc completion bash > ~/.local/share/bash-completion/completions/tracelloc
"""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator

from tracelloc.text import print_lines


def add_arguments(parser: ArgumentParser) -> None:
    shells = ["bash", "zsh", "fish"]
    name = "|".join(shells)
    parser.add_argument("shell", choices=shells, metavar=name, help="shell to complete for")


def run(given: Namespace) -> None:
    import shtab

    from tracelloc.command.parser import whole_parser

    known = {
        "FILE": shtab.FILE, "DIR": shtab.DIR, "PID": shtab.cmd("cd /proc && echo [0-9]*"),
        "-n": shtab.cmd("cat /proc/[0-9]*/comm 2>/dev/null | sort -u"),
    }  # fmt: skip
    parser = whole_parser()
    for action in _actions(parser):
        for word in (action.metavar, *action.option_strings):
            if word in known:
                action.complete = known[word]  # type: ignore[attr-defined]
    print_lines([shtab.complete(parser, given.shell)])


def _actions(parser: ArgumentParser) -> Iterator[Action]:
    """Yields the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        for each in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from _actions(each)
