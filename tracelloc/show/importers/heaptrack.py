"""heaptrack's files (``heaptrack.NAME.PID.zst``), as heaptrack 1.3 and newer write them.

A line is one letter and numbers in hexadecimal. Strings (``s``), frames of code (``i``), call
stacks (``t``: a frame and the stack of its caller) and allocations of a size at a stack (``a``)
are defined once and then referred to by number, from 1; allocations from 0. ``+`` and ``-``
record an allocation and a free. The format was derived from files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tracelloc.errors import MalformedError
from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.model.process import Target
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.profile import Metric, Profile, Sample
from tracelloc.snapshots.snapshot import StackStat
from tracelloc.text import NS_PER_S

HEAD: Final = b"v "
_OLDEST: Final = 3
"""First version of the format with string lengths."""
_AFTER_COMMAND: Final = re.compile(rb"I [0-9a-f]+ [0-9a-f]+")
_DEEPEST: Final = 4096
_MOST_INLINED: Final = 1 << 20
"""Limit of the frames of all places together."""
_MOST_FRAMES: Final = 1 << 24
"""Limit of the frames of all call stacks; repeated lines compress to almost nothing."""
_METRICS: Final = frozenset({Metric.BYTES, Metric.BLOCKS, Metric.ALLOCATED})


def is_heaptrack(content: bytes) -> bool:
    """Whether content begins like a heaptrack file."""
    words = content[:64].split(b"\n", 1)[0].split()
    return content.startswith(HEAD) and len(words) == 3


class Log:
    """The definitions and events read so far."""

    def __init__(self) -> None:
        self.command = self.version = "unknown"
        self.elapsed_ms = 0
        self.page_bytes = 4096
        self.rss_bytes = 0
        self.strings: list[str] = [""]
        self.places: list[list[Frame]] = [[]]
        """Frames by place number, the innermost inlined one first."""
        self._frames_left = _MOST_INLINED
        self._stack_frames_left = _MOST_FRAMES
        self.by_address: dict[int, list[Frame]] = {}
        self.stacks: list[tuple[int, int]] = [(0, 0)]
        """(place, stack of the caller) by number."""
        self.allocations: list[tuple[int, int]] = []
        """(bytes, stack) by number."""
        self.made: dict[int, int] = defaultdict(int)
        self.freed: dict[int, int] = defaultdict(int)
        """Freed blocks by number of the allocation."""

    def read_line(self, line: bytes) -> None:
        """Reads one line. Raises ValueError or IndexError."""
        kind, rest = line[:1], line[2:]
        if kind == b"+":
            self.made[numbers_in(line)[0]] += 1
        elif kind == b"-":
            self.freed[numbers_in(line)[0]] += 1
        elif kind == b"s":
            _, _, text = rest.partition(b" ")
            self.strings.append(text.decode(errors="replace"))
        elif kind == b"X":
            self.command = rest.decode(errors="replace")
        else:
            self._define(kind, numbers_in(line))

    def _define(self, kind: bytes, numbers: list[int]) -> None:
        if kind == b"i":
            address, module, *names = numbers
            self.places.append(self._frames(address, module, names))
            self.by_address[address] = self.places[-1]
        elif kind == b"t":
            place, caller = numbers
            if not (0 < place < len(self.places) and 0 <= caller < len(self.stacks)):
                raise ValueError("a call stack")
            self.stacks.append((place, caller))
        elif kind == b"a":
            size, stack = numbers
            if not 0 <= stack < len(self.stacks):
                raise ValueError("an allocation")
            self.allocations.append((size, stack))
        elif kind == b"c":
            self.elapsed_ms = numbers[0]
        elif kind == b"R":
            self.rss_bytes = numbers[0] * self.page_bytes
        elif kind == b"I":
            self.page_bytes = numbers[0]
        elif kind == b"v":
            if numbers[1] < _OLDEST:
                raise MalformedError(
                    "heaptrack before 1.3 wrote it: convert it by a newer heaptrack"
                )
            self.version = ".".join(str(numbers[0] >> shift & 0xFF) for shift in (16, 8, 0))

    def _frames(self, address: int, module: int, names: list[int]) -> list[Frame]:
        """Returns the frames of a place: inlined functions, innermost first, then their caller."""
        path = self.strings[module] or None
        # Either a single function or triples of function, file and line.
        self._frames_left -= len(names) // 3 + 1
        if self._frames_left < 0:
            raise MalformedError(f"it has more than {_MOST_INLINED:,} frames")
        parts = [(*names[at : at + 3], 0, 0)[:3] for at in range(0, len(names), 3)] or [(0, 0, 0)]
        frames = []
        for number, (function, file, line) in enumerate(parts):
            name = self.strings[function] or None
            frames.append(
                Frame(
                    address,
                    name,
                    name,
                    None,
                    None,
                    path,
                    None,
                    file=self.strings[file] or None,
                    line=line or None,
                    inlined=number < len(parts) - 1,
                )
            )
        return frames

    def addresses(self, number: int) -> list[int]:
        """Return addresses of a call stack, innermost first."""
        found: list[int] = []
        while number and len(found) < _DEEPEST:
            place, number = self.stacks[number]
            found.append(self.places[place][0].address)
        return found

    def stack(self, number: int) -> list[Frame]:
        """All frames of a call stack, innermost first."""
        frames: list[Frame] = []
        while number and len(frames) < _DEEPEST:
            place, number = self.stacks[number]
            frames += self.places[place]
            self._stack_frames_left -= len(self.places[place])
            if self._stack_frames_left < 0:
                raise MalformedError(f"its stacks have more than {_MOST_FRAMES:,} frames")
        return frames


def numbers_in(line: bytes) -> list[int]:
    """Returns the numbers after the letter. Raises ValueError."""
    return [int(word, 16) for word in line[2:].split()]


def lines_of(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields (number, line) of all lines with content, without comments."""
    in_command = False
    for number, line in enumerate(content.split(b"\n"), 1):
        # Arguments of the command may contain line breaks.
        in_command = in_command and not _AFTER_COMMAND.fullmatch(line)
        if line and not in_command and not line.startswith(b"#"):
            yield number, line
        in_command = in_command or line.startswith(b"X ")


