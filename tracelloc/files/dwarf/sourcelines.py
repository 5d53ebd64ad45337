"""Source lines and inlined functions of one file, from all available sources.

An llvm-symbolizer is asked through a pipe only where functions are described in other files
(.dwo, .dwp), which it follows. It decodes untrusted files, and so runs as user nobody
(``tracelloc.system.confined``): files that others may not read have no inlined functions. It gets
no descriptor but the file's, no variable that makes it ask the network, bounded memory, and only
so much time.
"""

from __future__ import annotations

import json
import os
import os.path
import re
import select
import shutil
import stat
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from tracelloc.files.dwarf.decoder import open_decoder
from tracelloc.files.dwarf.lineprogram import Chain, SourceFrame
from tracelloc.system.confined import start_confined

_VERSIONS: Final = range(40, 12, -1)
"""From 13 on it answers in JSON."""
_PATIENCE_S: Final = 20.0
"""How long it may be silent."""
_BATCH: Final = 128
_LARGEST_ANSWER_BYTES: Final = 1 << 24
_MOST_MEMORY_BYTES: Final = 8 << 30
"""Addresses, most of them of files that it maps."""
_PLAIN_PATH: Final = re.compile(r"/[\w./+,:@=~ -]+", re.ASCII)


def may_be_read_by_others(path: str) -> bool:
    """Whether user nobody can open a file, going by the permissions of it and its directories."""
    try:
        names = [Path(path).resolve(), *Path(path).resolve().parents]
        file, *directories = (os.stat(name).st_mode for name in names)
    except OSError:
        return False
    return bool(file & stat.S_IROTH) and all(mode & stat.S_IXOTH for mode in directories)


def find_symbolizer() -> str | None:
    """Path of an llvm-symbolizer on PATH, the newest one if they bear versions."""
    names = ("llvm-symbolizer", *(f"llvm-symbolizer-{version}" for version in _VERSIONS))
    return next((path for name in names if (path := shutil.which(name))), None)


class OpenFile(Protocol):
    """A file that is open here."""

    def descriptor(self) -> int:
        """Number of the open file."""


def reachable_path(file: OpenFile) -> str:
    """A path by which a process that inherits the descriptor can open this same file.

    The file's name if it still leads to it, since a .dwp lies beside it; else the descriptor's.
    """
    ours = f"/proc/self/fd/{file.descriptor()}"
    try:
        name = str(Path(ours).readlink())
        is_same = os.path.samestat(os.stat(name), os.fstat(file.descriptor()))
    except OSError:
        return ours
    return name if is_same and _PLAIN_PATH.fullmatch(name) else ours


class SymbolizerPipe:
    """One llvm-symbolizer for one file. Not thread safe.

    Started when first asked. When it fails once, it is not tried again.
    """

    def __init__(
        self, file: OpenFile, command: str | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        """``file`` is the one with the debug information. ``command``: else from PATH."""
        self._file = file
        self._path = reachable_path(file)
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
        process = start_confined(
            [self._command, "--output-style=JSON", "--inlines", "--no-demangle"],
            _MOST_MEMORY_BYTES,
            environment={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
            descriptors=[self._file.descriptor()],
        )
        self._end = weakref.finalize(self, _end, process)
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


class LineDecoder(Protocol):
    """Chains from one file's own debug information: a ``DwarfDecoder``, here or elsewhere."""

    split_paths: list[str | None]
    """For each address last asked for: the .dwo that knows its functions, if one does."""

    @property
    def reason(self) -> str | None:
        """Why less than everything is known."""

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """One chain per address."""


class SourceLines:
    """Source frames by address. Thread safe; what takes time is done when first asked.

    Cheap for files without debug information: their sections are looked up once.
    """

    def __init__(
        self,
        elf: OpenFile,
        debug: OpenFile | None = None,
        open_decoder: Callable[[Any], LineDecoder | str] = open_decoder,
    ) -> None:
        """``debug``: a separate file whose debug information describes ``elf``.

        Both stay their owner's, and open as long as this is used. ``open_decoder``: what decodes
        one of them, or why nothing does.
        """
        self._lock = threading.Lock()
        self._file = elf
        self._decoder: LineDecoder | None = None
        self._why_none: str | None = None
        self._split: SymbolizerPipe | None = None
        self._split_missing: str | None = None
        self._is_there: dict[str, bool] = {}
        for file in (elf, debug):
            if file is None or self._decoder is not None:
                continue
            decoder = open_decoder(file)
            if isinstance(decoder, str):
                self._why_none = self._why_none if self._why_none and file is debug else decoder
            else:
                self._file, self._decoder = file, decoder

    @property
    def reason(self) -> str | None:
        """Why there are no lines or no inlined functions; None if all is well so far."""
        if self._decoder is None:
            return self._why_none
        split = self._split.reason if self._split is not None else None
        return self._decoder.reason or split or self._split_missing

    def close(self) -> None:
        """Ends the helper process of this file. The next question starts it again."""
        with self._lock:
            if self._split is not None:
                self._split.close()

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Per address the frames it belongs to, the innermost first; () if unknown.

        Addresses are the file's own virtual ones, of the byte before a return address. The
        last frame is the real function. Never raises because of what the file holds.
        """
        if self._decoder is None:
            return [()] * len(addresses)
        with self._lock:
            found = self._decoder.chains(addresses)
            split = [n for n, path in enumerate(self._decoder.split_paths) if self._find(path)]
            if split:
                if self._split is None:
                    self._split = SymbolizerPipe(self._file)
                answers = self._split.chains([addresses[n] for n in split])
                for n, answer in zip(split, answers, strict=True):
                    if answer and (answer[0].file is not None or not found[n]):
                        found[n] = answer
            return found

    def _find(self, path: str | None) -> bool:
        """Whether the file that describes a unit's functions is there, or the .dwp for all."""
        if path is None:
            return False
        if path not in self._is_there:
            package = f"{reachable_path(self._file)}.dwp"
            found = next((p for p in (path, package) if os.path.exists(p)), None)  # noqa: PTH110
            self._is_there[path] = found is not None and may_be_read_by_others(found)
            if found is not None and not self._is_there[path]:
                name = found[:200]
                self._split_missing = (
                    f"inlined functions are described in {name}, which other users may not read"
                )
        if not self._is_there[path] and self._split_missing is None:
            name = path[:200]
            self._split_missing = f"inlined functions are described in {name}, which is missing"
        return self._is_there[path]
