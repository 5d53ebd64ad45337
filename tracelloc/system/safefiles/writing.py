"""Files created, overwritten and replaced on behalf of a user.

Under sudo tracelloc first uses the caller's rights: it does nothing to the caller's files and
links that the caller could not do. It uses root's rights only where the caller may not write.
A new file belongs to the caller in both cases; an existing one keeps its owner.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from tracelloc.system.invoker import Invoker, User, open_trusted, read_all, rights_of, sudo_caller
from tracelloc.system.safefiles.resolve import Destination, destination, directory_made
from tracelloc.system.syscalls import closed_on_error

T = TypeVar("T")

# Permissions of new files: call stacks reveal what a program does, so only the owner may read.
PRIVATE: Final = 0o600


def output_users() -> tuple[User, ...]:
    """Returns the users whose rights are tried for outputs; the first owns new files."""
    own = User(os.geteuid(), os.getegid())
    caller = sudo_caller(os.environ)
    return (own,) if caller is None else (caller, own)


def open_output(path: Path, users: Sequence[User]) -> int:
    """Creates or empties a file, if it is no other user's and has one name. Raises OSError."""

    def act(found: Destination) -> int:
        try:
            return _created(found, found.name, users)
        except FileExistsError:
            descriptor = found.open(os.O_WRONLY)
        with closed_on_error(descriptor):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if status.st_uid not in {0, found.user.uid, users[0].uid}:
                raise PermissionError(errno.EPERM, "it belongs to another user")
            if status.st_nlink > 1:
                raise PermissionError(errno.EPERM, "it has a second name (a hard link)")
            os.ftruncate(descriptor, 0)
        return descriptor

    return _tried(path, users, act)


def open_existing(path: Path, users: Sequence[User]) -> int:
    """Opens a pipe or device for writing. Raises OSError; ENXIO for a pipe without a reader."""
    return _tried(path, users, lambda found: found.open(os.O_WRONLY))


def create_file(path: Path, users: Sequence[User]) -> tuple[int, User]:
    """Creates a file. Returns its descriptor, and whose rights sufficed. Raises OSError."""
    if path.is_symlink():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    return _tried(path, users, lambda found: (_created(found, found.name, users), found.user))


def status_of(path: Path, users: Sequence[User]) -> os.stat_result:
    """Returns the status of the file that a path leads to. Raises OSError."""
    return _tried(path, users, Destination.status)


def check_replaceable(path: Path, users: Sequence[User]) -> None:
    """Raises OSError unless ``replace_file`` could replace the path now. Changes nothing."""

    def act(found: Destination) -> None:
        _check_rename(found)
        name = _temporary_name()
        os.close(_created(found, name, users))
        found.unlink(name)

    _tried(path, users, act)


def replace_file(
    path: Path, pieces: Iterable[bytes], users: Sequence[User], mode: int | None = None
) -> None:
    """Replaces a file by rename(2): readers see either the old content or the new.

    A link of the user stays, and its target is replaced. ``mode``: permissions; None for those
    of the old file, or 0600 for a new one. Raises OSError and leaves the old file unchanged.
    """

    def act(found: Destination) -> tuple[Destination, int, str]:
        _check_rename(found)
        bits = mode
        if bits is None:
            bits = PRIVATE
            with suppress(FileNotFoundError):
                bits = stat.S_IMODE(found.status().st_mode)
        name = _temporary_name()
        descriptor = _created(found, name, users, bits)
        # The walk closes its own directory.
        kept = Destination(os.dup(found.directory), found.name, found.user)
        return kept, descriptor, name

    found, descriptor, name = _tried(path, users, act)
    _UNFINISHED[name] = found
    try:
        with os.fdopen(descriptor, "wb", buffering=1 << 16) as stream:
            stream.writelines(pieces)
            stream.flush()
            # Some file systems report a lack of space only now.
            os.fsync(descriptor)
        found.rename(name)
    except BaseException:
        found.unlink(name)
        raise
    finally:
        del _UNFINISHED[name]
        os.close(found.directory)


# Temporary files that are being written and will replace others.
_UNFINISHED: Final[dict[str, Destination]] = {}


def discard_unfinished() -> None:
    """Removes temporary files of writes that have not finished."""
    for name, found in list(_UNFINISHED.items()):
        with suppress(OSError):
            found.unlink(name)


def _tried(path: Path, users: Sequence[User], act: Callable[[Destination], T]) -> T:
    """Runs ``act`` with the rights of the first user who is permitted it. Raises OSError."""
    for user in users[:-1]:
        with suppress(PermissionError), destination(path, user) as found:
            return act(found)
    with destination(path, users[-1]) as found:
        return act(found)


def _created(found: Destination, name: str, users: Sequence[User], mode: int = PRIVATE) -> int:
    descriptor = found.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, name)
    with closed_on_error(descriptor):
        os.fchmod(descriptor, mode)
        if found.user != users[0]:
            # File systems without owners refuse this, and do not need it.
            with suppress(PermissionError, OverflowError):
                os.fchown(descriptor, *users[0])
    return descriptor


def _check_rename(found: Destination) -> None:
    """Raises PermissionError if another user's file is in the way, in a sticky directory."""
    directory = os.fstat(found.directory)
    try:
        status = found.status()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    owners = 0, directory.st_uid, status.st_uid
    if directory.st_mode & stat.S_ISVTX and found.user.uid not in owners:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _temporary_name() -> str:
    return f".tracelloc-{secrets.token_hex(8)}"


_MOST_FILES_LOOKED_AT: Final = 4096


class CacheDirectory:
    """A directory of cached files, of which the least recently used ones are removed."""

    def __init__(self, who: Invoker, name: str, suffix: str, most_files: int) -> None:
        """``name``: the directory's name; empty for the common directory."""
        self.path: Path = who.cache / "tracelloc" / name
        self._who = who
        self._suffix = suffix
        self._most_files = most_files

    def recall(self, name: str, most_bytes: int) -> bytes:
        """Reads a cached file. Raises OSError if it is missing, too large or not trusted."""
        return read_all(self.open(name), most_bytes)

    def open(self, name: str) -> int:
        """Opens a cached file to read. Raises OSError if it is missing or others can write it."""
        path = self.path / (name + self._suffix)
        with destination(path, self._who.user) as found, rights_of(self._who):
            descriptor = open_trusted(path, self._who)
            os.utime(found.name, dir_fd=found.directory, follow_symlinks=False)
        return descriptor

    def remember(self, name: str, pieces: Iterable[bytes]) -> None:
        """Writes a cached file. On any error, an old file stays, and nothing is raised."""
        user = self._who.user
        with suppress(OSError), directory_made(self.path, user) as directory:
            replace_file(self.path / (name + self._suffix), pieces, [user])
            with rights_of(self._who):
                self._drop_oldest(directory)

    def _drop_oldest(self, directory: int) -> None:
        ages = []
        with os.scandir(f"/proc/self/fd/{directory}") as entries:
            for entry, _ in zip(entries, range(_MOST_FILES_LOOKED_AT), strict=False):
                if entry.name.endswith(self._suffix) and entry.is_file(follow_symlinks=False):
                    ages.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
        for _, name in sorted(ages, reverse=True)[self._most_files :]:
            os.unlink(name, dir_fd=directory)
