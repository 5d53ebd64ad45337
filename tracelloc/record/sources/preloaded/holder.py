"""The thread whose robust futex tells a process that a profiler wants its events."""

import ctypes
import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.architecture import native

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _RobustHead(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("next", "futex_offset", "pending"))


class AreaHolder:
    """A thread whose id in shared memory signals that events are wanted, until tracelloc dies.

    The kernel then clears the id: it is a robust futex (Documentation/locking/robust-futexes).
    tracelloc registers its own list, as the C library would store its list in the shared memory.
    """

    def __init__(self, word: npt.NDArray[np.uint32]) -> None:
        """``word``: an array of one element in the shared memory, for the thread's id."""
        self._word = word
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, name="area", daemon=True)
        self._thread.start()
        self._begun.wait()

    def _hold(self) -> None:
        head, entry = _RobustHead(), _RobustHead()  # of the entry, only `next` counts
        head.next, entry.next = ctypes.addressof(entry), ctypes.addressof(head)
        head.futex_offset = self._word.ctypes.data - ctypes.addressof(entry)
        size = ctypes.c_size_t(ctypes.sizeof(head))
        _LIBC.syscall(native().system_call("set_robust_list"), ctypes.byref(head), size)
        self._word[0] = threading.get_native_id()
        self._begun.set()
        self._end.wait()
        self._word[0] = 0
        head.next = ctypes.addressof(head)

    @property
    def is_there(self) -> bool:
        """Whether the word still holds the thread's id."""
        return bool(self._word[0])

    def release(self) -> None:
        """Signals that events are no longer wanted. May be called twice."""
        self._end.set()
        self._thread.join()
