"""Reads many parts of a process's memory at once, without stopping it."""

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.errors import PrivilegeError, TargetError, privilege_hint
from tracelloc.model.figures import U64, Mask
from tracelloc.record.process.procfs import Process
from tracelloc.system.memorylimits import numbers_in
from tracelloc.system.syscalls import read_process, scan_pages

__all__ = ["PAGE_BYTES", "PRESENT", "SWAPPED", "U64", "Mask", "RemoteMemory"]

PAGE_BYTES: Final = mmap.PAGESIZE
_CHECK_EVERY_S: Final = 10.0
_FEW_SHARED_KIB: Final = 64  # Shared pages whose copies do no harm
_MOST_PIECES: Final = 1024  # UIO_MAXIOV, include/uapi/linux/uio.h
# Most contiguous regions per request. The kernel collects so many at a time
# (`pagemap_scan_init_bounce_buffer`, fs/proc/task_mmu.c). If it is asked for more, its answer may
# say that it stopped before regions that it has returned.
_REGIONS: Final = 512
_STRETCH_BYTES: Final = 1 << 30  # Address space whose pages are requested at once
# Bytes of address space that are searched page by page: some ten seconds' work.
_MOST_ADDRESSES: Final = 4 << 40
_TOO_MUCH: Final = "its mappings have terabytes, and Linux before 6.7 can't say what is in memory"
# A page is in memory (Documentation/admin-guide/mm/pagemap.rst).
PRESENT: Final = np.uint64(1 << 63)
SWAPPED: Final = np.uint64(1 << 62)  # A page is swapped out


