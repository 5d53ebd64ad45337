"""Where variables are declared, by debug information of programs that are compiled here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import run
from tests.unit.references import open_elf
from tracelloc.files.dwarf import SourceLines

SOURCE = """\
int plain[4] = {1};
static long quiet = 2;
namespace app {
    char letters[100];
    struct Shop { static int count; };
    int Shop::count = 3;
}
extern int declared;
int declared = 4;
int use(int n) {
    static int calls = 5;
    return plain[n] + quiet + app::letters[n] + app::Shop::count + declared + ++calls;
}
int main(int argc, char **) { return use(argc - 1); }
"""
LINES = {
    "plain": 1, "quiet": 2, "app::letters": 4, "app::Shop::count": 6, "declared": 9, "calls": 11,
}  # fmt: skip


@pytest.mark.parametrize(
    "flags", [("-gdwarf-4",), ("-gdwarf-5",), ("-gdwarf-5", "-O2"), ("-g", "-flto")], ids=" ".join
)
def test_variables(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source, program = tmp_path / "app.cc", tmp_path / "app"
    source.write_text(SOURCE)
    run("g++", *flags, "-no-pie", "-o", program, source)
    rows = run("nm", "-C", program).splitlines()
    found = {row.split(maxsplit=2)[2]: int(row.split()[0], 16) for row in rows if row[0] != " "}
    addresses = {
        name: address
        for name in LINES
        for full, address in found.items()
        if full.partition(".")[0].endswith(name)
    }
    lines = SourceLines(open_elf(program))
    wanted = [addresses[name] for name in LINES if name in addresses]
    assert len(wanted) >= 5, "optimizing may leave one out"
    assert lines.variables(wanted) == [
        (str(source), LINES[name]) for name in LINES if name in addresses
    ]
    assert lines.variables([wanted[0] + 1, 0]) == [(None, None), (None, None)]
    assert lines.reason is None


def test_without_debug_information(tmp_path: Path) -> None:
    source, program = tmp_path / "app.cc", tmp_path / "app"
    source.write_text(SOURCE)
    run("g++", "-o", program, source)
    lines = SourceLines(open_elf(program))
    assert lines.variables([1, 2]) == [(None, None), (None, None)]
