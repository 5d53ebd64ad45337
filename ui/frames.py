"""One call stack as table rows and as text, and filter rules made from its frames."""

import re
from collections.abc import Hashable, Sequence
from typing import Any, Final

from rich.text import Text

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.rules import Action, Match, On, Rule, function_name
from tracelloc.show.presentation.facts import format_frame
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.tables import Column, Columns
from tracelloc.text import plural
from tracelloc.ui.sourcefiles import ColouredSource
from tracelloc.ui.stacknames import frame_place
from tracelloc.ui.tableview import Cell, PathCell, TableRows, clean

FRAME_COLUMNS: Final[Columns[Any]] = (
    Column("name", "function, innermost first", 0, sorts=False),
    Column("place", "where", 28, left=True, from_width=70, wide=56, sorts=False),
    Column("module", "module", 16, left=True, from_width=110, wide=28, sorts=False),
)


_FEW_LINES: Final = 3  # Source lines below which only one is shown, with its place


@dataclass(frozen=True, slots=True)
class FrameLine:
    """A row of a stack: a frame, a collapsed run, or a number of hidden frames."""

    frame: Frame | None
    text: str
    # The filters hide this frame; it is shown because the user wants to see all frames.
    is_hidden: bool = False


def lines_of(stack: NamedStack, index: int, *, everything: bool) -> list[FrameLine]:
    """Returns the rows of a stack. ``everything``: includes hidden frames."""
    if not stack.frames:
        return [FrameLine(None, "[no call stack]" if index == NO_STACK else "[call stack lost]")]
    if everything:
        return [
            FrameLine(frame, _name(frame), hidden)
            for frame, hidden in zip(stack.frames, stack.hidden, strict=True)
        ]
    lines = []
    for part in stack.parts():
        if part.frame is None:
            lines.append(FrameLine(None, f"({plural(part.count, 'frame')} hidden)", True))
        elif part.label is not None:
            frames = plural(part.count, "frame")
            lines.append(FrameLine(part.frame, f"[{clean(part.label)}] ({frames})"))
        else:
            lines.append(FrameLine(part.frame, _name(part.frame)))
    return lines


def _name(frame: Frame) -> str:
    name = clean(frame_name(frame))
    if frame.symbol is None and frame.reason is not None:
        return f"{name} [{frame.reason.value}]"
    return f"{name} [inlined]" if frame.inlined else name


def frame_rows(lines: list[FrameLine], *notes: str | Text) -> TableRows:
    """Returns the table of frames, with notes below; a row's key is its number.

    The cursor starts on the first visible frame with source lines.
    """

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, int)
        line = lines[key]
        if column == "name":
            return Text(line.text, "dim italic") if line.is_hidden else line.text
        if line.frame is None:
            return ""
        if column == "module":
            return clean(base_name(line.frame.module)) if line.frame.module else ""
        return PathCell(frame_place(line.frame))

    spaced = (f" {n}" if isinstance(n, str) else Text.assemble(" ", n) for n in notes)
    footer = [lambda _key, note=note: note for note in spaced]
    return TableRows(range(len(lines)), cell, first=first_line(lines), footer=footer)


def first_line(lines: list[FrameLine]) -> int:
    """Returns the row of the first visible frame with source lines, or else of the first one."""
    shown = [row for row, line in enumerate(lines) if not line.is_hidden and line.frame is not None]
    frames = [(row, lines[row].frame) for row in shown]
    with_file = (row for row, frame in frames if frame is not None and frame.file is not None)
    return next(with_file, shown[0] if shown else 0)


def source_lines(text: Sequence[str], frame: Frame, most: int) -> list[Text]:
    """Formats a frame's source line, among others if there is room. May raise IndexError."""
    number, file = frame.line or 0, frame.file or ""
    if not 1 <= number <= len(text):
        raise IndexError(number)
    source = ColouredSource(file, text)
    if most < _FEW_LINES:
        hot = source.line(number)
        return [
            Text.assemble(
                f"{base_name(file)}:{number}: ", hot[(len(hot.plain) - len(hot.plain.lstrip())) :]
            )
        ]
    first = max(1, min(number - most // 2, len(text) - most + 1))
    last = min(first + most - 1, len(text))
    width = len(str(last))
    return [
        Text.assemble((f"{'→' if n == number else ' '} {n:>{width}}  ", "bold"), shown)
        for n, shown in source.lines(first, last)
    ]


def stack_text(stack: NamedStack) -> str:
    """Returns all frames for the clipboard, one per line, as in text reports."""
    return "\n".join(f"0x{frame.address:016x}: {format_frame(frame)}" for frame in stack.frames)


def rule_for(frame: Frame, *, collapse: bool) -> Rule | None:
    """Returns a rule that hides the function, or collapses its namespace.

    A function without a namespace is collapsed alone. Frames without a name are matched by their
    file; the result is None if that is unknown, too.
    """
    action = Action.COLLAPSE if collapse else Action.HIDE
    if frame.symbol is None:
        if frame.module is None:
            return None
        name = base_name(frame.module)
        label = name if collapse else None
        return Rule(f"/{re.escape(name)}$", Match.REGEX, On.MODULE, action, label)
    name = function_name(frame.symbol)
    if not collapse:
        return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action)
    scope = re.match(r"<?((?:\w+::)+)", name)
    if scope is not None:
        return Rule(scope[1], Match.PREFIX, On.SYMBOL, action, scope[1].removesuffix("::"))
    return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action, name)
