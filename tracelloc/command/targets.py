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
    if options.group_name is not None:
        group = find_group(options.group_name)
        members = members_of(group)
        if not members:
            raise TargetError(f"control group {printable(group.path)} has no process any more")
        return replace(options, pid=members[0], group=group)
    return options
