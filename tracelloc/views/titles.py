"""Call stacks in a few words: the program's own innermost function, and the one that called it."""

from __future__ import annotations

from tracelloc.demangle.short import shorten
from tracelloc.heap.stacks import NO_STACK
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name
from tracelloc.views.naming import NamedStack, frame_name


def stack_title(stack: NamedStack, index: int, *, with_line: bool = False) -> str:
    """``innermost ← next function``; ``with_line``: ``innermost (file:line) ← next function``.

    Not harmless to print yet.
    """
    if not stack.frames:
        return "[no call stack]" if index == NO_STACK else "[call stack lost]"
    own: list[str] = []
    runs: list[str] = []
    first: Frame | None = None
    for part in stack.parts():
        if part.frame is None:
            continue
        if part.label is not None:
            runs.append(f"[{part.label}]")
            if not own:
                continue
            name = runs[-1]
        else:
            symbol = part.frame.symbol
            name = frame_name(part.frame) if symbol is None else shorten(symbol)
            first = first or part.frame
        if not own or own[-1] != name:
            own.append(name)
        if len(own) == 2:
            break
    names = own or runs[:2]
    line = "" if first is None or not with_line else source_place(first)
    if line:
        names = [f"{names[0]} ({line})", *names[1:]]
    return " ← ".join(names)


def source_place(frame: Frame) -> str:
    """``file:line`` without directories; nothing if it is not known."""
    if frame.file is None or frame.line is None:
        return ""
    return f"{base_name(frame.file)}:{frame.line}"
