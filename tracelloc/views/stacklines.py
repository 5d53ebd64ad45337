"""A stack and its frames as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from tracelloc.filters import NamedStack
from tracelloc.heap.stacks import NO_STACK
from tracelloc.symbols import Frame
from tracelloc.text import plural, printable


def stack_lines(stack: NamedStack, index: int) -> Iterator[str]:
    """The stack with this index, innermost frame first, runs of filtered frames as a number."""
    if not stack.frames:
        reason = "could not be taken" if index == NO_STACK else "was lost"
        yield f"        [the call stack {reason}]"
        return
    for part in stack.parts():
        if part.frame is None:
            yield f"         ({part.count} filtered out)"
            continue
        if part.label is None:
            text = format_frame(part.frame)
        else:
            text = f"[{printable(part.label)}] ({plural(part.count, 'frame')})"
        # What stands for missing frames has no address.
        address = f"0x{part.frame.address:016x}: " if part.frame.address else ""
        yield f"        {address}{text}"


def format_frame(frame: Frame) -> str:
    """``name+0x32/0x76 in FILE (file:line)``; ``???`` without a name, the reason without a file.

    Functions that were inlined have no offset: ``name [inlined] in FILE (file:line)``.
    """
    if frame.symbol is not None:
        name = printable(frame.symbol)
        if frame.offset is not None:
            name += f"+0x{frame.offset:x}"
            name += f"/0x{frame.size:x}" if frame.size is not None else ""
        elif frame.inlined:
            name += " [inlined]"
    else:
        name = "???"
    if frame.module is not None:
        name += f" in {printable(frame.module)}"
    elif frame.reason is not None:
        name += f" [{frame.reason.value}]"
    if frame.file is not None:
        line = f":{frame.line}" if frame.line is not None else ""
        name += f" ({printable(frame.file)}{line})"
    return name
