"""The file of a recording: an SQLite database with a checksum on every row.

What a file holds is not trusted: a database may have views and triggers of its maker's, so
nothing is read of one whose tables are not exactly ours.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.system.invoker import User, is_changed_only_by, others_replace_entries, rights_of
from tracelloc.system.safefiles.writing import create_file

APPLICATION_ID: Final = 0x74726C63
"""What file(1) and we know a recording by: "trlc"."""
VERSION: Final = 1
VERSION_WITH_EVENTS: Final = 2
"""Has one more table."""
_LARGEST_ROW: Final = 1 << 28
_LOG_PAGES: Final = 256
"""Pages of the write-ahead log before it is moved into the file: 1 MiB."""
_PATIENCE_S: Final = 5.0
_BESIDE: Final = ("-wal", "-shm")
"""Ends of the names of files that SQLite has beside one that is written."""

TABLES: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ("CREATE TABLE moments (number INTEGER PRIMARY KEY, time_s REAL NOT NULL, "
    "uptime_s REAL NOT NULL, step_s INTEGER NOT NULL, whole INTEGER NOT NULL)"),
    "CREATE TABLE contents (number INTEGER PRIMARY KEY, crc INTEGER NOT NULL, data BLOB NOT NULL)",
    ("CREATE TABLE stacks (number INTEGER PRIMARY KEY, book INTEGER NOT NULL, "
    "first INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL)"),
    ("CREATE TABLE samples (process INTEGER NOT NULL, programs INTEGER NOT NULL, "
    "time_ns INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL, "
    "PRIMARY KEY (process, programs, time_ns)) WITHOUT ROWID"),
    ("CREATE TABLE names (number INTEGER PRIMARY KEY, process INTEGER NOT NULL, "
    "programs INTEGER NOT NULL, crc INTEGER NOT NULL, data BLOB NOT NULL)"),
)  # fmt: skip
EVENTS_TABLE: Final = (
    "CREATE TABLE events (moment INTEGER NOT NULL, process INTEGER NOT NULL, "
    "programs INTEGER NOT NULL, is_whole INTEGER NOT NULL, crc INTEGER NOT NULL, "
    "data BLOB NOT NULL, PRIMARY KEY (moment, process, programs))"
)


def checksum(data: bytes, *key: int) -> int:
    """CRC-32 of a row's data and of what it is found by."""
    return zlib.crc32(data, zlib.crc32(struct.pack(f"<{len(key)}q", *key)))


def checked(data: object, crc: object, *key: object) -> bytes:
    """A row's data. Raises MalformedError unless it and its key are what was written."""
    # Any value may be in any column.
    numbers = [each for each in key if isinstance(each, int)]
    is_same_key = len(numbers) == len(key)
    if not isinstance(data, bytes) or not is_same_key or checksum(data, *numbers) != crc:
        raise MalformedError("a row does not match its checksum")
    return data


def _create_file(path: Path, users: Sequence[User], mode: int) -> User:
    try:
        descriptor, user = create_file(path, mode, users)
        os.close(descriptor)
    except FileExistsError:
        raise TracellocError(
            f"{path} exists already", hint="-o FILE names another file; recordings are not extended"
        ) from None
    except OSError as error:
        raise TracellocError(f"{path} cannot be written: {error.strerror}") from error
    return user


def _real(path: Path) -> Path:
    """The path without links and dots above its last name."""
    return Path(os.path.realpath(path.parent)) / path.name


