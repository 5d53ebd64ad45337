"""``top`` on a terminal: the list of processes, and the command chosen there for one of them."""

import subprocess
import sys
from contextlib import closing

from tracelloc.machine.processes import ProcessReader
from tracelloc.ui.app import ScreenApp, show_plainly
from tracelloc.ui.driver import restored_terminal
from tracelloc.ui.machinescreen import MachineScreen


def show_machine(interval_s: float, *, plain: bool = False) -> None:
    """Shows all processes until the user leaves; commands chosen there run in between."""
    if plain:
        show_plainly()
    with closing(ProcessReader()) as reader:
        while True:
            with restored_terminal():
                words = ScreenApp(MachineScreen(reader.read_memory, refresh_s=interval_s)).run()
            if words is None:
                return
            subprocess.run([sys.executable, "-m", "tracelloc", *words], check=False)
            if words[0] in ("heap", "objects"):
                print("Enter: back to the list", end="", flush=True)
                sys.stdin.readline()
