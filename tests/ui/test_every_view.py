"""Pictures of every view and dialog: whole screens at the sizes of small and large terminals.

The log is missing: it tells how long drawing takes.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.ui.screens import compare, program_writes
from tests.ui.source import FakeSource, on_live_screen, press
from tests.ui.test_objects import python_shop
from tracelloc.model.process import Target
from tracelloc.model.snapshotrequest import TOTALS_ONLY
from tracelloc.record.session.terminal import ProgramTerminal
from tracelloc.ui.app import LiveApp
from tracelloc.ui.state import VIEWS

SIZES = [(60, 20), (80, 24), (120, 40), (200, 60)]
# By picture, the keys that lead there from the one before.
KEYS = {view.name: view.key for view in VIEWS if view.name != "log"} | {
    "stack": "1 down enter", "source": "l", "filters": "f", "limits": "L", "search": "slash",
    "help": "question_mark", "commands": "ctrl+p", "span": "x", "changes": "M d",
}  # fmt: skip
# Pictures that Esc leaves.
LEFT = {name for name in KEYS if name not in {view.name for view in VIEWS}}


@pytest.fixture
def source(tmp_path: Path, terminal: ProgramTerminal) -> FakeSource:
    """A server in Python with a child and a terminal."""
    source = python_shop(tmp_path)
    one = source.snapshot(TOTALS_ONLY)
    source.has_many = True
    source.others = (replace(one, target=Target(2960, "worker", one.target.pid, number=1)),)
    source.last_output = terminal.last_output
    program_writes(terminal, b"listening on port 80\n")
    return source


@pytest.mark.parametrize("size", SIZES, ids=str)
@on_live_screen()
async def test_every_view(app: LiveApp, pilot: Pilot[int], size: tuple[int, int]) -> None:
    for name, keys in KEYS.items():
        await press(app, pilot, *keys.split())
        await compare(f"view-{name}", app, pilot)
        if name in LEFT:
            await press(app, pilot, "escape")