class RemoteMemory:
    """A process's memory, read by process_vm_readv(2), or by its file if it has shared pages.

    Since Linux 5.19, process_vm_readv(2) makes the process a copy of each page that it shares with
    another process since a fork (`gup_must_unshare`, mm/internal.h); /proc/PID/mem does not.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._pagemap = Path(process.directory) / "pagemap"
        self._shares = False  # Whether there are such pages
        self._check_s = 0.0  # When to look for them again: the process may fork

    def pages(self, start: int, end: int, flag: np.uint64) -> Mask:
        """Returns a mask of the pages with any bit of ``flag``. Raises OSError, PrivilegeError."""
        try:
            with self._pagemap.open("rb", buffering=0) as pagemap:
                pagemap.seek(start // PAGE_BYTES * 8)
                entries = pagemap.read((end - start) // PAGE_BYTES * 8)
        except ProcessLookupError:
            entries = b""
        except PermissionError as error:
            raise _refused(self.process) from error
        found = np.zeros((end - start) // PAGE_BYTES, np.bool_)
        words = np.frombuffer(entries[: len(entries) // 8 * 8], np.uint64)
        found[: len(words)] = (words & flag) != 0
        return found

    def resident_runs(
        self,
        areas: Iterable[tuple[int, int]],
        may_go_on: Callable[[], bool],
        *,
        swapped: bool = False,
    ) -> Iterator[tuple[int, int, int]]:
        """Yields the resident parts of address ranges: (index of the range, start, end).

        ``swapped``: yields the parts that are swapped out instead. Ends early if ``may_go_on``
        returns False. Raises OSError (EFBIG if the kernel can't tell soon enough) and
        PrivilegeError.
        """
        regions = np.zeros((_REGIONS, 3), np.uint64)
        flag = SWAPPED if swapped else PRESENT
        try:
            pagemap = self._pagemap.open("rb", buffering=0)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise _refused(self.process) from error
        looked_at = 0
        with pagemap:
            for number, (start, end) in enumerate(areas):
                at = start
                while at < end:
                    if not may_go_on():
                        return
                    try:
                        stop = scan_pages(pagemap.fileno(), at, end, regions, swapped=swapped)
                        stop = max(stop, at + PAGE_BYTES)
                        found = regions[: int(np.count_nonzero(regions[:, 1])), :2]
                        runs = [(first, last) for first, last in found.tolist()]
                    except OSError as error:
                        if error.errno not in (errno.ENOTTY, errno.EINVAL):
                            raise
                        looked_at += min(_STRETCH_BYTES, end - at)
                        if looked_at > _MOST_ADDRESSES:
                            raise OSError(errno.EFBIG, _TOO_MUCH) from error
                        stop = min(at + _STRETCH_BYTES, end)
                        present = np.concatenate([[False], self.pages(at, stop, flag), [False]])
                        turns = at + PAGE_BYTES * np.flatnonzero(present[1:] != present[:-1])
                        runs = list(zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True))
                    at = stop
                    for first, last in runs:
                        yield number, first, last

    def look_for_shared(self) -> None:
        """Looks, now and then, whether pages are shared: for a large process, that takes long."""
        if (now_s := time.monotonic()) >= self._check_s:
            self._check_s = now_s + _CHECK_EVERY_S
            kib = numbers_in(self.process.memory_directory / "smaps_rollup")
            self._shares = kib.get("Pss_Anon", 0) + _FEW_SHARED_KIB < kib.get("Anonymous", 0)

    def fetch(self, pieces: U64, into: U64) -> int:
        """Reads pieces one after the other until one is unreadable. Returns the bytes read.

        ``pieces``: at most 1,024 rows of (address, bytes). Raises TargetError, PrivilegeError.
        """
        self.look_for_shared()
        try:
            if self._shares:
                return self._read_file(pieces, into)
            return read_process(self.process.pid, pieces, into)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOENT):
                raise TargetError(f"process {self.process.pid} has ended") from error
            if error.errno in (errno.EPERM, errno.EACCES):
                raise _refused(self.process) from error
            return 0

    def _read_file(self, pieces: U64, into: U64) -> int:
        view, got, count = into.reshape(-1).view(np.uint8).data, 0, 1
        path = self.process.memory_directory / "mem"
        # Suppressed is the error of a piece that can't be read.
        with open(path, "rb", buffering=0) as file, suppress(OSError, OverflowError):
            for start, size in pieces.tolist():
                count = os.preadv(file.fileno(), [view[got : got + size]], start)
                got += count
                if count < size:
                    break
        if not count:
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        return got

    def read(self, addresses: U64, size_bytes: int) -> tuple[U64, Mask]:
        """Reads pieces as ``read_pieces``, all of a size: returns (rows of 8-byte words, mask)."""
        words = np.zeros((len(addresses), size_bytes // 8), np.uint64)
        pieces = np.empty((len(addresses), 2), np.uint64)
        pieces[:, 0], pieces[:, 1] = addresses, size_bytes
        at = np.arange(len(addresses)) * (size_bytes // 8)
        return words, self.read_pieces(pieces, words.reshape(-1), at)

    def read_pieces(self, pieces: U64, into: U64, at: npt.NDArray[np.int64]) -> Mask:
        """Reads pieces of any size to given indexes of ``into``. Returns a mask of pieces read.

        ``pieces``: rows of (address, bytes: a multiple of 8). Raises TargetError, PrivilegeError.
        """
        was_read = np.zeros(len(pieces), np.bool_)
        ends = np.cumsum(pieces[:, 1])
        first = 0
        while first < len(pieces):
            batch = pieces[first : first + _MOST_PIECES]
            got = self.fetch(batch, into[at[first] :])
            before = ends[first] - pieces[first, 1]
            whole = int(np.searchsorted(ends, before + np.uint64(got), side="right")) - first
            was_read[first : first + whole] = True
            # The next piece can't be read, so it is skipped.
            first += whole + (whole < len(batch))
        return was_read

    def text(self, address: int, most_bytes: int = 256) -> str:
        """Returns the text at an address, up to a zero byte; empty if it can't be read."""
        text = self.process.read_memory(address, most_bytes)
        return text.partition(b"\0")[0].decode(errors="backslashreplace")


def _refused(process: Process) -> PrivilegeError:
    why = f"the memory of process {process.pid} may not be read"
    return PrivilegeError(why, hint=privilege_hint())
