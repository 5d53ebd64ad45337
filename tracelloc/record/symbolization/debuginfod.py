"""Debug files from debuginfod servers (debuginfod(8)), for files that have none here.

DEBUGINFOD_URLS names the servers; without it, nothing is asked for. A process without rights
downloads, and what it brings is treated as any other debug file: a worker reads it, and it counts
if its build ID is the right one. Files are kept in tracelloc's cache.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import IO, Final

from tracelloc.system.invoker import effective_user
from tracelloc.system.safefiles.writing import CacheDirectory
from tracelloc.text import printable

_VARIABLE: Final = "DEBUGINFOD_URLS"
_URL: Final = re.compile(r"https?://[^\s]+")
_BUILD_ID: Final = re.compile(r"[0-9a-f]{16,128}")
_MOST_FILES: Final = 64  # Files in the cache; the least recently used are removed
_MOST_BYTES: Final = 4 << 30
_SILENCE_S: Final = 10  # How long a server may say nothing, in seconds
_LONGEST_S: Final = 300
_PIECE_BYTES: Final = 1 << 20
_NOBODY: Final = 65534
_MISSING_STATUS: Final = 4
_PASSED_ON: Final = ("http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
_SCRIPT: Final = f"""
import encodings.idna, os, sys, urllib.error, urllib.request
if os.geteuid() == 0:
    # Only now: others may be unable to look into the directory that Python is in.
    os.setgroups([])
    os.setgid({_NOBODY})
    os.setuid({_NOBODY})
url, most_bytes = sys.argv[1], int(sys.argv[2])
request = urllib.request.Request(url, headers={{"User-Agent": "tracelloc"}})
try:
    with urllib.request.urlopen(request, timeout={_SILENCE_S}) as answer:
        while piece := answer.read({_PIECE_BYTES}):
            most_bytes -= len(piece)
            if most_bytes < 0:
                raise OSError("it is too large")
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
except urllib.error.HTTPError as error:
    if error.code == 404:
        sys.exit({_MISSING_STATUS})
    sys.exit(f"HTTP status {{error.code}}")
except Exception as error:
    sys.exit(str(getattr(error, "reason", error)))
"""


def server_urls(environment: Mapping[str, str]) -> list[str]:
    """Returns the debuginfod servers that an environment names."""
    return [url.rstrip("/") for url in _URL.findall(environment.get(_VARIABLE, ""))]


class DebugServers:
    """Downloads debug files from debuginfod servers. Thread safe: one file at a time."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._off: set[str] = set()  # Servers that did not answer, which are not asked again
        self._missing: set[str] = set()  # Build IDs that no server has
        self.tell: Callable[[str], None] | None = None  # Gets messages for users

    def open_debug_file(self, build_id: str, path: str) -> tuple[int, str] | None:
        """Returns (open descriptor, URL) of the debug file of file ``path``; None without one."""
        urls = server_urls(self._environment)
        if not urls or not _BUILD_ID.fullmatch(build_id):
            return None
        with self._lock:
            if build_id in self._missing:
                return None
            cache = CacheDirectory(effective_user(), "debuginfo", ".debug", _MOST_FILES)
            for url in urls:
                address = f"{url}/buildid/{build_id}/debuginfo"
                with suppress(OSError):
                    return cache.open(build_id), address
                if url not in self._off and self._download(url, address, path, cache, build_id):
                    with suppress(OSError):
                        return cache.open(build_id), address
            self._missing.add(build_id)
            return None

    def _download(
        self, url: str, address: str, path: str, cache: CacheDirectory, build_id: str
    ) -> bool:
        self._say(f"downloading debug information of {printable(path)} from {printable(url)}")
        with tempfile.TemporaryFile() as file:
            status, why = _fetch(address, file, self._environment)
            if status == 0:
                file.seek(0)
                cache.remember(build_id, iter(partial(file.read, _PIECE_BYTES), b""))
                return True
        if status != _MISSING_STATUS:
            self._off.add(url)
            self._say(f"warning: {printable(url)} is not asked for debug information: {why}")
        return False

    def _say(self, message: str) -> None:
        if self.tell is not None:
            self.tell(message)


def _fetch(address: str, file: IO[bytes], environment: Mapping[str, str]) -> tuple[int | None, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _SCRIPT, address, str(_MOST_BYTES)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, cwd="/",
            text=True, errors="replace", timeout=_LONGEST_S, check=False,
            env={name: environment[name] for name in _PASSED_ON if name in environment},
            start_new_session=True,  # Ctrl-C is for tracelloc
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no file within {_LONGEST_S} s"
    except OSError as error:
        return None, str(error)
    return done.returncode, printable(done.stderr.strip()[-200:])


DEBUG_SERVERS: Final = DebugServers()  # The servers that this process's environment names
