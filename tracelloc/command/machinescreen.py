"""``top`` on a terminal: the screen, and what was chosen there."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from tracelloc.machine.processes import ProcessReader
from tracelloc.ui.driver import restored_terminal
from tracelloc.ui.machinescreen import MachineScreen
from tracelloc.ui.picker import ScreenApp


def show_machine(interval_s: float) -> None:
    """Shows the machine until the user leaves; other commands run in between."""
    with closing(ProcessReader()) as reader:
        while True:
            with restored_terminal():
                words = ScreenApp(MachineScreen(reader.look, refresh_s=interval_s)).run()
            if words is None:
                return
            subprocess.run([sys.executable, "-m", "tracelloc", *words], check=False)
            if words[0] in ("heap", "objects"):
                print("Enter: back to the list", end="", flush=True)
                sys.stdin.readline()
