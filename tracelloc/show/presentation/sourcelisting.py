"""Live bytes per line of a function's source file, as in pprof's ``list``."""

from collections.abc import Mapping, Sequence

from tracelloc.dataclass import dataclass, field
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.calltree import Step, shown_frames
from tracelloc.show.presentation.naming import Namer, frame_name
from tracelloc.snapshots.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ListedFunction:
    """A function whose source is requested."""

    step: Step
    file: str | None = None  # The source file; None: the file of its heaviest frame


def listed_function(frame: Frame) -> ListedFunction:
    """Returns the function of a frame, to list its source."""
    return ListedFunction(Step(frame_name(frame), frame.module), frame.file)


@dataclass(slots=True)
class LineFigures:
    """Live blocks of the stacks that pass through one line; each stack counts once."""

    own_bytes: int = 0  # Bytes of the stacks whose innermost shown line this is
    bytes: int = 0  # Bytes of all stacks through the line
    count: int = 0  # Blocks of all stacks through the line
    stack: int = -1  # The heaviest of the stacks
    stack_bytes: int = -1  # Bytes of `stack`

    def add(self, stack: int, size_bytes: int, count: int, *, is_own: bool) -> None:
        self.own_bytes += size_bytes if is_own else 0
        self.bytes += size_bytes
        self.count += count
        if size_bytes > self.stack_bytes:
            self.stack, self.stack_bytes = stack, size_bytes


@dataclass(frozen=True, slots=True)
class SourceListing:
    """Figures of one function, and of each line of its file that allocates or calls allocators."""

    function: ListedFunction
    file: str | None  # The source file; None if no frame of the function has one
    figures: LineFigures  # Figures of the whole function
    lines: Mapping[int, LineFigures]  # By line number
    own_lines: frozenset[int]  # Lines of the function

    @property
    def heaviest_line(self) -> int:
        """The function's line with most bytes; 0 if no line has bytes."""
        own = [line for line in self.own_lines if line in self.lines]
        return max(own, key=lambda line: (self.lines[line].bytes, -line), default=0)


@dataclass(slots=True)
class _Passage:
    named: NamedStack
    lines: frozenset[int]
    own: int  # The innermost shown line if it is in the file; else 0
    function_lines: frozenset[int]
    is_through: bool  # Whether the stack passes through the function, which may lack lines
    is_innermost: bool


@dataclass(slots=True)
class SourceLister:
    """Makes listings of one function, from one snapshot to the next."""

    function: ListedFunction
    _file: str | None = None
    _passages: dict[int, _Passage] = field(default_factory=dict)

    def listing(
        self, snapshot: Snapshot, namer: Namer, stacks: Sequence[int], sizes: I64, counts: I64
    ) -> SourceListing:
        """Makes the listing; ``stacks``: heaviest first, ``sizes`` and ``counts``: by stack."""
        if self._file is None:
            self._file = self.function.file or self._find_file(snapshot, namer, stacks)
            self._passages.clear()
        lines: dict[int, LineFigures] = {}
        whole, own_lines = LineFigures(), set[int]()
        for stack in stacks:
            named, passage = namer.stack(snapshot, stack), self._passages.get(stack)
            if passage is None or passage.named is not named:
                passage = self._passages[stack] = self._pass(named)
            if not passage.lines and not passage.is_through:
                continue
            size_bytes, count = int(sizes[stack]), int(counts[stack])
            for line in passage.lines:
                figures = lines.setdefault(line, LineFigures())
                figures.add(stack, size_bytes, count, is_own=line == passage.own)
            own_lines |= passage.function_lines
            if passage.is_through:
                whole.add(stack, size_bytes, count, is_own=passage.is_innermost)
        return SourceListing(self.function, self._file, whole, lines, frozenset(own_lines))

    def _find_file(self, snapshot: Snapshot, namer: Namer, stacks: Sequence[int]) -> str | None:
        for stack in stacks:
            for name, frame in shown_frames(namer.stack(snapshot, stack)):
                if frame.file is not None and Step(name, frame.module) == self.function.step:
                    return frame.file
        return None

    def _pass(self, named: NamedStack) -> _Passage:
        lines = [
            frame.line
            for frame in named.frames
            if frame.file is not None and frame.file == self._file and frame.line
        ]
        shown = list(shown_frames(named))
        through = [frame for name, frame in shown if Step(name, frame.module) == self.function.step]
        first = shown[0][1] if shown else None
        is_here = first is not None and self._file is not None and first.file == self._file
        return _Passage(
            named,
            frozenset(lines),
            (first.line or 0) if is_here and first is not None else 0,
            frozenset(frame.line or 0 for frame in through if frame.file == self._file) - {0},
            bool(through),
            bool(through) and through[0] is first,
        )
