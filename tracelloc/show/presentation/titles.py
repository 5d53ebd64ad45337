"""Short titles of call stacks: the program's own innermost function and its caller."""

from __future__ import annotations

from collections.abc import Iterator

from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.presentation.naming import NamedStack, frame_name
from tracelloc.show.presentation.shortnames import shorten


def stack_title(stack: NamedStack, index: int, *, with_line: bool = False) -> str:
    """``innermost ← next function``; ``with_line``: ``innermost (file:line) ← next function``.

    The title is not safe to print yet.
    """
    if not stack.frames:
        return "[no call stack]" if index == NO_STACK else "[call stack lost]"
    own: list[str] = []
    runs: list[str] = []
    inner_run = ""
    first: tuple[Frame, Frame] | None = None
    for name, frame, inner in _functions(stack):
        if frame is None or inner is None:
            runs.append(name)
            if not own:
                inner_run = inner_run or name
                continue
        else:
            first = first or (frame, inner)
        if not own or own[-1] != name:
            own.append(name)
        if len(own) == 2:
            break
    names = own or runs[:2]
    if inner_run and own and own[0].startswith("0x"):
        # For unnamed generated code, the runtime that it calls is more informative.
        names = [inner_run, own[0]]
    line = "" if first is None or not with_line else _place(*first)
    if line:
        names = [f"{names[0]} ({line})", *names[1:]]
    return " ← ".join(names)


def _functions(stack: NamedStack) -> Iterator[tuple[str, Frame | None, Frame | None]]:
    """Yields (name, frame, innermost frame that it stands for), without collapsed frames.

    A function stands for the unnamed functions of the same file that it calls.
    """
    nameless: Frame | None = None
    for part in stack.parts():
        frame = part.frame
        if frame is None:
            continue
        if nameless is not None and (part.label or frame.module != nameless.module):
            yield frame_name(nameless), nameless, nameless
            nameless = None
        if part.label is not None:
            yield f"[{part.label}]", None, None
        elif frame.symbol is None:
            nameless = nameless or frame
        else:
            yield shorten(frame.symbol), frame, nameless or frame
            nameless = None
    if nameless is not None:
        yield frame_name(nameless), nameless, nameless


def _place(frame: Frame, inner: Frame) -> str:
    """Formats the source line; ``via +0xoffset`` if an unnamed callee allocates."""
    if frame is not inner and inner.module_offset is not None:
        return f"via +0x{inner.module_offset:x}"
    return source_place(frame)


def source_place(frame: Frame) -> str:
    """Formats ``file:line`` without directories; empty if unknown."""
    if frame.file is None or frame.line is None:
        return ""
    return f"{base_name(frame.file)}:{frame.line}"
