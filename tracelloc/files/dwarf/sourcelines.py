"""Source lines and inlined functions of one file, from all available sources.

An llvm-symbolizer is used, through a pipe, only if functions are described in other files (.dwo,
.dwp), which it finds and reads. It decodes untrusted files, so it runs as user nobody
(``tracelloc.system.confined``) and can't read files that are not world-readable: inlined
functions are missing then. It inherits only the file's descriptor and no environment variable
that makes it use the network. Its memory and its time are limited.
"""

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

from tracelloc.files.dwarf.forms import DAMAGE
from tracelloc.files.dwarf.info import DebugInfo, DebugUnit
from tracelloc.files.dwarf.inlines import InlineReader
from tracelloc.files.dwarf.lineprogram import Chain, LineIndex, SourceFrame
from tracelloc.files.dwarf.variables import SourcePlace, VariableReader
from tracelloc.files.elf import ElfFile
from tracelloc.files.elf.sections import SectionError
from tracelloc.system.confined import start_confined

_STEPS_PER_ADDRESS: Final = 1 << 12  # What the caches have dropped is decoded again


class DwarfDecoder:
    """Decodes chains of source frames from a file's own debug information. Not thread-safe."""

    def __init__(self, info: DebugInfo) -> None:
        self._info = info
        self._lines = LineIndex(info)
        self._inlines = InlineReader(info)
        self._variables = VariableReader(info, self._lines.file_name)
        self.split_paths: list[str | None] = []  # As in `LineDecoder`

    @property
    def reason(self) -> str | None:
        return self._info.damaged or self._info.elsewhere

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain of source frames per address, empty if unknown. Never raises."""
        found: list[Chain] = [()] * len(addresses)
        self._info.budget.grant(_STEPS_PER_ADDRESS * len(addresses))
        self.split_paths = [None] * len(addresses)
        # Sorted by unit, so that caches have to drop less.
        units = [
            (unit.offset, address, n, unit)
            for n, (address, unit) in enumerate(
                zip(addresses, self._lines.units(addresses), strict=True)
            )
            if unit is not None
        ]
        for _, address, n, unit in sorted(units, key=lambda item: item[:2]):
            self.split_paths[n] = _split_path(unit)
            found[n] = self._chain(unit, address)
        return found

    def variables(self, addresses: Sequence[int]) -> list[SourcePlace]:
        return self._variables.places(addresses)

    def _chain(self, unit: DebugUnit, address: int) -> Chain:
        file, line = self._lines.line_in(unit, address)
        frames: list[SourceFrame] = []
        for call in self._inlines.chain(unit, address):
            frames.append(SourceFrame(call.name, file, line, inlined=True))
            file = line = None
            if call.call_file is not None:
                file, line = self._lines.file_name(unit, call.call_file), call.call_line
        if frames:
            last = frames[-1]
            frames[-1] = SourceFrame(last.function, last.file, last.line, inlined=False)
        elif file is not None:
            frames.append(SourceFrame(None, file, line, inlined=False))
        return tuple(frames)


def _split_path(unit: DebugUnit) -> str | None:
    """Returns the .dwo file with a unit's functions; None if the file has them. Never raises."""
    try:
        root = unit.root
    except DAMAGE:
        return None
    if root.split_name is None or root.has_children:
        return None
    return os.path.join(root.comp_dir, root.split_name)  # noqa: PTH118 - a name, as it is


def open_decoder(elf: ElfFile) -> DwarfDecoder | str:
    """Returns a decoder for a file's debug information, or why there is none, for users."""
    try:
        info = DebugInfo(elf)
    except SectionError as error:
        return str(error)
    if info.line is None or info.info is None:
        return "the file has no debug information"
    return DwarfDecoder(info)


_VERSIONS: Final = range(40, 12, -1)  # That are looked for; 13 is the first with JSON output
_PATIENCE_S: Final = 20.0  # Longest silence before llvm-symbolizer counts as failed
_BATCH: Final = 128
_LARGEST_ANSWER_BYTES: Final = 1 << 24
_MOST_MEMORY_BYTES: Final = 8 << 30  # Limit of its address space, most of which are mapped files
_PLAIN_PATH: Final = re.compile(r"/[\w./+,:@=~ -]+", re.ASCII)


