"""One process's probes; they are reattached when the main thread exits and others go on."""

from __future__ import annotations

import time
from collections.abc import Callable

from tracelloc.errors import TargetError
from tracelloc.record.kernel.attach import Attachment, close_soon
from tracelloc.record.kernel.breakpoints import are_in_place
from tracelloc.record.kernel.trials import Trial, passes
from tracelloc.record.process.procfs import Process
from tracelloc.text import NS_PER_S


class Attachments:
    """All attachments to one process; each is attached through one of the process's threads."""

    def __init__(self, process: Process) -> None:
        """Starts with no attachments."""
        self._process = process
        self._attachments: list[Attachment] = []
        self._seen_ns = time.monotonic_ns()

    def add(self, attachment: Attachment) -> None:
        """Takes over probes that are in place."""
        self._attachments.append(attachment)

    def look_after(self, say: Callable[[str], None]) -> None:
        """Reattaches probes through another thread if theirs has ended.

        Call it often: on some kernels, events are missed until then. ``say`` gets a message about
        that, and one when the main thread has ended. Raises TracellocError.
        """
        threads = {attachment.thread_id for attachment in self._attachments}
        ended = {thread_id for thread_id in threads if not self._process.is_running(thread_id)}
        if not ended:
            self._seen_ns = time.monotonic_ns()
            return
        thread_id = self._process.thread_id
        if not self._process.is_running(thread_id):
            return
        moved = [attachment for attachment in self._attachments if attachment.thread_id in ended]
        before: list[int] = []
        try:
            # Probes attached by links see every event as long as the breakpoints stay.
            saw_all = all(
                each.method.has_links and are_in_place(self._process, each.points) for each in moved
            )
            for attachment in moved:
                before += attachment.move(thread_id)
        except TargetError:  # the new thread has ended as well
            return
        finally:
            close_soon(before)
        self._tell(min(ended), say, saw_all=saw_all)

    def _tell(self, ended: int, say: Callable[[str], None], *, saw_all: bool) -> None:
        for_ms = (time.monotonic_ns() - self._seen_ns) * 1000 // NS_PER_S
        is_main = ended == self._process.pid
        goes_on = f"process {self._process.pid} goes on without "
        goes_on += "its main thread" if is_main else f"thread {ended}"
        if self._attachments[0].method.has_links and not passes(Trial.MAIN_THREAD):
            say(f"warning: {goes_on}, after which this kernel reports nothing: attach again")
        elif not saw_all:
            say(
                f"{goes_on}: what it allocated and freed until this was noticed, for at most "
                f"{for_ms} ms, is missing"
            )
        elif is_main:
            say(goes_on)

    def close(self) -> None:
        """Takes the probes away. May be called twice."""
        attachments, self._attachments = self._attachments, []
        for attachment in attachments:
            attachment.close()
