"""Files and programs of the system that tests use, and the packages that declare them.

A test that needs something of which no list knows passes where it happens to be installed.
``TEST_COMPLETE`` makes a session fail that used such a thing. What programs open themselves is
not seen.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib", "/opt/")
NAME = r"([a-z0-9][\w.+-]+)"
PRIORITIES = {"required", "important"}
BASE = ["build-essential", "python3"]  # Beside what is essential, or has one of these priorities
PROGRAMS = {"subprocess.Popen", "os.exec", "os.posix_spawn"}
FILES = {"open", "ctypes.dlopen"}
# The checkout, which has the environment, and the standard library.
_NOT_OURS = (f"{HERE.parent}/", f"{sysconfig.get_path('stdlib')}/", f"{sys.base_prefix}/lib/python")

used: set[str] = set()  # Files and programs that this process has opened or executed


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook (PEP 578)."""
    if event in FILES:
        path = arguments[0]
    elif event in PROGRAMS:
        variables = arguments[-1] if event != "os.posix_spawn" else None
        path = shutil.which(
            os.fsdecode(arguments[0]),
            path=variables.get("PATH") if isinstance(variables, dict) else None,
        )
    else:
        return
    if isinstance(path, str | bytes | os.PathLike):
        path = os.fsdecode(path)
        if path.startswith(SYSTEM) and not path.startswith(_NOT_OURS):
            used.add(path)


def undeclared(paths: Iterable[str]) -> dict[str, str]:
    """Returns existing paths that no declared package owns, with the package that does."""
    there = {os.path.realpath(path) for path in paths if Path(path).exists()}
    there = {path for path in there if path.startswith(SYSTEM) and not path.startswith(_NOT_OURS)}
    owners, declared = _owners(there), _with_dependencies(_declared())
    return {
        path: ", ".join(owners.get(path, ())) or "no package"
        for path in sorted(there)
        if not declared & owners.get(path, set()) and Path(path).is_file()
    }


def _owners(paths: Iterable[str]) -> dict[str, set[str]]:
    """The packages of files. Before Debian 13, some own /lib/FILE where /usr/lib/FILE is."""
    asked = [name for path in paths for name in (path, path.removeprefix("/usr"))]
    done = subprocess.run(
        ["dpkg-query", "--search", *asked], capture_output=True, text=True, check=False
    )
    owners: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        names, _, path = line.rpartition(": ")
        if not names.startswith("diversion "):
            path = path if path.startswith(("/usr/", "/opt/")) else f"/usr{path}"
            found = {name.partition(":")[0] for name in names.split(", ")}
            owners.setdefault(path, set()).update(found)
    return owners


def _declared() -> set[str]:
    """All that ``system-packages.sh`` names."""
    text = (HERE / "system-packages.sh").read_text()
    found = re.findall(r'\bneed(?:_any)? (?:"([^"]+)"|([a-z0-9][\w.+-]*))', text)
    return {name for many, one in found for name in (many or one).split()}


def _with_dependencies(names: set[str]) -> set[str]:
    """Adds Debian's base, and what installed packages depend on."""
    fields = "${Package}|${Essential}|${Priority}|${Provides}|${Pre-Depends},${Depends}\n"
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat", fields], capture_output=True, text=True, check=True
    ).stdout
    needs: dict[str, set[str]] = {}
    providers: dict[str, set[str]] = {}
    waiting = [*names, *BASE]
    for line in listed.splitlines():
        name, essential, priority, provides, depends = line.split("|", 4)
        needs.setdefault(name, set()).update(re.findall(rf"(?:^|[,|])\s*{NAME}", depends))
        for provided in re.findall(rf"(?:^|,)\s*{NAME}", provides):
            providers.setdefault(provided, set()).add(name)
        if essential == "yes" or priority in PRIORITIES:
            waiting.append(name)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [*needs.get(name, ()), *providers.get(name, ())]
    return found
