"""Names of recorded addresses, written as they become known and read without other files.

The place of an address is recorded, too: the file, its build ID, and the offset in the file.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from tracelloc.dataclass import dataclass, fields, replace
from tracelloc.errors import MalformedError
from tracelloc.model.codefiles import CodeModule, CodePlace, FileId, Mapping, Unresolved
from tracelloc.model.frames import Frame, unnamed
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.recording.momentcodec import ProcessKey, packed
from tracelloc.show.recording.parts import from_plain, to_plain, types_of
from tracelloc.system.bounded import UnpackBudget, inflated, json_bytes

_FIELDS: Final = tuple(field.name for field in fields(Frame) if field.name != "address")
_FRAME_TYPES: Final = types_of(Frame)
_LARGEST_BATCH: Final = 1 << 27
# One part in so many of a batch's memory is kept: no place for field names and lists.
_KEPT: Final = 2
_PlainFrames = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class RecordedModule:
    """A mapped file of code in a recording, which can't be opened."""

    file_id: FileId
    path: str
    build_id: str | None


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A mapping of code in a recording: of a file, or of memory without one."""

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str
    deleted: bool
    has_module: bool
    build_id: str | None
    reason: Unresolved | None

    def place(self, address: int) -> CodePlace[CodeModule]:
        mapping = Mapping(
            self.start, self.end, self.offset, True, self.device, self.inode, self.path,
            self.deleted,
        )  # fmt: skip
        offset = address - self.start + (self.offset if mapping.is_file else 0)
        return CodePlace(mapping, self.module(), self.reason, offset)

    def module(self) -> RecordedModule | None:
        """Returns the mapped file; None if it was not recorded."""
        if not self.has_module:
            return None
        return RecordedModule((self.device, self.inode), self.path, self.build_id)


class NamesWriter:
    """Collects the names of one program of a process, to be written in batches."""

    def __init__(self) -> None:
        self._pending: dict[int, None] = {}
        self._seen: set[int] = set()
        self._written: dict[int, _PlainFrames] = {}
        self._files: set[tuple[int, str]] = set()

    def add_addresses(self, addresses: Iterable[int]) -> None:
        new = [address for address in addresses if address not in self._seen]
        self._seen.update(new)
        self._pending.update(dict.fromkeys(new))

    def batch(self, namer: Namer, patience_s: float) -> bytes | None:
        """Returns names that have become known, encoded; None: none. Waits ``patience_s``."""
        if not self._pending:
            return None
        is_final = namer.symbols.prepare(self._pending, patience_s)
        known: dict[int, list[Frame]] = {}
        for frame in namer.symbols.peek(self._pending):
            known.setdefault(frame.address, []).append(frame)
        names, files = [], []
        for address, frames in known.items():
            if frames[0].reason is Unresolved.PENDING and not is_final:
                continue
            plain = tuple(tuple(to_plain(getattr(f, name)) for name in _FIELDS) for f in frames)
            if self._written.get(address) != plain:
                self._written[address] = plain
                names.append([address, plain])
            files += self._new_file(namer, address)
        if is_final:
            self._pending.clear()
            # They will not be compared again.
            self._written.clear()
        if not names and not files:
            return None
        return packed(json.dumps([names, files], separators=(",", ":")).encode())

    def _new_file(self, namer: Namer, address: int) -> list[Any]:
        place = namer.symbols.place(address - 1)
        if not isinstance(place, CodePlace):
            return []
        mapping, module = place.mapping, place.module
        if (mapping.start, mapping.path) in self._files:
            return []
        self._files.add((mapping.start, mapping.path))
        file = CodeFile(
            mapping.start, mapping.end, mapping.offset, mapping.device, mapping.inode,
            mapping.path, mapping.deleted, module is not None,
            None if module is None else module.build_id, place.reason,
        )  # fmt: skip
        return [to_plain(file)]


class RecordedSymbols:
    """The recorded names of one process: a ``show.presentation.naming.Symbols``."""

    def __init__(self) -> None:
        self.version = 0
        self.waiting = 0
        self._programs = 0  # The program of the process that addresses belong to
        self._names: dict[tuple[int, int], tuple[Frame, ...]] = {}
        self._files: dict[int, dict[tuple[int, str], tuple[CodeFile, RecordedModule | None]]] = {}

    def begin(self, programs: int) -> None:
        """Selects the program that addresses belong to."""
        if programs != self._programs:
            self._programs = programs
            self.version += 1

    def add(self, key: ProcessKey, data: bytes, budget: UnpackBudget) -> None:
        """Adds a batch, within the memory budget. Raises MalformedError."""
        text = inflated(data, min(_LARGEST_BATCH, budget.left_bytes))
        size_bytes = json_bytes(text)
        budget.check(size_bytes)
        budget.spend(size_bytes // _KEPT)
        try:
            names, files = json.loads(text)
            for address, plain in names:
                at = from_plain(int, address)
                self._names[key[1], at] = tuple(_frame(at, each) for each in plain)
            known = self._files.setdefault(key[1], {})
            for each in files:
                file: CodeFile = from_plain(CodeFile, each)
                known[file.start, file.path] = file, file.module()
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedError(f"names are damaged ({type(error).__name__})") from error
        self.version += 1

    def prepare(self, addresses: Iterable[int], timeout_s: float | None = None) -> bool:  # noqa: ARG002 - nothing takes time
        """Returns True, as no more names will become known."""
        return True

    def peek(self, addresses: Iterable[int]) -> list[Frame]:
        found: list[Frame] = []
        for address in addresses:
            frames = self._names.get((self._programs, address))
            found += frames or (unnamed(address, None, None, Unresolved.UNMAPPED),)
        return found

    def place(self, address: int) -> CodePlace[CodeModule] | Unresolved:
        for file, module in reversed(self._files.get(self._programs, {}).values()):
            if file.start <= address < file.end:
                # One module per file, because comparing places compares modules.
                return replace(file.place(address), module=module)
        return Unresolved.UNMAPPED


def _frame(address: int, plain: list[Any]) -> Frame:
    values = zip(_FIELDS, plain, strict=True)
    return Frame(address, **{name: from_plain(_FRAME_TYPES[name], each) for name, each in values})
