"""The registry of subcommands: each module of this package is one.

A module's name is the subcommand's, its docstring the help, of which ``tracelloc --help`` shows the
first line. A module imports slow modules only when its subcommand runs.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from pathlib import Path

from tracelloc.command.arguments import add_option, add_quiet
from tracelloc.dataclass import dataclass


class SubcommandGroup(Enum):
    """The purposes of subcommands; the values are titles in ``tracelloc --help``."""

    LOOK = "look at a process"
    TRACE = "trace"
    TEST = "test"
    FILES = "files"
    MACHINE = "machine"
    HELP = "set-up and help"


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand: its module, arguments and function. Each module's ``SUBCOMMAND`` is one."""

    module: str  # The `__name__` of the module that defines it
    group: SubcommandGroup
    add_own_arguments: Callable[[ArgumentParser], object]
    # Returns the exit status, if that is not 0. Raises TracellocError.
    run: Callable[[Namespace], int | None]
    takes_command: bool = False  # Whether `-- CMD [ARG...]` may follow; `run` finds it as `command`

    @property
    def name(self) -> str:
        return _name_of(self.module.rpartition(".")[2])

    @property
    def about(self) -> str:
        return sys.modules[self.module].__doc__ or ""

    @property
    def summary(self) -> str:
        return self.about.partition("\n")[0]

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.add_own_arguments(parser)
        add_quiet(parser)
        add_option(parser, "--debug", "show tracebacks")


def subcommand_names() -> list[str]:
    """The names of all subcommands, in alphabetical order."""
    stems = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(_name_of(stem) for stem in stems if not stem.startswith("_"))


def find_subcommand(name: str) -> Subcommand:
    """Returns the subcommand of a name, which must be in ``subcommand_names``."""
    found = import_module(f"{__name__}.{name.replace('-', '_')}").SUBCOMMAND
    assert isinstance(found, Subcommand)
    return found


def all_subcommands() -> list[Subcommand]:
    """All subcommands, group by group."""
    order = list(SubcommandGroup)
    found = map(find_subcommand, subcommand_names())
    return sorted(found, key=lambda subcommand: order.index(subcommand.group))


def _name_of(module: str) -> str:
    return module.replace("_", "-")