def read(content: bytes, time_s: float) -> Profile:
    """Returns the profile at the end of the recorded time. Raises MalformedError."""
    log = Log()
    for number, line in lines_of(content):
        try:
            log.read_line(line)
        except (ValueError, IndexError) as error:
            raise MalformedError(f"line {number} is damaged") from error
    if max((*log.made, *log.freed), default=-1) >= len(log.allocations):
        raise MalformedError("an allocation is not defined")
    return _profile(log, time_s)


def _profile(log: Log, time_s: float) -> Profile:
    made: dict[int, int] = defaultdict(int)
    live: dict[int, int] = defaultdict(int)
    made_bytes: dict[int, int] = defaultdict(int)
    live_bytes: dict[int, int] = defaultdict(int)
    for at, (size, stack) in enumerate(log.allocations):
        left = log.made[at] - log.freed[at]
        made[stack] += log.made[at]
        live[stack] += left
        made_bytes[stack] += log.made[at] * size
        live_bytes[stack] += left * size
    samples = []
    for stack, count in made.items():
        frames = log.stack(stack)
        stat = StackStat(stack, live_bytes[stack], live[stack], made_bytes[stack], count, 0)
        samples.append(Sample(stat, NamedStack(frames, [False] * len(frames))))
    samples.sort(key=lambda sample: (-sample.stat.live_bytes, sample.stat.index))
    return Profile(
        target=Target(0, base_name(log.command.split(" ")[0])),
        time_s=time_s,
        elapsed_ns=log.elapsed_ms * (NS_PER_S // 1000),
        sample_bytes=None,
        samples=samples,
        metrics=_METRICS,
    )
