"""What a program's terminal shows of what the program writes."""

import io
import os
import random

import pytest
from rich.style import Style

from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.ui.output import TerminalLines


def shown(data: bytes) -> list[str]:
    lines = TerminalLines()
    lines.feed(data)
    return [line.plain for line in lines.all()]


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"one\r\ntwo", ["one", "two"]),
        (b"one\r\n\r\nthree\r\n", ["one", "", "three"]),
        (b" 10%\r 20%\r100%\r\ndone", ["100%", "done"]),
        (b"long line\rshort\x1b[K\r\n", ["short"]),
        (b"abc\b\bX", ["aXc"]),
        (b"a\tb\r\n", ["a       b"]),
        ("grün ☃\r\n".encode(), ["grün ☃"]),
        (b"\xff\xfe\n", ["��"]),
        # Titles, cursors, screens, hyperlinks: left out.
        (b"\x1b]0;owned\x07\x1b[2J\x1b[Hx\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", ["xlink"]),
        (b"\x1bP1;2|data\x1b\\y\x1b(B\x1b=z\x07", ["yz"]),
    ],
)  # fmt: skip
def test_lines(written: bytes, lines: list[str]) -> None:
    assert shown(written) == lines


def test_what_is_passed_on_is_as_the_program_wrote_it() -> None:
    """The terminal that shows it adds carriage returns itself."""
    terminal, passed, written = ProgramTerminal(24, 80), io.BytesIO(), b"one\ntwo\r\n 5%\r10%\n"
    terminal.pass_on(passed)
    os.write(terminal._its, written)
    terminal.release()
    terminal.join()
    assert passed.getvalue() == written
    assert terminal.written_since(0)[1] == written.replace(b"\n", b"\r\n")


def test_it_does_not_matter_how_it_comes_in_pieces() -> None:
    data = "\x1b[1;31mred\x1b[0m plain\r\n\x1b]0;title\x07gr\u00fcn\r 5%\x1b[K\r\n".encode() * 20
    whole = shown(data)
    random.seed(1)
    for _ in range(50):
        lines = TerminalLines()
        at = 0
        while at < len(data):
            size = random.randint(1, 9)
            lines.feed(data[at : at + size])
            at += size
        assert [line.plain for line in lines.all()] == whole


def test_colours() -> None:
    lines = TerminalLines()
    lines.feed(b"\x1b[31mred \x1b[1mbold\r\nstill\x1b[0m not\r\n")
    first, second = lines.all()
    red = Style.parse("color(1)")
    assert [(str(span.style), first.plain[span.start : span.end]) for span in first.spans] == [
        (str(red), "red "), (str(red + Style(bold=True)), "bold")
    ]  # fmt: skip
    assert second.plain == "still not"
    assert second.spans[0].end == len("still")


def test_bounds() -> None:
    lines = TerminalLines()
    lines.feed(b"x" * 100_000 + b"\n" * 10_005)
    assert (len(lines.all()), lines.dropped) == (10_000, 5)
    assert len(lines.all()[0]) == 0
