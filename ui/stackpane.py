"""One stack: its frames as a table and as text, rules made from a frame, and its verdict."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from tracelloc.filters import Action, Match, On, Rule
from tracelloc.filters.functions import function_name
from tracelloc.heap.stacks import NO_STACK
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name
from tracelloc.ui.naming import place
from tracelloc.ui.picture import Details, Picture
from tracelloc.ui.stacks import VERDICT_STYLES
from tracelloc.ui.table import Cell, Column, Rows, clean
from tracelloc.units import about_of, plural
from tracelloc.views.calltree import frame_name
from tracelloc.views.naming import NamedStack
from tracelloc.views.stacklines import format_frame
from tracelloc.views.suspects import headline, sentences

FRAME_COLUMNS: Final = (
    Column("name", "function, innermost first", 0, right=False, sorts=False),
    Column("place", "where", 28, right=False, from_width=70, sorts=False),
    Column("module", "module", 16, right=False, from_width=110, sorts=False),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a frame, a run that was taken together, or a number of hidden frames."""

    frame: Frame | None
    text: str
    is_hidden: bool = False
    """Shown only because everything is."""


def lines_of(stack: NamedStack, index: int, *, everything: bool) -> list[Line]:
    """The rows of a stack. ``everything``: hidden frames as well."""
    if not stack.frames:
        return [Line(None, "[no call stack]" if index == NO_STACK else "[call stack lost]")]
    if everything:
        return [
            Line(frame, _name(frame), hidden)
            for frame, hidden in zip(stack.frames, stack.hidden, strict=True)
        ]
    lines = []
    for part in stack.parts():
        if part.frame is None:
            lines.append(Line(None, f"({plural(part.count, 'frame')} hidden)", True))
        elif part.label is not None:
            frames = plural(part.count, "frame")
            lines.append(Line(part.frame, f"[{clean(part.label)}] ({frames})"))
        else:
            lines.append(Line(part.frame, _name(part.frame)))
    return lines


def _name(frame: Frame) -> str:
    name = clean(frame_name(frame))
    if frame.symbol is None and frame.reason is not None:
        return f"{name} [{frame.reason.value}]"
    return f"{name} [inlined]" if frame.inlined else name


def frame_rows(lines: list[Line]) -> Rows:
    """The table of frames; the key is the number of the row."""

    def cell(key: Hashable, column: str) -> Cell:
        assert isinstance(key, int)
        line = lines[key]
        if column == "name":
            return Text(line.text, "dim italic") if line.is_hidden else line.text
        if line.frame is None:
            return ""
        if column == "module":
            return clean(base_name(line.frame.module)) if line.frame.module else ""
        where = place(line.frame)
        return f"…{where[-27:]}" if len(where) > 28 else where

    return Rows(range(len(lines)), cell, empty="")


def stack_text(stack: NamedStack) -> str:
    """All frames for the clipboard, one per line, as in text reports."""
    return "\n".join(f"0x{frame.address:016x}: {format_frame(frame)}" for frame in stack.frames)


def rule_for(frame: Frame, *, collapse: bool) -> Rule | None:
    """Hides just this function, or takes its namespace (its file, in C) together.

    None if the frame has neither a name nor a module.
    """
    action = Action.COLLAPSE if collapse else Action.HIDE
    if frame.symbol is None:
        if frame.module is None:
            return None
        name = base_name(frame.module)
        label = name if collapse else None
        return Rule(f"/{name}", Match.SUFFIX, On.MODULE, action, label)
    name = function_name(frame.symbol)
    if not collapse:
        return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action)
    scope = re.match(r"<?((?:\w+::)+)", name)
    if scope is not None:
        return Rule(scope[1], Match.PREFIX, On.SYMBOL, action, scope[1].removesuffix("::"))
    return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action, name)


def verdict_text(details: Details, snapshot: Snapshot) -> Text:
    """The verdict, of a suspect with its rate; empty before there was time to look."""
    judgement = details.judgement
    if judgement is None:
        return Text("")
    style = VERDICT_STYLES.get(judgement.verdict, "bold")
    if details.suspect is None:
        return Text(judgement.verdict.value, style)
    about = about_of(snapshot.sample_bytes)
    return Text(headline(judgement, snapshot.now_ns, about=about), style)


def reasons(details: Details) -> list[str]:
    """Why, in sentences; nothing before there was time to look."""
    if details.suspect is not None:
        return list(sentences(details.suspect))
    return [] if details.judgement is None else [details.judgement.evidence]


def verdict_line(details: Details, picture: Picture) -> Text | None:
    """Verdict and sentence in one line; None before there was time to look."""
    if details.judgement is None:
        return None
    return Text.assemble(verdict_text(details, picture.snapshot), f": {details.judgement.evidence}")
