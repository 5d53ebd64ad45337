"""Libraries of other Debian releases, unpacked from their packages, for programs to run with.

Packages come from the mirror that this machine's own sources name, by an apt-get whose lists are
in ``.venv/debian``. There they stay, so that later runs need no network. What the unstable release
had a week ago is fetched again if it can be.
"""

import fcntl
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import Builder, refused

RELEASES = "bullseye", "bookworm", "trixie", "sid"
_CACHE = Path(__file__).parents[1] / ".venv/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_MOVING = "sid"
_FRESH_S = 7 * 24 * 3600
_LONGEST_S = 300
# The release whose libraries programs are linked with, so that they run with all of them.
_OLDEST = "bullseye"


def package(release: str, name: str, architecture: str = "amd64") -> Path:
    """The directory with a package's files. ``architecture`` is Debian's name of it.

    Skips the test if the mirror has no such release. If it can't be asked, skips the test, too,
    or, with ``TEST_COMPLETE``, fails it.
    """
    home = _CACHE / (release if architecture == "amd64" else f"{release}-{architecture}")
    directory = home / name
    _CACHE.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists() and (release != _MOVING or _age_s(directory) < _FRESH_S):
            return directory
        wrong = _fetch(release, name, directory, architecture)
        if wrong and not directory.exists():
            text = f"{name} of Debian's {release} can't be fetched: {wrong}"
            if "does not have a Release file" in wrong:
                pytest.skip(text)
            refused(text)
    return directory


def file_of(release: str, name: str, pattern: str, architecture: str = "amd64") -> Path:
    """The first file of a package with such a name."""
    found = sorted(package(release, name, architecture).rglob(pattern))
    assert found, f"{name} of {release} has no {pattern}"
    return found[0]


def version(release: str, name: str) -> str:
    """The package's version, without Debian's own parts."""
    return re.match(r"(?:\d+:)?([\d.]+)", (package(release, name) / "version").read_text())[1]


def build(builder: Builder, name: str) -> Path:
    """``tests/targets/NAME.cpp``, linked with the oldest release's libraries."""
    libc = file_of(_OLDEST, "libc6", "libc.so.6").parent
    return builder.cpp(
        name, "-pthread", "-nodefaultlibs", "-Wl,-z,dynamic-undefined-weak",
        str(file_of(_OLDEST, "libstdc++6", "libstdc++.so.6")),
        *(str(libc / file) for file in ("libpthread.so.0", "librt.so.1", "libc.so.6")),
        str(libc / "ld-linux-x86-64.so.2"), str(file_of(_OLDEST, "libgcc-s1", "libgcc_s.so.1")),
    )  # fmt: skip


def command(release: str, program: Path) -> list[str]:
    """What runs such a program with a release's C library."""
    libc = file_of(release, "libc6", "libc.so.6").parent
    others = [
        file_of(_OLDEST, "libstdc++6", "libstdc++.so.6"),
        file_of(_OLDEST, "libgcc-s1", "libgcc_s.so.1"),
    ]
    path = ":".join(str(directory) for directory in (libc, *(file.parent for file in others)))
    return [str(libc / "ld-linux-x86-64.so.2"), "--library-path", path, str(program)]


def python(minor: int) -> list[str]:
    """Returns the command that runs the unstable release's Python 3.MINOR, and its file's name."""
    name = f"python3.{minor}"
    programs = package(_MOVING, f"{name}-minimal") / "usr/bin"
    parts = [package(_MOVING, f"lib{name}-{part}") for part in ("minimal", "stdlib")]
    modules = [part / f"usr/lib/{name}" for part in parts]
    libraries = [
        file_of(_MOVING, library, file).parent
        for library, file in (
            ("libc6", "libc.so.6"), ("libexpat1", "libexpat.so.1"), ("zlib1g", "libz.so.1"),
        )
    ]  # fmt: skip
    path = ":".join(map(str, [*modules, modules[1] / "lib-dynload"]))
    return [
        "/usr/bin/env", f"PYTHONPATH={path}", str(libraries[0] / "ld-linux-x86-64.so.2"),
        "--library-path", ":".join(map(str, libraries)), str(programs / name),
    ]  # fmt: skip


def _age_s(directory: Path) -> float:
    return time.time() - directory.stat().st_mtime


def _fetch(release: str, name: str, directory: Path, architecture: str) -> str:
    """Fetches and unpacks a package. Returns what went wrong, if anything did."""
    if not shutil.which("apt-get") or not _KEYRING.exists():
        return "apt-get and debian-archive-keyring are needed"
    apt = directory.parent / ".apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {release} main\n")
    options = (
        f"Dir::Etc::SourceList={apt}/sources.list", "Dir::Etc::SourceParts=/nonexistent",
        f"Dir::State={apt}", f"Dir::State::status={apt}/status", f"Dir::Cache={apt}/cache",
        f"APT::Architecture={architecture}", "APT::Sandbox::User=root", "Acquire::Languages=none",
        "Acquire::Retries=2", "APT::Update::Error-Mode=any",
    )  # fmt: skip
    apt_get = ["apt-get", "-qq", *(f"-o{option}" for option in options)]
    part = directory.with_name(f"{name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    lists = apt / "lists"
    commands = [[*apt_get, "download", name]]
    if not any(lists.glob("*_Packages*")) or _age_s(lists) > _FRESH_S:
        commands.insert(0, [*apt_get, "update"])
    for words in commands:
        if wrong := _run(words, part):
            return wrong
    (file,) = part.glob("*.deb")
    if wrong := _run(["dpkg-deb", "-x", file.name, "."], part):
        return wrong
    (part / "version").write_text(file.name.split("_")[1].replace("%3a", ":"))
    file.unlink()
    shutil.rmtree(directory, ignore_errors=True)
    part.rename(directory)
    directory.touch()
    return ""


def _run(words: list[str], directory: Path) -> str:
    """Runs a command. Returns the last thing that it said if it failed."""
    try:
        done = subprocess.run(
            words, cwd=directory, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} takes too long"
    said = done.stderr.strip().splitlines()
    errors = [line for line in said if line.startswith("E:")]
    return "" if done.returncode == 0 else (*errors[:1], *said[-1:], f"{words[0]} failed")[0]


def _mirror() -> str:
    """The mirror that this machine's own sources name."""
    found = Path("/etc/apt")
    for file in (found / "sources.list", *sorted(found.glob("sources.list.d/*"))):
        if not file.is_file():
            continue
        for line in file.read_text(errors="replace").splitlines():
            address = re.search(r"https?://\S+/debian/?(?=\s|$)", line)
            if address and not line.lstrip().startswith("#"):
                return address[0]
    return _MIRROR
