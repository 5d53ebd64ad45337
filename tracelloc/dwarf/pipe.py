"""An llvm-symbolizer that is asked through a pipe.

Needed only where functions are described in other files (.dwo, .dwp), which it follows.
It decodes what a stranger wrote, as our user: it gets no descriptor of ours, no variable
that makes it ask the network, bounded memory, and only so much time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import shutil
import subprocess
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tracelloc.dwarf.lines import Chain, SourceFrame
from tracelloc.elf import ElfFile

_VERSIONS: Final = range(40, 12, -1)
"""From 13 on it answers in JSON."""
_PATIENCE_S: Final = 20.0
"""How long it may be silent."""
_BATCH: Final = 128
_LARGEST_ANSWER_BYTES: Final = 1 << 24
_MOST_MEMORY_BYTES: Final = 16 << 30
_PLAIN_PATH: Final = re.compile(r"/[\w./+,:@=~ -]+", re.ASCII)


def find_symbolizer() -> str | None:
    """Path of an llvm-symbolizer on PATH, the newest one if they bear versions."""
    names = ("llvm-symbolizer", *(f"llvm-symbolizer-{version}" for version in _VERSIONS))
    return next((path for name in names if (path := shutil.which(name))), None)


def reachable_path(elf: ElfFile) -> str:
    """A path by which another process can open this very file.

    Its name if that still leads to it, since a .dwp is found beside it; else our descriptor.
    """
    ours = f"/proc/{os.getpid()}/fd/{elf.descriptor()}"
    try:
        name = str(Path(ours).readlink())
        is_same = os.path.samestat(os.stat(name), os.fstat(elf.descriptor()))
    except OSError:
        return ours
    return name if is_same and _PLAIN_PATH.fullmatch(name) else ours


class SymbolizerPipe:
    """One llvm-symbolizer for one file. Not thread safe.

    Started when first asked. When it fails once, it is not tried again.
    """

    def __init__(
        self, elf: ElfFile, command: str | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        """``elf`` is the file with the debug information. ``command``: else from PATH."""
        self._path = reachable_path(elf)
        self._command = command or find_symbolizer()
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        self._rest = b""
        self.reason: str | None = None
        """Why it can't be used."""
        if self._command is None:
            self.reason = "inlined functions are described in other files: install llvm-symbolizer"

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._end is not None:
            self._end()
        self._process = None

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """One chain per address; empty ones after a failure. Never raises."""
        found: list[Chain] = []
        for start in range(0, len(addresses), _BATCH):
            if self.reason is None:
                try:
                    found += self._ask(addresses[start : start + _BATCH])
                except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
                    self.reason = f"llvm-symbolizer failed ({error or type(error).__name__})"
                    self.close()
        return found + [()] * (len(addresses) - len(found))

    def _start(self) -> subprocess.Popen[bytes]:
        assert self._command is not None
        process = subprocess.Popen(
            [self._command, "--output-style=JSON", "--inlines", "--no-demangle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            cwd="/",
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._end = weakref.finalize(self, _end, process)
        with contextlib.suppress(OSError, ValueError):
            bounds = (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES)
            resource.prlimit(process.pid, resource.RLIMIT_AS, bounds)
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def _ask(self, addresses: Sequence[int]) -> list[Chain]:
        if self._process is None:
            self._process = self._start()
        question = "".join(f'"{self._path}" {address:#x}\n' for address in addresses).encode()
        return [_chain(json.loads(line)) for line in self._lines(question, len(addresses))]

    def _lines(self, question: bytes, count: int) -> list[bytes]:
        """Writes a question, reads so many lines, and gives up after too long a silence."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        writer, reader = self._process.stdin.fileno(), self._process.stdout.fileno()
        answer = bytearray(self._rest)
        deadline = time.monotonic() + self._patience_s
        lines = answer.count(b"\n")
        while lines < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise OSError(f"no answer in {self._patience_s:g} seconds")
            if len(answer) > _LARGEST_ANSWER_BYTES:
                raise OSError("its answer has no end")
            readable, writable, _ = select.select([reader], [writer] if question else [], [], left)
            if writable:
                try:
                    question = question[os.write(writer, question) :]
                except BrokenPipeError:
                    raise OSError("it ended") from None
            if readable:
                part = os.read(reader, 1 << 16)
                if not part:
                    raise OSError("it ended")
                answer += part
                lines += part.count(b"\n")
                deadline = time.monotonic() + self._patience_s
        *found, self._rest = bytes(answer).split(b"\n", count)
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _chain(answer: dict[str, Any]) -> Chain:
    """One answer. Without a line, a file name may be a mere symbol's: then it has no slash."""
    frames = []
    symbols = answer.get("Symbol", [])
    for number, symbol in enumerate(symbols):
        line = int(symbol["Line"]) or None
        file = str(symbol["FileName"]) or None
        if line is None and file is not None and "/" not in file:
            file = None
        name = str(symbol["FunctionName"]) or None
        frames.append(SourceFrame(name, file, line, inlined=number < len(symbols) - 1))
    return tuple(frames) if any(frame.function or frame.file for frame in frames) else ()
