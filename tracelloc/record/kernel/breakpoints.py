"""Checks from outside whether breakpoints are in a process's code."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Final

from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process

_SIZE_BYTES: Final = 1 if platform.machine() == "x86_64" else 4
"""Size of the breakpoint instruction's opcode: int3, or brk on Arm."""


def are_in_place(process: Process, points: Iterable[ProbePoint]) -> bool:
    """Returns whether the code differs from its file at each of these points that is mapped.

    Raises TargetError, OSError.
    """
    mappings = [mapping for mapping in process.maps().mappings if mapping.executable]
    for path, offset in {(point.open_path, point.offset) for point in points}:
        with open(path, "rb", buffering=0) as file:
            inode = os.fstat(file.fileno()).st_ino
            code = os.pread(file.fileno(), _SIZE_BYTES, offset)
        for mapping in mappings:
            address = mapping.start + offset - mapping.offset
            is_there = mapping.inode == inode and mapping.start <= address < mapping.end
            if is_there and process.read_memory(address, _SIZE_BYTES) == code:
                return False
    return True
