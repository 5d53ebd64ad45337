"""The order of shared memory on 64-bit Arm, by the processor's formal model: ``tests/order``.

herd7 (Debian's herdtools7, from sid on) tries all orders that the architecture allows.
"""

import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import ROOT

ORDER = ROOT / "tests" / "order"
# A change of each program after which it can go wrong.
BROKEN = {
    "ring": ("SWPAL X2,X4,[X3]", "STR X2,[X3]     "),
    "reuse": ("STLR X2,[X1]", "STR X2,[X1] "),
    "row": ("LDR X2,[X3,X4]", "LDR X2,[X3]   "),
    "scratch": ("SWPAL X2,X4,[X1]   | LDR", "STR X2,[X1]        | LDR"),
    "epoch": ("STLR X2,[X3]", "STR X2,[X3] "),
}


def observed(path: Path) -> str:
    """Never, Sometimes or Always: whether the wrong result is possible."""
    lines = run("herd7", path).splitlines()
    line = next(line for line in lines if line.startswith("Observation"))
    return line.split()[2]


@pytest.mark.skipif(shutil.which("herd7") is None, reason="needs herd7")
@pytest.mark.parametrize("name", BROKEN)
def test_nothing_is_read_too_early(name: str, tmp_path: Path) -> None:
    right = ORDER / f"{name}.litmus"
    assert observed(right) == "Never"
    before, after = BROKEN[name]
    text = right.read_text()
    assert text.count(before) == 1
    wrong = tmp_path / right.name
    wrong.write_text(text.replace(before, after))
    assert observed(wrong) == "Sometimes"


def test_every_program_is_tried() -> None:
    assert {path.stem for path in ORDER.glob("*.litmus")} == set(BROKEN)