def _writers(path: Path, users: Sequence[User]) -> list[User]:
    """Users with whose rights a recording may be written.

    SQLite opens files by name, and follows links. So root's rights are not used in a directory
    that others can change: those of its owner are.
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
    path: Path, users: Sequence[User], mode: int, *, events: bool = False
) -> tuple[sqlite3.Connection, tuple[User, User]]:
    """A new recording, which may be read meanwhile; its owner, and whose rights write it.

    ``users``: see ``tracelloc.system.safefiles.writing``. Raises TracellocError.
    """
    version = VERSION_WITH_EVENTS if events else VERSION
    writers = _writers(_real(path), users)
    user = _create_file(path, writers, mode)
    with failing(path, "written"), rights_of(user):
        # One thread at a time uses it, not always the same.
        connection = sqlite3.connect(_real(path), isolation_level=None, check_same_thread=False)
        for pragma in (f"application_id={APPLICATION_ID}", f"user_version={version}"):
            connection.execute(f"PRAGMA {pragma}")
        # What lies beside it is ours as well: nobody else's file or link is written to.
        for suffix in _BESIDE:
            _create_file(Path(f"{path}{suffix}"), writers, mode)
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            f"wal_autocheckpoint={_LOG_PAGES}",
            f"journal_size_limit={_LOG_PAGES * 4096}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        with transaction(connection):
            for table in _tables(version):
                connection.execute(table)
    return connection, (writers[0], user)


def copy_written(
    connection: sqlite3.Connection, path: Path, users: tuple[User, User], mode: int
) -> None:
    """Writes what is recorded by now to another file, all of it or none. Raises TracellocError.

    ``users``: as ``create`` returned them.
    """
    path = _real(path)
    part = path.with_name(f".{path.name}.part")
    with rights_of(users[-1]):
        if path.exists():
            raise TracellocError(f"{path} exists already")
        part.unlink(missing_ok=True)
        try:
            _create_file(part, users, mode)
            with failing(path, "written"), closing(sqlite3.connect(part)) as copy:
                connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            part.rename(path)
        finally:
            _remove(part)


def close_written(connection: sqlite3.Connection, user: User) -> None:
    """Leaves one file, without a log beside it unless somebody still reads: then it is empty."""
    with rights_of(user):
        for pragma in ("wal_checkpoint(TRUNCATE)", "journal_mode=DELETE"):
            with suppress(sqlite3.Error):
                connection.execute(f"PRAGMA {pragma}")
        connection.close()


def remove(path: Path, user: User) -> None:
    """Removes a recording of nothing, and what lies beside it."""
    with rights_of(user):
        _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", *_BESIDE):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def is_recording(path: Path) -> bool:
    """Whether a file says that it is one; raises OSError if it can't be read."""
    with path.open("rb") as stream:
        head = stream.read(72)
    return head[:16] == b"SQLite format 3\0" and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


@contextmanager
def rights_to_read(path: Path) -> Iterator[None]:
    """The rights of the user whose recording it is, or whose directory, for what is read of it.

    SQLite opens what lies beside it to be written to, and gives it to the recording's owner: as
    root it must not do so with what somebody has linked there.
    """
    owner = _other_owner(path) if os.geteuid() == 0 else None
    if owner is None:
        yield
        return
    with rights_of(owner):
        yield


def _other_owner(path: Path) -> User | None:
    """Who can put files beside this one, and may read it; None: root alone."""
    with suppress(OSError):
        real = path.resolve()
        for status in (real.parent.stat(), real.lstat()):
            if status.st_uid != 0:
                owner = User(status.st_uid, status.st_gid)
                with rights_of(owner):
                    path.open("rb").close()
                return owner
    return None


def open_recorded(path: Path) -> tuple[sqlite3.Connection, bool]:
    """A recording to be read, and whether it may still be written to. Raises TracellocError.

    With ``rights_to_read``.
    """
    try:
        if not is_recording(path):
            raise TracellocError(
                f"{path} is no recording", hint="tracelloc record makes them; diff reads profiles"
            )
    except OSError as error:
        raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
    # Without a log nobody writes to it, and nothing has to be written beside it.
    has_log = Path(f"{path}-wal").exists()
    address = path.absolute().as_uri() + ("?mode=ro" if has_log else "?mode=ro&immutable=1")
    with failing(path, "read"):
        connection = sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False, timeout=_PATIENCE_S
        )
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_ROW)
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "query_only=ON"):
                connection.execute(f"PRAGMA {pragma}")
            _check_tables(connection)
        except BaseException:
            connection.close()
            raise
    return connection, has_log


def _tables(version: int) -> tuple[str, ...]:
    return (*TABLES, EVENTS_TABLE) if version == VERSION_WITH_EVENTS else TABLES


def has_events(connection: sqlite3.Connection) -> bool:
    """Whether every event is kept, at least of the last moments."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(version == VERSION_WITH_EVENTS)


def _check_tables(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (VERSION, VERSION_WITH_EVENTS):
        newest = VERSION_WITH_EVENTS
        raise MalformedError(f"it has version {version}, this program reads up to {newest}")
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if {row[0] for row in found} != set(_tables(version)):
        raise MalformedError("its tables are not those of a recording")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@contextmanager
def failing(path: Path, done: str) -> Iterator[None]:
    """What goes wrong with the file becomes one line. ``done``: read or written."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "the file system may be full" if "full" in str(error) else ""
        raise TracellocError(f"{path} cannot be {done}: {error}", hint=hint) from error
    except (MalformedError, sqlite3.Error, UnicodeDecodeError) as error:
        raise TracellocError(
            f"{path} cannot be {done}: {error}", hint="the recording may be damaged"
        ) from error


def used_bytes(connection: sqlite3.Connection) -> int:
    """Size of what the file holds; what was deleted is used again."""
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
