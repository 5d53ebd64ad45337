"""Finds the running process that a command line names."""

import itertools
import sys
import time
from typing import Final

from tracelloc.command.commandline import Options
from tracelloc.errors import TargetError
from tracelloc.machine.groups import NoGroupError, find_group, members_of
from tracelloc.startup import STARTUP
from tracelloc.system.memorylimits import MemoryGroup
from tracelloc.text import printable

_EVERY_S: Final = 0.1  # How often control groups are looked for


def with_target(options: Options) -> Options:
    """Returns options with the PID of the named group's oldest process. Raises TargetError."""
    if options.group_name is not None:
        group = _found_group(options.group_name, waits=options.waits)
        members = members_of(group)
        if not members:
            raise TargetError(f"control group {printable(group.path)} has no process any more")
        return options.but(pid=members[0], group=group)
    return options


def _found_group(name: str, *, waits: bool) -> MemoryGroup:
    """Returns a control group; ``waits``: until it has processes. Raises TargetError."""
    for number in itertools.count():
        try:
            return find_group(name)
        except NoGroupError:
            if not waits:
                raise
        if not number:
            STARTUP.end()
            print(f"tracelloc: waiting for {printable(name)}", file=sys.stderr, flush=True)
        time.sleep(_EVERY_S)
    raise AssertionError
