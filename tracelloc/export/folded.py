"""Folded stacks: one line per distinct stack, ``ROOT;outermost;…;innermost BYTES``.

The input of flamegraph.pl and of everything that reads its format. Frames are divided
by semicolons, the figure by the last blank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tracelloc.procfs import base_name, is_c_library
from tracelloc.snapshot import Snapshot
from tracelloc.stacks import NO_STACK
from tracelloc.symbols import Frame
from tracelloc.text import printable
from tracelloc.view import NamedStack, Namer

UNKNOWN = "[unknown]"


def export(snapshot: Snapshot, namer: Namer) -> Iterator[bytes]:
    """Outstanding bytes of every stack that holds any, filtered frames left out."""
    lines: Counter[str] = Counter()
    for stat in snapshot.top_stacks():
        lines[fold(namer.stack(snapshot, stat.index), stat.index)] += stat.live_bytes
    for line in sorted(lines):
        if lines[line]:
            yield f"{line} {lines[line]}\n".encode(errors="backslashreplace")


def fold(stack: NamedStack, index: int) -> str:
    """The line of one stack without its figure."""
    if not stack.frames:
        reason = "[no call stack]" if index == NO_STACK else "[call stack lost]"
        return f"{UNKNOWN};{reason}"
    names = [frame_name(frame) for frame in reversed(stack.shown)]
    return ";".join([_clean(_root(stack)), *map(_clean, names)])


def frame_name(frame: Frame) -> str:
    """The symbol, or ``module+0xoffset``, or the bare address."""
    if frame.symbol is not None:
        return frame.symbol
    if frame.module is not None and frame.module_offset is not None:
        return f"{base_name(frame.module)}+0x{frame.module_offset:x}"
    return f"0x{frame.address:x}"


def _root(stack: NamedStack) -> str:
    """The module that the stack starts in: the outermost that is not the C runtime's."""
    modules = [base_name(frame.module) for frame in reversed(stack.frames) if frame.module]
    own = [module for module in modules if not is_c_library(module)]
    return (own or modules or [UNKNOWN])[0]


def _clean(name: str) -> str:
    return printable(name).replace(";", ":")
