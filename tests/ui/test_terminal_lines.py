"""What a program's terminal shows of what the program writes."""

import io

import pytest

from tests.ui.screens import program_writes
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.ui.output import plain_lines


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (b"", []),
        (b"one\r\ntwo", ["one", "two"]),
        (b"one\r\n\r\nthree\r\n", ["one", "", "three"]),
        (b" 10%\r 20%\r100%\r\ndone", ["100%", "done"]),
        (b"long line\rshort\x1b[K\r\n", ["short"]),
        (b"\x1b[1;31mred\x1b[0m plain", ["red plain"]),
        (b"abc\b", ["abc"]),
        (b"a\tb\r\n", ["a       b"]),
        ("grün ☃\r\n".encode(), ["grün ☃"]),
        (b"\xff\xfe\n", ["��"]),
        # Titles, cursors, screens, hyperlinks: left out.
        (b"\x1b]0;owned\x07\x1b[2J\x1b[Hx\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", ["xlink"]),
        (b"\x1bP1;2|data\x1b\\y\x1b(B\x1b=z\x07", ["yz"]),
        # Strings without an end, however many.
        (b"\x1b]0;a" * 30_000 + b"\nb", ["", "b"]),
    ],
)  # fmt: skip
def test_lines(written: bytes, lines: list[str]) -> None:
    assert plain_lines(written) == lines


def test_what_is_passed_on_and_kept() -> None:
    """The terminal that shows it adds carriage returns itself."""
    terminal, passed, written = ProgramTerminal(24, 80), io.BytesIO(), b"one\ntwo\r\n 5%\r10%\n"
    terminal.pass_on(passed)
    program_writes(terminal, written)
    terminal.release()
    terminal.join()
    assert passed.getvalue() == written
    assert terminal.last_output() == (20, written.replace(b"\n", b"\r\n"))
    terminal = ProgramTerminal(24, 80)
    program_writes(terminal, b"first\n")
    for _ in range(200):
        program_writes(terminal, b"x" * 999 + b"\n")
    terminal.release()
    terminal.join()
    count, kept = terminal.last_output()
    assert (count, len(kept)) == (7 + 200 * 1001, 1 << 17)
    assert kept.endswith(b"x\r\n")
