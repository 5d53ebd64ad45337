"""Creates, copies and completes the file of a recording, with the rights of its owner."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.show.recording.container import (
    APPLICATION_ID,
    BESIDE,
    TABLES,
    VERSION,
    failing,
    transaction,
)
from tracelloc.system.invoker import User, is_changed_only_by, others_replace_entries, rights_of
from tracelloc.system.safefiles.writing import create_file

_MOST_LOG_BYTES: Final = 1 << 20  # Size at which the write-ahead log is moved into the file
_LOG_SHARE: Final = 16  # Largest part of the size limit for the log: one in this many
_PAGE_BYTES: Final = 4096


def _create_file(path: Path, users: Sequence[User]) -> User:
    try:
        descriptor, user = create_file(path, users)
        os.close(descriptor)
    except FileExistsError:
        raise _existing(path) from None
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error
    return user


def _existing(path: Path) -> TracellocError:
    hint = "-o FILE names another file; recordings are not extended"
    return TracellocError(f"{path} exists already", hint=hint)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path.parent)) / path.name


def _writers(path: Path, users: Sequence[User]) -> list[User]:
    """Returns the users whose rights may be used to write a recording.

    SQLite opens files by name, and follows links. In a directory that other users can change,
    the rights of its owner are therefore used, not root's.
    """
    writers = [user for user in users if user.uid or is_changed_only_by(path.parent, user)]
    if writers:
        return writers
    try:
        status = path.parent.stat()
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error
    owner = User(status.st_uid, status.st_gid)
    if not owner.uid or others_replace_entries(status, owner):
        raise TracellocError(
            f"{path} cannot be written: other users can change its directory",
            hint="record to a directory that only its owner can write to",
        )
    return [owner]


def create(
    path: Path, users: Sequence[User], max_bytes: int
) -> tuple[sqlite3.Connection, tuple[User, User]]:
    """Creates a recording that is readable while written. Returns it, its owner and writer.

    ``users``: see ``tracelloc.system.safefiles.writing``. Raises TracellocError.
    """
    log_pages = max(1, min(_MOST_LOG_BYTES, max_bytes // _LOG_SHARE) // _PAGE_BYTES)
    writers = _writers(_real(path), users)
    beside = [Path(f"{path}{suffix}") for suffix in BESIDE]
    # SQLite deletes a log beside a new database, which another recording may need.
    for each in beside:
        if os.path.lexists(each):
            raise _existing(each)
    user = _create_file(path, writers)
    with failing(path, "written"), rights_of(user), ExitStack() as undo:
        undo.callback(path.unlink, missing_ok=True)
        # One thread at a time uses it, not always the same.
        connection = sqlite3.connect(_real(path), isolation_level=None, check_same_thread=False)
        undo.callback(connection.close)
        for pragma in (
            f"page_size={_PAGE_BYTES}",
            f"application_id={APPLICATION_ID}",
            f"user_version={VERSION}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        # Creates SQLite's other files too, so that it writes to no foreign file or link.
        for each in beside:
            _create_file(each, writers)
            undo.callback(each.unlink, missing_ok=True)
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"wal_autocheckpoint={log_pages}",
            f"journal_size_limit={log_pages * _PAGE_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        with transaction(connection):
            for table in TABLES:
                connection.execute(table)
        undo.pop_all()
    return connection, (writers[0], user)


def copy_written(connection: sqlite3.Connection, path: Path, users: tuple[User, User]) -> None:
    """Copies the recording so far, atomically, as ``create``'s users. Raises TracellocError."""
    path = _real(path)
    part = path.with_name(f".{path.name}.part")
    with rights_of(users[-1]):
        if path.exists():
            raise TracellocError(f"{path} exists already")
        part.unlink(missing_ok=True)
        try:
            _create_file(part, users)
            with failing(path, "written"), closing(sqlite3.connect(part)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            part.rename(path)
        finally:
            _remove(part)


def close_written(connection: sqlite3.Connection, user: User) -> None:
    """Closes the database; an empty log file remains only if a reader has it open."""
    with rights_of(user):
        for pragma in ("wal_checkpoint(TRUNCATE)", "journal_mode=DELETE"):
            with suppress(sqlite3.Error):
                connection.execute(f"PRAGMA {pragma}")
        connection.close()


def remove(path: Path, user: User) -> None:
    """Removes an empty recording and SQLite's files next to it."""
    with rights_of(user):
        _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", *BESIDE):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
