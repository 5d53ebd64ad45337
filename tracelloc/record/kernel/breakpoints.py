"""Checks from outside whether breakpoints are in a process's code."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tracelloc.architecture import native
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process


def are_in_place(process: Process, points: Iterable[ProbePoint]) -> bool:
    """Returns whether the code differs from its file at each of these points that is mapped.

    Raises TargetError, OSError.
    """
    size_bytes = native().breakpoint_bytes
    mappings = [mapping for mapping in process.maps().mappings if mapping.executable]
    for path, offset in {(point.open_path, point.offset) for point in points}:
        with open(path, "rb", buffering=0) as file:
            inode = os.fstat(file.fileno()).st_ino
            code = os.pread(file.fileno(), size_bytes, offset)
        for mapping in mappings:
            address = mapping.start + offset - mapping.offset
            is_there = mapping.inode == inode and mapping.start <= address < mapping.end
            if is_there and process.read_memory(address, size_bytes) == code:
                return False
    return True
