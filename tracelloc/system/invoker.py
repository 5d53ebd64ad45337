"""The invoking user, and files that are read and written on that user's behalf.

Under sudo the invoking user is the caller of sudo. tracelloc uses the user's files with that user's
rights instead of root's, and rejects files that other users could have written. The directories
are those of https://specifications.freedesktop.org/basedir-spec/latest/.
"""

import contextlib
import ctypes
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tracelloc.dataclass import dataclass
from tracelloc.startup import OWN_PREFIX
from tracelloc.system.syscalls import closed_on_error
from tracelloc.text import printable

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


_ROOTS_CACHE: Final = Path("/var/cache")


class User(NamedTuple):
    """A user and a group whose rights apply to files."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Invoker:
    """The invoking user, on whose behalf files are read and written."""

    uid: int
    gid: int
    config: Path  # The directory of this user's configuration
    cache: Path  # The directory of files that can be regenerated at any time

    @property
    def user(self) -> User:
        return User(self.uid, self.gid)

    @property
    def filters(self) -> Path:
        return self.config / "tracelloc" / "filters.toml"

    @property
    def theme(self) -> Path:
        return self.config / "tracelloc" / "theme"


def invoker(environment: Mapping[str, str] = os.environ) -> Invoker:
    """Returns the user who called tracelloc, or called sudo to run it."""
    uid, gid = os.geteuid(), os.getegid()
    home = environment.get("HOME", "")
    called_by = environment.get("SUDO_UID", "")
    if uid == 0 and called_by.isascii() and called_by.isdigit() and len(called_by) < 10:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(int(called_by))
            uid, gid, home = entry.pw_uid, entry.pw_gid, entry.pw_dir

    def directory(variable: str, usual: str) -> Path:
        # The specification says to ignore relative paths.
        given = environment.get(variable, "")
        return Path(given) if given.startswith("/") else Path(home or "/nonexistent") / usual

    cache = directory("XDG_CACHE_HOME", ".cache")
    if uid == 0:
        # $HOME may be another user's, who could have put links there.
        given = environment.get("XDG_CACHE_HOME", "").startswith("/")
        is_own = given and is_changed_only_by(cache, User(uid, gid))
        cache = cache if is_own else _ROOTS_CACHE
    return Invoker(uid, gid, directory("XDG_CONFIG_HOME", ".config"), cache)


def sudo_caller(environment: Mapping[str, str]) -> User | None:
    """Returns the caller of sudo, who will own files that root creates; None without sudo."""
    user, group = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    if os.geteuid() or not all(text.isascii() and text.isdigit() for text in (user, group)):
        return None
    return User(int(user), int(group))


def effective_user() -> Invoker:
    """Returns the user whose rights this process has, regardless of sudo."""
    environment = dict(os.environ)
    if environment.pop("SUDO_UID", None) is not None:
        # It may still be the invoking user's.
        with contextlib.suppress(KeyError):
            environment["HOME"] = pwd.getpwuid(os.geteuid()).pw_dir
    return invoker(environment)


@contextlib.contextmanager
def rights_of(who: Invoker | User) -> Iterator[None]:
    """Gives this thread alone a user's file rights, as root must not follow the user's links."""
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


def is_changed_only_by(path: Path, user: User) -> bool:
    """Whether only this user and root can replace a path's file or any directory above it."""
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        try:
            status = place.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            return False
        if status.st_uid not in (0, user.uid):
            return False
        if stat.S_ISDIR(status.st_mode) and others_replace_entries(status, user):
            return False
    return True


def others_replace_entries(directory: os.stat_result, user: User) -> bool:
    """Whether a directory's permissions let other users replace entries of root or the user."""
    # A user's group often has no other member; root's files may be in groups with other members.
    writers = stat.S_IWOTH | (0 if user.uid else stat.S_IWGRP)
    return bool(directory.st_mode & writers) and not directory.st_mode & stat.S_ISVTX


def open_trusted(path: Path, who: Invoker) -> int:
    """Opens a user's own file for reading. Raises OSError if others could have written it."""
    # A user who can write to a directory can replace a file in it.
    for folder in (path.parent, Path(os.path.realpath(path)).parent):
        with contextlib.suppress(FileNotFoundError):
            _check_writers(folder.stat(), who, f"its directory {printable(str(folder))}")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with closed_on_error(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a regular file")
        _check_writers(status, who, "it")
    return descriptor


def trusted_bytes(path: Path, who: Invoker, most_bytes: int) -> bytes:
    """Reads a user's own file. Raises OSError if others could have written it."""
    return read_all(open_trusted(path, who), most_bytes)


def read_all(descriptor: int, most_bytes: int) -> bytes:
    """Reads an open file, and closes it. Raises OSError if it is larger."""
    with open(descriptor, "rb") as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(0, f"it is larger than {most_bytes >> 20} MiB")
    return content


def _check_writers(status: os.stat_result, who: Invoker, what: str) -> None:
    if status.st_uid not in (0, who.uid):
        raise PermissionError(0, f"{what} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise PermissionError(0, f"other users can write {what} (chmod go-w makes it yours)")


def environment_of(who: Invoker, environment: Iterable[bytes]) -> list[bytes]:
    """Returns an environment for a user's program, without tracelloc's and sudo's variables."""
    kept = [e for e in environment if not e.startswith(OWN_PREFIX.encode())]
    if who.uid == os.geteuid():
        return kept
    entry = pwd.getpwuid(who.uid)
    user = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    user["SHELL"] = entry.pw_shell
    dropped = tuple(f"{name}=".encode() for name in user)
    kept = [e for e in kept if not e.startswith((b"SUDO_", *dropped))]
    return kept + [os.fsencode(f"{name}={value}") for name, value in user.items()]


def with_variables(environment: Iterable[bytes], variables: Mapping[str, str]) -> list[bytes]:
    """Returns the environment with ``variables`` set in place of variables of equal names."""
    names = tuple(f"{name}=".encode() for name in variables)
    kept = [entry for entry in environment if not entry.startswith(names)] if names else environment
    return [*kept, *(os.fsencode(f"{name}={value}") for name, value in variables.items())]
