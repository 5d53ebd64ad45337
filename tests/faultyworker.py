"""tracelloc whose workers do what the files say that they read: the code in their ``.fault``.

``.fault`` is run when names are looked up, ``.fault.code`` by discovery, ``.fault.rows`` when all
unwind entries are made, ``.fault.stacks`` when a stack is followed through the file.

That is what a file does that has taken the worker over. Usage: as ``python -m tracelloc``.
"""

import subprocess
import sys
from pathlib import Path

from tracelloc.command import cli
from tracelloc.record.worker import zygote

FAULTS = """
import os, signal, time
from tracelloc.record.worker.symbolfilereader import SymbolFileReader
def spoil(name, section):
    answer = getattr(SymbolFileReader, name)
    def faulty(self, *more, **named):
        names = {"descriptor": self.elf.descriptor()}
        exec(self.elf.section_bytes(section) or b"", names)
        return names["found"] if "found" in names else answer(self, *more, **named)
    setattr(SymbolFileReader, name, faulty)
spoil("symbols", ".fault")
spoil("functions", ".fault.code")
spoil("all_rows", ".fault.rows")
spoil("rules", ".fault.stacks")
"""
CRASH = "import ctypes; ctypes.string_at(0)"

faulty_script = zygote.SCRIPT.replace("\nconfine(", f"{FAULTS}\nconfine(")
assert faulty_script != zygote.SCRIPT


def add_fault(path: Path, code: str, to: Path, *sections: str) -> Path:
    """Writes a copy of a program that has this code for the workers."""
    text = to.with_suffix(".fault")
    text.write_text(code)
    added = [f"--add-section={section}={text}" for section in sections or (".fault",)]
    subprocess.run(["objcopy", *added, path, to], check=True)
    return to


if __name__ == "__main__":
    zygote.SCRIPT = faulty_script
    sys.exit(cli.main())
