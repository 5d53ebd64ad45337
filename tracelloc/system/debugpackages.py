"""Distribution packages that contain a file's debug information."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tracelloc.system.syscalls import closed_after, open_inside

_DPKG_LISTS: Final = "var/lib/dpkg/info"
_RPM_DATABASES: Final = ("var/lib/rpm", "usr/lib/sysimage/rpm")
# Packages whose debug package has an unusual name or location.
_DEBUG_PACKAGES: Final = {"libc6": "libc6-dbg", "musl": "musl-dbgsym"}
_LONGEST_LIST: Final = 16 << 20  # Most bytes to read of one list
_MOST_LISTED: Final = 256 << 20  # Most bytes to read of all lists together


def debug_hints(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Returns commands to install debug information, by path; ``root``: the paths' ``/``."""
    wanted = {spelling: path for path in paths for spelling in _spellings(_file_beside(root, path))}
    if not wanted:
        return {}
    owners = _dpkg_owners(root, wanted)
    if owners:
        return {path: _apt_hint(package) for path, package in owners.items()}
    if any((root / name).is_dir() for name in _RPM_DATABASES):
        paths = (path for path in wanted.values() if path.startswith("/usr/"))
        return {path: f'dnf debuginfo-install "$(rpm -qf {path})"' for path in paths}
    return {}


def _file_beside(root: Path, path: str) -> str:
    """Returns the file beside a link that the link leads to, which packages own, or the path."""
    try:
        with closed_after(open_inside(root, path)) as handle:
            name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115, PTH119
    except OSError:
        return path
    file = os.path.join(os.path.dirname(path), name)  # noqa: PTH118, PTH120
    return file if os.path.lexists(f"{root}/{file}") else path


def _spellings(path: str) -> list[str]:
    if path.startswith("/usr/"):
        return [path, path.removeprefix("/usr")]
    return [path, f"/usr{path}"]


def _dpkg_owners(root: Path, wanted: dict[str, str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    try:
        with closed_after(open_inside(root, _DPKG_LISTS, os.O_DIRECTORY)) as directory:
            names = sorted(n for n in os.listdir(directory) if n.endswith(".list"))  # noqa: PTH208
    except OSError:
        return owners
    left = _MOST_LISTED
    for name in names:
        try:
            with os.fdopen(open_inside(root, f"{_DPKG_LISTS}/{name}"), "rb") as file:
                content = file.read(min(left, _LONGEST_LIST))
        except OSError:
            continue
        left -= len(content)
        for spelling in wanted.keys() & set(os.fsdecode(content).split("\n")):
            # ``libc6:amd64.list``: the package's name does not include the architecture.
            package = name.removesuffix(".list").partition(":")[0]
            owners.setdefault(wanted[spelling], package)
    return owners


def _apt_hint(package: str) -> str:
    if package in _DEBUG_PACKAGES:
        return f"apt install {_DEBUG_PACKAGES[package]}"
    return f"apt install {package}-dbgsym, from the distribution's archive of debug symbols"
