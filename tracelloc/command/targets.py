"""Finds the running process that a command line names."""

from __future__ import annotations

from dataclasses import replace

from tracelloc.command.options import Options
from tracelloc.errors import TargetError
from tracelloc.record.machine.groups import find_group, members_of
from tracelloc.record.process.byname import find_target
from tracelloc.text import printable


def with_target(options: Options) -> Options:
    """The options with the PID of the process; of a control group, the oldest one's.

    Raises TargetError.
    """
    if options.name is not None:
        return replace(options, pid=find_target(options.name))
    if options.group is not None:
        members = members_of(find_group(options.group))
        if not members:
            raise TargetError(f"control group {printable(options.group)} has no process any more")
        return replace(options, pid=members[0])
    return options
