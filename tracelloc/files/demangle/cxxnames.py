"""C++ names, read by ``__cxa_demangle`` of libstdc++ in a process of its own.

Format: the Itanium C++ ABI, "Mangling". tracelloc must not call the demangler in its own process,
since names are hostile: ``_Z4llvm4orINS_IXsreTrtD`` keeps GCC 12's in an endless loop, and
substitutions (``S1_``) let 200 letters expand to gigabytes of text. The helper process has no
rights, little memory and little time. A name that takes more ends the helper and stays unchanged.
"""

import atexit
import select
import subprocess
import sys
import threading
from typing import Final

from tracelloc.system.confined import CONFINE, start_reader
from tracelloc.text import LONGEST_TEXT

# Bytes. libstdc++ itself refuses longer names since GCC 9 (its stack, GCC PR 87675).
LONGEST_MANGLED: Final = 1024

# Longest wait for an answer. The helper ends itself long before, unless it cannot run.
_PATIENCE_S: Final = 10.0

# After this many names that ended the helper, no more are tried: they are an attack.
MOST_STRIKES: Final = 8

_HELPER: Final = f"""{CONFINE}
import signal, sys
library = ctypes.CDLL("libstdc++.so.6")
demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
confine(256 << 20)
demangle.restype, demangle.argtypes = ctypes.c_void_p, [ctypes.c_char_p] + [ctypes.c_void_p] * 3
free.argtypes = [ctypes.c_void_p]
for line in sys.stdin.buffer:
    signal.setitimer(signal.ITIMER_PROF, 0.25)
    result = demangle(line.rstrip(b"\\n"), None, None, None)
    text = ctypes.string_at(result) if result else b""
    free(result)
    signal.setitimer(signal.ITIMER_PROF, 0)
    sys.stdout.buffer.write((text if len(text) <= {LONGEST_TEXT} else b"") + b"\\n")
    sys.stdout.buffer.flush()
"""


def read(name: str) -> str | None:
    """Returns the readable form of a C++ name, without control characters; None if not readable."""
    try:
        raw = name.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return None
    if len(raw) > LONGEST_MANGLED:
        return None
    text = _helper.ask(raw)
    return text.decode(errors="surrogateescape") if text else None


class _Helper:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._strikes = 0

    def ask(self, raw: bytes) -> bytes | None:
        """Returns a name's readable form; empty if it is unreadable, None if it took too much."""
        with self._lock:
            if self._strikes >= MOST_STRIKES or not sys.executable:
                return None
            try:
                return self._exchange(raw)
            except (OSError, EOFError):
                self._strikes += 1
                self._end()
                return None
            except BaseException:  # an interrupt: the answer may not be taken for the next one's
                self._end()
                raise

    def close(self) -> None:
        with self._lock:
            self._end()

    def _exchange(self, raw: bytes) -> bytes:
        if self._process is None:
            self._process = start_reader([_HELPER])
        request, answer = self._process.stdin, self._process.stdout
        assert request is not None
        assert answer is not None
        ready = select.poll()
        ready.register(answer, select.POLLIN)
        request.write(raw + b"\n")
        text = b""
        while not text.endswith(b"\n"):
            part = answer.read(LONGEST_TEXT) if ready.poll(_PATIENCE_S * 1000) else b""
            if not part:
                raise EOFError
            text += part
        return text[:-1]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


_helper: Final = _Helper()
atexit.register(_helper.close)
