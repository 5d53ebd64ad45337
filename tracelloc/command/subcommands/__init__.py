"""The registry of subcommands: each module of this package is one.

A module's name is the subcommand's, its docstring the help, of which ``tracelloc --help`` shows the
first line. ``add_arguments`` adds to a parser; ``run`` gets what is parsed, and returns the exit
status, if that is not 0, or raises TracellocError. Slow modules are imported only there.
"""

from argparse import ArgumentParser
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Final

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


# The subcommands of each group, in the order of ``tracelloc --help``.
_NAMES: Final = {
    SubcommandGroup.LOOK: ("heap", "holders", "leaks", "objects", "symbols"),
    SubcommandGroup.TRACE: ("record",),
    SubcommandGroup.TEST: ("run",),
    SubcommandGroup.FILES: ("diff", "merge", "open", "report"),
    SubcommandGroup.MACHINE: ("doctor", "top", "watch"),
    SubcommandGroup.HELP: ("completion", "help", "library-path", "mcp", "schema"),
}


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A subcommand, and the module that defines it."""

    name: str
    group: SubcommandGroup
    module: ModuleType

    @property
    def takes_command(self) -> bool:
        """Whether ``-- CMD [ARG...]`` may follow; ``run`` finds it as ``command``."""
        return self.name in ("record", "run")

    @property
    def about(self) -> str:
        return self.module.__doc__ or ""

    @property
    def summary(self) -> str:
        return self.about.partition("\n")[0]

    def add_arguments(self, parser: ArgumentParser) -> None:
        self.module.add_arguments(parser)
        add_quiet(parser)
        add_option(parser, "--debug", "show tracebacks")


def subcommand_names() -> list[str]:
    """The names of all subcommands, in alphabetical order."""
    return sorted(name for names in _NAMES.values() for name in names)


def find_subcommand(name: str) -> Subcommand:
    """Returns the subcommand of a name, which must be in ``subcommand_names``."""
    group = next(group for group, names in _NAMES.items() if name in names)
    return Subcommand(name, group, import_module(f"{__name__}.{name.replace('-', '_')}"))


def all_subcommands() -> list[Subcommand]:
    """All subcommands, group by group."""
    return [find_subcommand(name) for names in _NAMES.values() for name in names]
