"""tracelloc whose worker does what the files say that it reads: the code in their ``.fault``.

That is what a file does that has taken the worker over. Usage: as ``python -m tracelloc``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tracelloc import cli
from tracelloc.worker import client

FAULTS = """
import os, signal, time
from tracelloc.worker import service
answer = service.ReadFile.symbols
def faulty(self, addresses):
    fault = self._elf.section_bytes(".fault")
    names = {"service": service}
    exec(fault or b"", names)
    return names.get("found") or answer(self, addresses)
service.ReadFile.symbols = faulty
"""
CRASH = "import os; os.kill(os.getpid(), 11)"

faulty_script = client.SCRIPT.replace("\nconfine(", f"{FAULTS}\nconfine(")
assert faulty_script != client.SCRIPT


def add_fault(path: Path, code: str, to: Path) -> Path:
    """Writes a copy of a program that has this code for the worker."""
    text = to.with_suffix(".fault")
    text.write_text(code)
    subprocess.run(["objcopy", f"--add-section=.fault={text}", path, to], check=True)
    return to


if __name__ == "__main__":
    client.SCRIPT = faulty_script
    sys.exit(cli.main())
