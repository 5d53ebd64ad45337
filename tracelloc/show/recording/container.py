"""The file of a recording: an SQLite database with a checksum on every row.

Files are not trusted: a database may contain foreign views and triggers, so a file is only
read if its schema is exactly that of a recording.
"""

import os
import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, NamedTuple

from tracelloc.errors import MalformedError, TracellocError
from tracelloc.system.invoker import User, rights_of

# Application ID of recordings, for file(1) and tracelloc: "trlc".
APPLICATION_ID: Final = 0x74726C63
VERSION: Final = 1
# Files of version 2 also have a table of all events, which is not read any more.
_VERSION_WITH_EVENTS: Final = 2
# Suffixes of the files that SQLite keeps next to a database being written: its log, and a map.
BESIDE: Final = ("-wal", "-shm")
_LARGEST_ROW: Final = 1 << 28
_PATIENCE_S: Final = 5.0
_FULL_BYTES: Final = 64 << 10  # Free space with which SQLite can't write
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
_EVENTS_TABLE: Final = (
    "CREATE TABLE events (moment INTEGER NOT NULL, process INTEGER NOT NULL, "
    "programs INTEGER NOT NULL, is_whole INTEGER NOT NULL, crc INTEGER NOT NULL, "
    "data BLOB NOT NULL, PRIMARY KEY (moment, process, programs))"
)


class RecordedMoment(NamedTuple):
    """Time and position of one snapshot of a recording, without its content."""

    number: int  # Position in the recording
    time_s: float  # Seconds since 1970
    uptime_s: float  # CLOCK_MONOTONIC, which never jumps
    step_s: int  # Approximate seconds to the next snapshot
    whole: int  # Number of the whole snapshot at which applying differences begins


def checksum(data: bytes, *key: int) -> int:
    """Returns the CRC-32 of a row's data and key."""
    return zlib.crc32(data, zlib.crc32(struct.pack(f"<{len(key)}q", *key)))


def checked(data: object, crc: object, *key: object) -> bytes:
    """Returns the data of a row. Raises MalformedError if data or key do not match the CRC."""
    # SQLite columns can hold values of any type.
    numbers = [each for each in key if isinstance(each, int)]
    is_same_key = len(numbers) == len(key)
    if not isinstance(data, bytes) or not is_same_key or checksum(data, *numbers) != crc:
        raise MalformedError("a row does not match its checksum")
    return data


def is_recording(path: Path) -> bool:
    """Whether a file has the header of a recording; raises OSError if it can't be read."""
    with path.open("rb") as stream:
        head = stream.read(72)
    return head[:16] == b"SQLite format 3\0" and head[68:72] == APPLICATION_ID.to_bytes(4, "big")


@contextmanager
def rights_to_read(path: Path) -> Iterator[None]:
    """Switches to the rights of the owner of the recording or of its directory, for reading.

    SQLite opens files next to a recording for writing, and gives them to the recording's owner.
    With root's rights, it must not do so with links that another user has placed there.
    """
    owner = _other_owner(path) if os.geteuid() == 0 else None
    with nullcontext() if owner is None else rights_of(owner):
        yield


def _other_owner(path: Path) -> User | None:
    """Returns the user other than root who can create files beside a file and read it."""
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
    """Opens a recording, within ``rights_to_read``. Returns it, and whether it may still grow."""
    try:
        if not is_recording(path):
            hint = "tracelloc diff compares profiles, report -o writes their other formats"
            raise TracellocError(f"{path} is no recording", hint=hint)
    except OSError as error:
        raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
    # Without a log there is no writer, and SQLite needs no other files.
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


def _check_tables(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (VERSION, _VERSION_WITH_EVENTS):
        newest = _VERSION_WITH_EVENTS
        raise MalformedError(f"it has version {version}, this tracelloc reads up to {newest}")
    tables = TABLES if version == VERSION else (*TABLES, _EVENTS_TABLE)
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if {row[0] for row in found} != set(tables):
        raise MalformedError("its tables are not those of a recording")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Runs a transaction, which is committed or rolled back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@contextmanager
def failing(path: Path, done: str) -> Iterator[None]:
    """Turns errors of the file into one-line TracellocErrors. ``done``: what failed, "read"."""
    try:
        yield
    except sqlite3.OperationalError as error:
        # SQLite calls it an I/O error if one of its own files finds no room.
        is_full = "full" in str(error) or free_bytes(path) < _FULL_BYTES
        why = "the file system is full" if is_full else error
        raise TracellocError(f"{path} cannot be {done}: {why}") from error
    except (MalformedError, sqlite3.Error, UnicodeDecodeError) as error:
        hint = "the recording may be damaged"
        raise TracellocError(f"{path} cannot be {done}: {error}", hint=hint) from error


def free_bytes(path: Path) -> int:
    """Returns the space that is left where a file lies."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return sys.maxsize
    # Root may use what is reserved.
    return (found.f_bavail if os.geteuid() else found.f_bfree) * found.f_frsize


def disk_bytes(path: Path, suffixes: Sequence[str] = ("", *BESIDE)) -> int:
    """Returns the size of a recording and of the files next to it."""
    size = 0
    for suffix in suffixes:
        with suppress(OSError):
            size += Path(f"{path}{suffix}").stat().st_size
    return size


def used_bytes(connection: sqlite3.Connection) -> int:
    """Returns the size of used pages; SQLite reuses the free ones."""
    names = "page_count", "freelist_count", "page_size"
    pages, free, size = (int(connection.execute(f"PRAGMA {n}").fetchone()[0]) for n in names)
    return (pages - free) * size
