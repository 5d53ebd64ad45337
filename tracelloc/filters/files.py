"""Where filter rules come from, and where the user's own are kept.

The user's file is ``$XDG_CONFIG_HOME/tracelloc/filters.toml`` (by default in ``~/.config``,
https://specifications.freedesktop.org/basedir-spec/latest/). Under sudo it is the file of
who called sudo, read and written with that user's rights on files and not root's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError, UsageError
from tracelloc.filters.filters import Filters
from tracelloc.filters.rules import Rule, RuleFile, parse_rules
from tracelloc.text import printable

_LARGEST_FILE_BYTES: Final = 4 << 20
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs the program, on whose behalf files are read and written."""

    uid: int
    gid: int
    config: Path
    """The directory of this user's configuration."""

    @property
    def filters(self) -> Path:
        """The user's own rules, whether there are any or not."""
        return self.config / "tracelloc" / "filters.toml"


def caller(environment: Mapping[str, str] = os.environ) -> Caller:
    """Who called the program, or called sudo to run it."""
    uid, gid = os.geteuid(), os.getegid()
    home = environment.get("HOME", "")
    called_by = environment.get("SUDO_UID", "")
    if uid == 0 and called_by.isascii() and called_by.isdigit() and len(called_by) < 10:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwuid(int(called_by))
            uid, gid, home = entry.pw_uid, entry.pw_gid, entry.pw_dir
    config = environment.get("XDG_CONFIG_HOME", "")
    # What is no absolute path is to be ignored, says the specification.
    if not config.startswith("/"):
        return Caller(uid, gid, Path(home or "/nonexistent") / ".config")
    return Caller(uid, gid, Path(config))


def shipped_rules() -> RuleFile:
    """The rules of the filters.toml that comes with the program."""
    text = (files("tracelloc") / "filters.toml").read_text(encoding="utf-8")
    return parse_rules(text, "filters.toml", trusted=True)


def read_rules(path: Path) -> RuleFile:
    """The rules of a file. Raises UsageError naming file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"filters file {path} cannot be read: {_reason(error)}") from error
    return parse_rules(text, str(path))


def own_rules(who: Caller) -> tuple[RuleFile | None, str]:
    """The user's own rules if there are any, and a warning if they can't be trusted or read.

    Raises UsageError for what is wrong in them.
    """
    try:
        with _rights_of(who):
            text = _trusted_text(who)
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{printable(str(who.filters))} is not used: {_reason(error)}"
    return parse_rules(text, str(who.filters)), ""


def load_filters(
    paths: Iterable[Path] = (),
    switches: Iterable[tuple[str, bool]] = (),
    *,
    standing: bool = True,
    who: Caller | None = None,
) -> tuple[Filters, list[str]]:
    """All layers together, and warnings. Raises UsageError.

    ``switches`` turn groups on or off, whatever the files say. Without ``standing`` there
    are neither the shipped nor the user's own rules, only those of ``paths``.
    """
    layers: list[RuleFile] = []
    warnings: list[str] = []
    if standing:
        layers.append(shipped_rules())
        own, warning = own_rules(who or caller())
        if own is not None:
            layers.append(own)
        if warning:
            warnings.append(warning)
    layers.extend(read_rules(path) for path in paths)
    filters = Filters(layers)
    for group, enabled in switches:
        filters.set_group(group, enabled)
    return filters, warnings


def append_rules(who: Caller, rules: Sequence[Rule]) -> Path:
    """Adds rules to the end of the user's own file; what it holds stays byte for byte.

    Readers see the old file or the new one. Raises TracellocError; then nothing changed.
    """
    path = who.filters
    addition = "\n".join(rule.to_toml() for rule in rules)
    try:
        with _rights_of(who):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                old = _trusted_text(who)
            except FileNotFoundError:
                old = ""
            gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
            text = old + gap + addition
            parse_rules(text, str(path))
            # A link stays one: what it leads to is replaced.
            _replace(Path(os.path.realpath(path)), text.encode())
    except (OSError, UnicodeDecodeError) as error:
        where = printable(str(path))
        raise TracellocError(f"{where} could not be written: {_reason(error)}") from error
    return path


def _trusted_text(who: Caller) -> str:
    """The content of the user's own file. Raises OSError if others could have written it."""
    # Whoever can write a directory can put another file into it.
    for folder in (who.filters.parent, Path(os.path.realpath(who.filters)).parent):
        with contextlib.suppress(FileNotFoundError):
            _check_writers(folder.stat(), who, f"its directory {printable(str(folder))}")
    descriptor = os.open(who.filters, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        _check_writers(status, who, "it")
        content = stream.read(_LARGEST_FILE_BYTES + 1)
    if len(content) > _LARGEST_FILE_BYTES:
        raise OSError(0, "it is larger than 4 MiB")
    return content.decode()


def _check_writers(status: os.stat_result, who: Caller, what: str) -> None:
    if status.st_uid not in (0, who.uid):
        raise PermissionError(0, f"{what} belongs to another user")
    if status.st_mode & _OTHERS_WRITE:
        raise PermissionError(0, f"other users can write {what} (chmod go-w makes it yours)")


@contextlib.contextmanager
def _rights_of(who: Caller) -> Iterator[None]:
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


def _replace(path: Path, content: bytes) -> None:
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.stat().st_mode)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tracelloc-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
