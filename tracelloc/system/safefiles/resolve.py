"""Paths resolved one directory at a time, with every link on the way checked.

The kernel's own resolution follows any link with the rights of the program, which may be root's.
This module follows a link only if root or the user whose rights apply has created it, in a
directory where nobody else could have put it. The result is a name in an open directory, so
renaming directories meanwhile has no effect.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.system.invoker import User, others_replace_entries, rights_of
from tracelloc.text import printable

_MOST_LINKS: Final = 40  # The kernel's own bound (path_resolution(7))
_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_DIRECTORY: Final = _HANDLE | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Destination:
    """A name in an open directory, and the user whose rights apply to it."""

    directory: int  # Handle (O_PATH) of the directory
    name: str
    user: User  # The user whose rights apply
    # Whether the name stands for an open file of this process (`/dev/fd/NUMBER`).
    is_descriptor: bool = False

    def open(self, flags: int, mode: int = 0, name: str | None = None) -> int:
        """Opens the file, or ``name`` beside it, without following a link. Raises OSError."""
        if not self.is_descriptor:
            flags |= os.O_NOFOLLOW
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        with rights_of(self.user):
            return os.open(name or self.name, flags, mode, dir_fd=self.directory)

    def status(self) -> os.stat_result:
        """Returns the status of the file, or of the link at its name. Raises OSError."""
        follows = self.is_descriptor
        with rights_of(self.user):
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=follows)

    def rename(self, name: str) -> None:
        with rights_of(self.user):
            os.rename(name, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)

    def unlink(self, name: str) -> None:
        with rights_of(self.user):
            os.unlink(name, dir_fd=self.directory)


@contextmanager
def destination(path: Path, user: User) -> Iterator[Destination]:
    """Finds the directory and name that a path leads to. Raises OSError for others' links."""
    walk = _PathWalk(path, user)
    try:
        with rights_of(user):
            name = walk.go()
        yield Destination(walk.trail[-1], name, user, walk.ends_at_descriptor)
    finally:
        walk.close()


@contextmanager
def directory_made(path: Path, user: User) -> Iterator[int]:
    """Opens a directory (O_PATH), created for the user only if necessary. Raises OSError."""
    walk = _PathWalk(path / "x", user, makes_directories=True)
    try:
        with rights_of(user):
            walk.go()
        yield walk.trail[-1]
    finally:
        walk.close()


class _PathWalk:
    """The resolution of one path from directory to directory."""

    def __init__(self, path: Path, user: User, *, makes_directories: bool = False) -> None:
        self.trail: list[int] = []  # Handles of the directories that lead to the last one
        self.ends_at_descriptor = False
        self._user = user
        self._path = path
        self._makes_directories = makes_directories
        self._parts = _parts_of(str(path))
        self._links = 0
        self._follows_links = True

    def close(self) -> None:
        while self.trail:
            os.close(self.trail.pop())

    def go(self) -> str:
        """Resolves the path. Returns the name in the last directory. Raises OSError."""
        self._begin_at("/" if self._path.is_absolute() else ".")
        while self._parts:
            name = self._parts.pop()
            if name == "..":
                # Only the kernel knows the parent of the directory where the path begins.
                above = os.open("..", _DIRECTORY, dir_fd=self.trail[0])
                os.close(self.trail.pop())
                if self.trail:
                    os.close(above)
                else:
                    self.trail.append(above)
            elif self._is_there(name):
                return name
        raise IsADirectoryError(errno.EISDIR, "it is a directory")

    def _begin_at(self, directory: str) -> None:
        self.close()
        self.trail.append(os.open(directory, _DIRECTORY))

    def _is_there(self, name: str) -> bool:
        try:
            handle = os.open(name, _HANDLE | os.O_NOFOLLOW, dir_fd=self.trail[-1])
        except FileNotFoundError:
            if not self._parts:
                return True
            if not self._makes_directories:
                raise
            os.mkdir(name, 0o700, dir_fd=self.trail[-1])
            handle = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.trail[-1])
        try:
            status = os.fstat(handle)
            if stat.S_ISLNK(status.st_mode):
                return self._follow(name, handle, status)
            if not self._parts:
                return True
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self.trail.append(handle)
            handle = -1
            return False
        finally:
            if handle >= 0:
                os.close(handle)

    def _follow(self, name: str, handle: int, link: os.stat_result) -> bool:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        parent = os.fstat(self.trail[-1])
        proc = os.stat("/proc")
        if parent.st_dev == proc.st_dev and parent.st_ino != proc.st_ino:
            return self._follow_descriptor(name, parent)
        self._check_link(name, link, parent)
        target = os.readlink("", dir_fd=handle)
        self._parts += _parts_of(target)
        if target.startswith("/"):
            self._begin_at("/")
        return False

    def _follow_descriptor(self, name: str, parent: os.stat_result) -> bool:
        """Follows a link of /proc/PID, whose text is not its real target."""
        is_own = os.path.samestat(parent, os.stat("/proc/self/fd"))
        if not self._parts:
            if not is_own:
                raise _refused(name)
            self.ends_at_descriptor = True
            return True
        self.trail.append(os.open(name, _DIRECTORY, dir_fd=self.trail[-1]))
        # A container's root creates the links in it, relative to the container's root directory.
        self._follows_links = self._follows_links and is_own
        return False

    def _check_link(self, name: str, link: os.stat_result, parent: os.stat_result) -> None:
        ours = 0, self._user.uid
        if (
            not self._follows_links
            or link.st_uid not in ours
            or parent.st_uid not in ours
            # Another user may have added a hard link under another name.
            or link.st_nlink != 1
            or others_replace_entries(parent, self._user)
        ):
            raise _refused(name)


def _refused(name: str) -> PermissionError:
    how = "a link that another user could have made; name the file that it leads to"
    return PermissionError(errno.EPERM, f"{printable(name)} is {how}")


def _parts_of(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
