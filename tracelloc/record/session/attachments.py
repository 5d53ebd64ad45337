"""One process's probes, which are reattached if the main thread exits and others go on."""

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from tracelloc.architecture import native
from tracelloc.errors import TargetError
from tracelloc.record.kernel.attach import Attachment, close_soon
from tracelloc.record.kernel.trials import Trial, trial_passes
from tracelloc.record.probe_points.placement import ProbePoint
from tracelloc.record.process.procfs import Process
from tracelloc.text import NS_PER_S

# A thread that has run for so long after it got the probes will hardly end the next moment.
_PROVEN_NS: Final = 1_000_000_000
_MOST_OUTLIVED: Final = 1024  # Descriptors that ended threads leave; the oldest are closed beyond


class Attachments:
    """All attachments to one process; each is attached through one of the process's threads."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._attachments: list[Attachment] = []
        self._seen_ns = time.monotonic_ns()
        # Descriptors of the probes of ended threads. Closing them removes the breakpoints if the
        # thread that has the new ones has ended, too.
        self._outlived: list[int] = []
        self._moved_ns = 0

    def add(self, attachment: Attachment) -> None:
        self._attachments.append(attachment)

    def check_for_changes(self, say: Callable[[str], None]) -> None:
        """Reattaches probes if the thread through which they were attached has ended.

        Call this often: on some kernels, events are missed until then. Raises TracellocError.
        """
        is_running = self._process.is_running
        threads = {each.thread_id for each in self._attachments}
        ended = {thread_id for thread_id in threads if not is_running(thread_id)}
        moved = [each for each in self._attachments if each.thread_id in ended]
        if not moved:
            self._seen_ns = time.monotonic_ns()
            if self._seen_ns - self._moved_ns > _PROVEN_NS:
                self._close_outlived()
            return
        thread_id = self._process.thread_id
        if not is_running(thread_id):
            return
        try:
            # Probes attached by links see every event as long as the breakpoints stay.
            saw_all = all(
                each.method.has_links and are_in_place(self._process, each.points) for each in moved
            )
            for attachment in moved:
                self._outlived += attachment.move(thread_id)
        except TargetError:  # the new thread has ended as well
            return
        finally:
            self._moved_ns = time.monotonic_ns()
            self._close_outlived(keep=_MOST_OUTLIVED)
        self._tell(min(ended), say, saw_all=saw_all)

    def _close_outlived(self, keep: int = 0) -> None:
        closed = self._outlived[: len(self._outlived) - keep]
        del self._outlived[: len(closed)]
        close_soon(closed)

    def _tell(self, ended: int, say: Callable[[str], None], *, saw_all: bool) -> None:
        for_ms = (time.monotonic_ns() - self._seen_ns) * 1000 // NS_PER_S
        is_main = ended == self._process.pid
        goes_on = f"process {self._process.pid} goes on without "
        goes_on += "its main thread" if is_main else f"thread {ended}"
        if self._attachments[0].method.has_links and not trial_passes(Trial.MAIN_THREAD):
            say(f"warning: {goes_on}, after which this kernel reports nothing: attach again")
        elif not saw_all:
            say(
                f"{goes_on}: what it allocated and freed until this was noticed, for at most "
                f"{for_ms} ms, is missing"
            )
        elif is_main:
            say(goes_on)

    def close(self) -> None:
        """Detaches all probes. May be called twice."""
        self._close_outlived()
        attachments, self._attachments = self._attachments, []
        for attachment in attachments:
            attachment.close()


def are_in_place(process: Process, points: Iterable[ProbePoint]) -> bool:
    """Whether the code differs from its file at each mapped point. Raises TargetError, OSError."""
    size_bytes = native().breakpoint_bytes
    mappings = [mapping for mapping in process.maps().mappings if mapping.executable]
    for path, offset in {(point.open_path, point.offset) for point in points}:
        with open(path, "rb", buffering=0) as file:
            inode = os.fstat(file.fileno()).st_ino
            code = os.pread(file.fileno(), size_bytes, offset)
        for mapping in mappings:
            address = mapping.start + offset - mapping.offset
            is_there = mapping.inode == inode and mapping.start <= address < mapping.end
            if is_there and process.read_memory(address, size_bytes) == code:
                return False
    return True