def may_be_read_by_others(path: str) -> bool:
    """Whether user nobody can open a file, by the permissions of the file and its directories."""
    try:
        names = [Path(path).resolve(), *Path(path).resolve().parents]
        file, *directories = (os.stat(name).st_mode for name in names)
    except OSError:
        return False
    return bool(file & stat.S_IROTH) and all(mode & stat.S_IXOTH for mode in directories)


def find_symbolizer() -> str | None:
    """Returns the path of the newest llvm-symbolizer on PATH; None if there is none."""
    names = ("llvm-symbolizer", *(f"llvm-symbolizer-{version}" for version in _VERSIONS))
    return next((path for name in names if (path := shutil.which(name))), None)


class OpenFile(Protocol):
    """A file that this process has open."""

    def descriptor(self) -> int:
        """The file's open descriptor."""


def reachable_path(file: OpenFile) -> str:
    """Returns a path by which a process that inherits the descriptor can open this file.

    Returns the file's own path if it still leads to the file, so that a .dwp beside it is found;
    otherwise the descriptor's path in /proc.
    """
    ours = f"/proc/self/fd/{file.descriptor()}"
    try:
        name = str(Path(ours).readlink())
        is_same = os.path.samestat(os.stat(name), os.fstat(file.descriptor()))
    except OSError:
        return ours
    return name if is_same and _PLAIN_PATH.fullmatch(name) else ours


class SymbolizerPipe:
    """One llvm-symbolizer for one file, until its first failure. Not thread-safe."""

    def __init__(
        self, file: OpenFile, command: str | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        """``file`` has the debug information; ``command``: symbolizer's path; None: from PATH."""
        self._file = file
        self._path = reachable_path(file)
        self._command = command or find_symbolizer()
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        self._rest = b""
        self.reason: str | None = None  # Why it can't be used; None: it can
        if self._command is None:
            self.reason = "inlined functions are described in other files: install llvm-symbolizer"

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._process = None

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
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
        """Asks llvm-symbolizer, and reads ``count`` lines. Raises OSError after a long silence."""
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
    """Returns the source frames in an answer, without file names from symbol tables."""
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
    """Decodes a file's own debug information: a ``DwarfDecoder``, in this process or a worker."""

    # Per address of the last call of `chains`: the .dwo file with its functions, or None.
    split_paths: list[str | None]

    @property
    def reason(self) -> str | None:
        """Why some debug information is missing, for users; None if it is complete."""

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns one chain of source frames per address."""

    def variables(self, addresses: Sequence[int]) -> list[SourcePlace]:
        """Returns where the variables at these addresses are declared."""


class SourceLines:
    """Looks up source frames by address. Thread-safe; decodes debug information on demand."""

    def __init__(
        self,
        elf: OpenFile,
        debug: OpenFile | None = None,
        open_decoder: Callable[[Any], LineDecoder | str] = open_decoder,
    ) -> None:
        """``debug``: a separate file with the debug information of ``elf``.

        The caller keeps both files open as long as it uses this object. ``open_decoder``: returns a
        decoder for a file, or the reason that there is none.
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
        """Why lines or inlined functions are missing; None if no problem has occurred."""
        if self._decoder is None:
            return self._why_none
        split = self._split.reason if self._split is not None else None
        return self._decoder.reason or split or self._split_missing

    def close(self) -> None:
        """Ends the file's llvm-symbolizer. The next lookup starts it again."""
        with self._lock:
            if self._split is not None:
                self._split.close()

    def chains(self, addresses: Sequence[int]) -> list[Chain]:
        """Returns per address the source frames that contain it, innermost first; () if unknown.

        Addresses are the file's own virtual addresses, of the byte before a return address. The
        last frame is the function that is not inlined. Damaged files raise no exceptions.
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

    def variables(self, addresses: Sequence[int]) -> list[SourcePlace]:
        """Returns where the variables at addresses are declared; none described in .dwo files."""
        if self._decoder is None:
            return [(None, None)] * len(addresses)
        with self._lock:
            return self._decoder.variables(addresses)

    def _find(self, path: str | None) -> bool:
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
