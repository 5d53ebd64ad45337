"""One call stack as table rows and text, rules made from its frames, and their source files."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, Final

from rich.text import Text
from textual.app import App, SuspendNotSupported

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.model.process import Target
from tracelloc.model.stacks import NO_STACK
from tracelloc.show.filters import NamedStack
from tracelloc.show.filters.rules import Action, Match, On, Rule, function_name
from tracelloc.show.presentation.facts import format_frame
from tracelloc.show.presentation.naming import frame_name
from tracelloc.show.tables import Column, Columns
from tracelloc.system.syscalls import open_inside, open_regular
from tracelloc.text import plural
from tracelloc.ui.stacknames import frame_place
from tracelloc.ui.tableview import Cell, PathCell, TableRows, clean, crop

_LARGEST_BYTES: Final = 4 << 20
# Most files in the cache. They are not read again if they change: the program is older.
_MOST: Final = 8
_LONGEST_LINE: Final = 500
_TAB: Final = 4
_BLOCK: Final = 200  # Lines that are coloured at once: a file may have a hundred thousand
_BEFORE: Final = 60  # Lines before a block that are read, too: a comment may have begun there


def read_source(pid: int | None, path: str) -> list[str] | OSError:
    """Returns the lines of a source file, or the error that prevents reading it."""
    last: OSError = FileNotFoundError(2, "No such file or directory")
    ways: list[Callable[[], int]] = [partial(open_regular, path)]
    if pid is not None:
        ways.insert(0, partial(open_inside, f"/proc/{pid}/root", path))
    for opened in ways:
        try:
            with open(opened(), "rb") as stream:
                return stream.read(_LARGEST_BYTES).decode(errors="replace").splitlines()
        except OSError as error:
            last = error
    return last


_cached = lru_cache(_MOST)(read_source)


def lines_of_file(pid: int | None, path: str) -> list[str]:
    """Returns a file's lines; the root directory of ``pid`` is tried first. Raises OSError."""
    found = _cached(pid, path)
    if isinstance(found, OSError):
        raise found
    return found


class ColouredSource:
    """The lines of one source file, safe to show; coloured a block at a time, when needed."""

    def __init__(self, path: str, text: Sequence[str]) -> None:
        self._name = path.rpartition("/")[2]
        self._text = text
        self._blocks: dict[int, Sequence[Text]] = {}

    def line(self, number: int) -> Text:
        """Returns one line, from 1. Raises IndexError if the file has no such line."""
        if not 1 <= number <= len(self._text):
            raise IndexError(number)
        begin = (number - 1) // _BLOCK * _BLOCK
        first = max(begin - _BEFORE, 0)
        if begin not in self._blocks:
            block = self._text[first : begin + _BLOCK]
            shown = (crop(line.expandtabs(_TAB), _LONGEST_LINE) for line in block)
            self._blocks[begin] = _coloured(self._name, "\n".join(shown))
        return self._blocks[begin][number - 1 - first].copy()


@lru_cache(16)
def _coloured(name: str, code: str) -> Sequence[Text]:
    from rich.syntax import Syntax  # noqa: PLC0415 - the first screen does without it

    plain = code.split("\n")
    lexer = Syntax.guess_lexer(name, code)
    text = Syntax(code, lexer, theme="ansi_dark").highlight(code)
    coloured = list(text.split("\n", allow_blank=True))
    for line in coloured:
        # The rest of the row has its own background.
        line.style = ""
        line.stylize("not underline")
    is_whole = [line.plain for line in coloured[: len(plain)]] == plain
    return coloured if is_whole else [Text(line) for line in plain]


def open_editor(app: App[Any], file: str, line: int) -> None:
    """Runs ``$VISUAL``, ``$EDITOR`` or vi until it exits; errors appear on the screen."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    command = [*shlex.split(editor), f"+{line}", file]
    try:
        with app.suspend():
            status = subprocess.run(command, check=False).returncode
    except (OSError, SuspendNotSupported, ValueError) as error:
        app.notify(f"{crop(editor, 60)}: {error}", severity="error", markup=False)
        return
    if status:
        app.notify(f"{crop(editor, 60)} ended with status {status}", markup=False)


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
        pairs = zip(stack.frames, stack.hidden, strict=True)
        return [FrameLine(frame, _name(frame), hidden) for frame, hidden in pairs]
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
    """Returns the table of frames by number; the cursor starts on the first one with a line."""

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


def source_of(
    read: Callable[[Target, str], Sequence[str]], target: Target, frame: Frame | None, most: int
) -> tuple[list[Text], str]:
    """Returns (lines of source around a frame's, why there are none)."""
    if frame is None or frame.file is None or frame.line is None:
        return [], "No source for this frame"
    try:
        text = read(target, frame.file)
        return source_lines(text, frame, most), ""
    except OSError as error:
        return [], f"cannot read source: {error.strerror} (--sources OLD=NEW)"
    except IndexError:
        return [], f"the file has only {len(text)} lines: it is a different version"


def source_lines(text: Sequence[str], frame: Frame, most: int) -> list[Text]:
    """Formats a frame's source line, among others if there is room. May raise IndexError."""
    number, file = frame.line or 0, frame.file or ""
    if not 1 <= number <= len(text):
        raise IndexError(number)
    source = ColouredSource(file, text)
    if most < _FEW_LINES:
        hot = source.line(number)
        indent = len(hot.plain) - len(hot.plain.lstrip())
        return [Text.assemble(f"{base_name(file)}:{number}: ", hot[indent:])]
    first = max(1, min(number - most // 2, len(text) - most + 1))
    last = min(first + most - 1, len(text))
    width = len(str(last))
    return [
        Text.assemble((f"{'→' if n == number else ' '} {n:>{width}}  ", "bold"), source.line(n))
        for n in range(first, last + 1)
    ]


def stack_text(stack: NamedStack) -> str:
    """Returns all frames for the clipboard, one per line, as in text reports."""
    return "\n".join(f"0x{frame.address:016x}: {format_frame(frame)}" for frame in stack.frames)


def rule_for(frame: Frame, *, collapse: bool) -> Rule | None:
    """Returns a rule that hides a function, or collapses its namespace; None without a name."""
    action = Action.COLLAPSE if collapse else Action.HIDE
    if frame.symbol is None:
        if frame.module is None:
            return None
        name = base_name(frame.module)
        label = name if collapse else None
        return Rule(f"/{re.escape(name)}$", Match.REGEX, On.MODULE, action, label)
    name = function_name(frame.symbol)
    scope = re.match(r"<?((?:\w+::)+)", name) if collapse else None
    if scope is not None:
        return Rule(scope[1], Match.PREFIX, On.SYMBOL, action, scope[1].removesuffix("::"))
    label = name if collapse else None
    return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action, label)
