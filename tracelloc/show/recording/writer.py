"""Creates and writes a recording, with its owner's rights; a written snapshot survives a crash."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import TracellocError
from tracelloc.model.stacks import CallStacks
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording import container, momentcodec
from tracelloc.show.recording.compaction import GROUP, STEPS_S, Compactor, insert
from tracelloc.show.recording.container import RecordedMoment, checksum, transaction
from tracelloc.show.recording.parts import SnapshotEncoder, key_of
from tracelloc.show.recording.recordednames import NamesWriter
from tracelloc.snapshots.snapshot import Snapshot, TraceSnapshot
from tracelloc.system.invoker import User, is_changed_only_by, others_replace_entries, rights_of
from tracelloc.system.safefiles.writing import create_file
from tracelloc.text import NS_PER_S, format_size

# One part in this many of the size is reserved for the log and for data until the next folding.
_SPARE: Final = 4
# Free space below which recording ends: what is recorded can be completed in it.
_LEAST_FREE_BYTES: Final = 256 << 10
# Largest group: one part in this many of the file, as the current one can't be folded.
_GROUPS: Final = 16


@dataclass(slots=True)
class _Book:
    number: int
    stacks: CallStacks
    written: int = 0  # Number of written stacks
    unknown: set[int] = field(default_factory=set)  # Stacks that were written without their frames


@dataclass(slots=True)
class _Program:
    """The names and history that are written of one program of a process."""

    names: NamesWriter = field(default_factory=NamesWriter)
    used: set[int] = field(default_factory=set)
    samples: set[int] = field(default_factory=set)  # Written times of the program's history


class RecordingWriter:
    """Writes a recording. For one thread at a time. Methods raise TracellocError on failure."""

    def __init__(
        self, path: Path, *, max_bytes: int, max_s: float, users: Sequence[User] = ()
    ) -> None:
        """``max_s``: how far the file may reach back. ``users``: whose rights are used."""
        self.path = path
        users = users or [User(os.geteuid(), os.getegid())]
        self._connection, self._users = create(path, users, max_bytes)
        self._file = _identity(path)
        self._max_bytes = max_bytes
        self._compactor = Compactor(self._connection, max_bytes - max_bytes // _SPARE, max_s)
        self._encoder = SnapshotEncoder(lambda stacks: self._book(stacks).number)
        self._books: dict[int, _Book] = {}
        self._programs: dict[momentcodec.ProcessKey, _Program] = {}
        self._chain = momentcodec.MomentChain()
        self.count = 0
        self._whole = 0
        self._group_bytes = 0
        self._is_folding = False

    @property
    def is_gone(self) -> bool:
        """Whether the file was removed, moved or replaced, so that nobody finds new snapshots."""
        return _identity(self.path) != self._file

    def describe(self, about: dict[str, str]) -> None:
        with container.failing(self.path, "written"), transaction(self._connection):
            for row in about.items():
                self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", row)

    def add(self, trace: TraceSnapshot, namers: Namers, patience_s: float = 0.0) -> None:
        """Writes a snapshot and names; waits at most ``patience_s`` for names."""
        with container.failing(self.path, "written"):
            parts = self._encoder.parts(trace)
            with transaction(self._connection):
                for one in trace.processes:
                    self._add_stacks(self._book(one.stacks), len(one.totals))
                    self._add_samples(one)
                    self._add_names(one, namers, patience_s)
                self._add_moment(trace.root, parts)
            self.count += 1
            if self._whole == self.count - 1 or self._is_folding:
                self._connection.execute("PRAGMA wal_checkpoint")
                self._is_folding = self._compactor.fold(trace.root.now_ns / NS_PER_S)
            self._check_size()

    def _add_moment(self, root: Snapshot, parts: momentcodec.MomentParts) -> None:
        is_large = self._group_bytes > self._max_bytes // _GROUPS
        if self.count - self._whole >= GROUP or is_large:
            self._whole, self._chain, self._group_bytes = self.count, momentcodec.MomentChain(), 0
        uptime_s = root.now_ns / NS_PER_S
        moment = RecordedMoment(self.count, root.time_s, uptime_s, STEPS_S[0], self._whole)
        data = momentcodec.encode(parts, self._chain.base)
        insert(self._connection, moment, data)
        self._group_bytes += len(data)
        self._chain.add(parts)

    def size_bytes(self) -> int:
        with container.failing(self.path, "written"):
            return container.used_bytes(self._connection)

    def copy(self, path: Path) -> None:
        """Copies the recording so far, atomically. Raises TracellocError."""
        path = _real(path)
        part = path.with_name(f".{path.name}.part")
        with rights_of(self._users[-1]):
            if path.exists():
                raise TracellocError(f"{path} exists already")
            part.unlink(missing_ok=True)
            try:
                _create_file(part, self._users)
                with container.failing(path, "written"), closing(sqlite3.connect(part)) as copy:
                    self._connection.backup(copy)
                    copy.execute("PRAGMA journal_mode=DELETE")
                part.rename(path)
            finally:
                _remove(part)

    def _check_size(self) -> None:
        """Empties the log if room is lacking. Raises TracellocError if room is lacking then."""
        size, free = container.disk_bytes(self.path), container.free_bytes(self.path)
        log = container.disk_bytes(self.path, container.BESIDE)
        if size <= self._max_bytes and free >= 2 * log + _LEAST_FREE_BYTES:
            return
        # It waits for readers, for seconds.
        emptied = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        size, free = container.disk_bytes(self.path), container.free_bytes(self.path)
        if free < _LEAST_FREE_BYTES:
            raise TracellocError(
                f"{self.path} cannot be written: the file system is full, "
                f"{format_size(free)} are left",
                hint="what is recorded stays",
            )
        if size > self._max_bytes:
            what = "call stacks, names and the last snapshots take"
            if emptied[0]:
                what = "a stopped reader keeps it from emptying its log; with that, it takes"
            hint = "a larger --max-size is needed; what is recorded stays"
            raise TracellocError(f"{self.path}: {what} {format_size(size)}", hint=hint)

    def _book(self, stacks: CallStacks) -> _Book:
        if id(stacks) not in self._books:
            self._books[id(stacks)] = _Book(len(self._books), stacks)
        return self._books[id(stacks)]

    def _add_stacks(self, book: _Book, count: int) -> None:
        # Frames of stacks that were written without them may be known by now.
        found = [index for index in book.unknown if book.stacks.frames(index) is not None]
        book.unknown.difference_update(found)
        for first, end in [*((index, index + 1) for index in found), (book.written, count)]:
            if end <= first:
                continue
            depths, flags, frames = book.stacks.columns(first, end)
            data = momentcodec.arrays_packed(depths, flags, frames)
            crc = checksum(data, book.number, first)
            self._insert("stacks", None, book.number, first, crc, data)
            book.unknown.update((np.flatnonzero(depths < 0) + first).tolist())
        book.written = max(book.written, count)

    def _add_samples(self, one: Snapshot) -> None:
        key, program = key_of(one), self._program(one)
        for time_ns in one.history.times_ns:
            if time_ns not in program.samples:
                program.samples.add(time_ns)
                data = momentcodec.arrays_packed(one.history.at(time_ns))
                crc = checksum(data, *key, time_ns)
                self._insert("samples", *key, time_ns, crc, data)

    def _add_names(self, one: Snapshot, namers: Namers, patience_s: float) -> None:
        program = self._program(one)
        used = np.flatnonzero(one.totals.allocated_count | one.totals.live_count)
        # Unknown frames are requested again when they become known.
        new = set(used.tolist()) - program.used
        if one.mappings is not None:
            new |= {held.stack for held in one.mappings.stacks} - program.used
        program.used |= {index for index in new if one.frames(index)}
        program.names.add_addresses(address for index in new for address in one.frames(index))
        data = program.names.batch(namers.namer_of(one.target), patience_s)
        if data is not None:
            key = key_of(one)
            self._insert("names", None, *key, checksum(data, *key), data)

    def _program(self, one: Snapshot) -> _Program:
        return self._programs.setdefault(key_of(one), _Program())

    def _insert(self, table: str, *values: int | bytes | None) -> None:
        places = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO {table} VALUES ({places})", values)  # noqa: S608

    def close(self) -> None:
        """Completes the file, even if it was moved; removes it if it has no snapshots."""
        with rights_of(self._users[-1]):
            # An empty log file remains only if a reader has it open.
            for pragma in ("wal_checkpoint(TRUNCATE)", "journal_mode=DELETE"):
                with suppress(sqlite3.Error):
                    self._connection.execute(f"PRAGMA {pragma}")
            self._connection.close()
        # Of a file that is gone, SQLite may leave its log behind.
        if not self.path.exists() or (not self.count and not self.is_gone):
            with rights_of(self._users[-1]):
                _remove(self.path)


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None


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
    """Creates a recording that is readable while written. Returns it, its owner and writer."""
    log_pages = max(1, min(_MOST_LOG_BYTES, max_bytes // _LOG_SHARE) // _PAGE_BYTES)
    writers = _writers(_real(path), users)
    beside = [Path(f"{path}{suffix}") for suffix in container.BESIDE]
    # SQLite deletes a log beside a new database, which another recording may need.
    for each in beside:
        if os.path.lexists(each):
            raise _existing(each)
    user = _create_file(path, writers)
    with container.failing(path, "written"), rights_of(user), ExitStack() as undo:
        undo.callback(path.unlink, missing_ok=True)
        # One thread at a time uses it, not always the same.
        connection = sqlite3.connect(_real(path), isolation_level=None, check_same_thread=False)
        undo.callback(connection.close)
        for pragma in (
            f"page_size={_PAGE_BYTES}",
            f"application_id={container.APPLICATION_ID}",
            f"user_version={container.VERSION}",
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
            for table in container.TABLES:
                connection.execute(table)
        undo.pop_all()
    return connection, (writers[0], user)


def _remove(path: Path) -> None:
    for suffix in ("", *container.BESIDE):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
