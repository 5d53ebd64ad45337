"""Signals, which only leave a byte to be read: nothing is ever interrupted."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """What the signals that came so far ask for."""

    def __init__(
        self, take: Callable[[int], bool], refuse_stop: Callable[[str], None] | None
    ) -> None:
        """Catches them from here on.

        ``take`` gets those that would end us, and says whether they end tracing. ``refuse_stop``
        says why a ^Z does
        not stop us; None: it does.
        """
        self.is_ending = False
        self.wants_files = False
        self.wants_mark = False
        self._take = take
        self._refuse_stop = refuse_stop
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in _ENDING:
            # nohup and the like: what the parent told us to ignore stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note_end)
        if refuse_stop is not None:
            signal.signal(signal.SIGTSTP, self._note_stop)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._note_wish)

    def fileno(self) -> int:
        """Readable when a signal has come since ``clear``."""
        return self._receiver.fileno()

    def clear(self) -> None:
        """They have been noticed."""
        self._receiver.recv(4096)

    def _note_end(self, number: int, _frame: object) -> None:
        self.is_ending |= self._take(number)

    def _note_stop(self, _number: int, _frame: object) -> None:
        if self._refuse_stop is not None:
            self._refuse_stop("can't be suspended while processes are followed")

    def _note_wish(self, number: int, _frame: object) -> None:
        self.wants_files |= number == signal.SIGUSR1
        self.wants_mark |= number == signal.SIGUSR2
