"""Who runs the program, and files that are read and written on that user's behalf.

Under sudo that is who called sudo: such files are reached with that user's rights and not
root's, and what others could have written is not believed. The directories are those of
https://specifications.freedesktop.org/basedir-spec/latest/.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelloc.text import printable

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Invoker:
    """Who runs the program, on whose behalf files are read and written."""

    uid: int
    gid: int
    config: Path
    """The directory of this user's configuration."""
    cache: Path
    """The directory of what can be made again at any time."""

    @property
    def filters(self) -> Path:
        """The user's own rules, whether there are any or not."""
        return self.config / "tracelloc" / "filters.toml"


def invoker(environment: Mapping[str, str] = os.environ) -> Invoker:
    """Who called the program, or called sudo to run it."""
    uid, gid = os.geteuid(), os.getegid()
    home = environment.get("HOME", "")
    called_by = environment.get("SUDO_UID", "")
    if uid == 0 and called_by.isascii() and called_by.isdigit() and len(called_by) < 10:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(int(called_by))
            uid, gid, home = entry.pw_uid, entry.pw_gid, entry.pw_dir

    def directory(variable: str, usual: str) -> Path:
        # What is no absolute path is to be ignored, says the specification.
        given = environment.get(variable, "")
        return Path(given) if given.startswith("/") else Path(home or "/nonexistent") / usual

    return Invoker(
        uid, gid, directory("XDG_CONFIG_HOME", ".config"), directory("XDG_CACHE_HOME", ".cache")
    )


def effective_user() -> Invoker:
    """The user whose rights this program has, whoever called sudo: for the kernel to believe."""
    environment = dict(os.environ)
    if environment.pop("SUDO_UID", None) is not None:
        # It may still be the invoking user's.
        with contextlib.suppress(KeyError):
            environment["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
    return invoker(environment)


@contextlib.contextmanager
def rights_of(who: Invoker) -> Iterator[None]:
    """The thread's rights on files become the user's: root must not follow their links.

    setfsuid(2) is the only way that leaves the other threads alone.
    """
    if os.geteuid() == who.uid:
        yield
        return
    libc = ctypes.CDLL(None)
    user, group = libc.setfsuid(-1), libc.setfsgid(-1)
    libc.setfsgid(who.gid)
    libc.setfsuid(who.uid)
    try:
        if libc.setfsuid(-1) != who.uid:
            raise PermissionError(0, f"the rights of user {who.uid} could not be taken on")
        yield
    finally:
        libc.setfsuid(user)
        libc.setfsgid(group)


def trusted_bytes(path: Path, who: Invoker, most_bytes: int) -> bytes:
    """The content of a user's own file. Raises OSError if others could have written it."""
    # Whoever can write a directory can put another file into it.
    for folder in (path.parent, Path(os.path.realpath(path)).parent):
        with contextlib.suppress(FileNotFoundError):
            _check_writers(folder.stat(), who, f"its directory {printable(str(folder))}")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        _check_writers(status, who, "it")
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(0, f"it is larger than {most_bytes >> 20} MiB")
    return content


def _check_writers(status: os.stat_result, who: Invoker, what: str) -> None:
    if status.st_uid not in (0, who.uid):
        raise PermissionError(0, f"{what} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise PermissionError(0, f"other users can write {what} (chmod go-w makes it yours)")


def create_file(path: Path, flags: int, mode: int, owner: tuple[int, int] | None) -> int:
    """Opens a file to be written, makes it if need be, and gives it to a user and group.

    ``flags``: further ones of open(2); with O_EXCL, the file has exactly this ``mode``. Raises
    OSError.
    """
    descriptor = os.open(path, flags | os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        hand_over(descriptor, owner, mode if flags & os.O_EXCL else None)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def hand_over(descriptor: int, owner: tuple[int, int] | None, mode: int | None) -> None:
    """Gives an open file, if it is a regular one, to a user and group, with these permissions.

    None: those that it has. Raises OSError.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return
    if owner is not None:
        # File systems without owners refuse, and need none.
        with contextlib.suppress(PermissionError, OverflowError):
            os.fchown(descriptor, *owner)
    if mode is not None:
        os.fchmod(descriptor, mode)


def replace_file(
    path: Path,
    pieces: Iterable[bytes],
    mode: int | None = None,
    owner: tuple[int, int] | None = None,
) -> None:
    """Writes beside the file and renames: readers see the old content or the new.

    ``mode``: its permissions; None: those that it had, 0600 if it is new. ``owner``: user
    and group who get it. Raises OSError; the old file is then as it was.
    """
    if mode is None:
        mode = 0o600
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(path.stat().st_mode)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tracelloc-")
    _UNFINISHED.add(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 16) as stream:
            stream.writelines(pieces)
            stream.flush()
            # Some file systems notice only now that there is no room.
            os.fsync(descriptor)
            hand_over(descriptor, owner, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    finally:
        _UNFINISHED.discard(name)


_UNFINISHED: Final[set[str]] = set()
"""Files that are being written beside those whose place they are to take."""


def discard_unfinished() -> None:
    """Takes away what is half written: nobody will finish it."""
    for name in list(_UNFINISHED):
        with contextlib.suppress(OSError):
            os.unlink(name)
