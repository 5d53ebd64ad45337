"""Finds the function that all stacks of a suspect share, and where the stacks diverge."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.model.codefiles import base_name
from tracelloc.model.frames import Frame
from tracelloc.model.verdicts import Suspect
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.naming import Namer, frame_name
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import format_percent, printable

STACKS_NAMED: Final = 64  # Most stacks named per group, those with the largest shares
_LISTED: Final = 5
_UNSHOWN: Final = "[no caller shown]"
_ITSELF: Final = "[the function itself]"


@dataclass(frozen=True, slots=True)
class PartShare:
    """A caller, a callee or a line of the function that the stacks of a suspect share."""

    name: str  # Name, not yet safe to print
    share: float  # Share of the suspect's rate, 0 to 1


@dataclass(frozen=True, slots=True)
class SharedFunction:
    """The innermost function that a suspect's stacks share; its parts by decreasing share."""

    frame: Frame
    callers: Sequence[PartShare]
    callees: Sequence[PartShare]
    # `FILE:LINE` where the stacks diverge: in the function or in its callers.
    lines: Sequence[PartShare]
    # Whether stacks diverge in the function; otherwise, they share all frames further in.
    parts_inside: bool

    def sentences(self) -> Iterator[str]:
        """Yields sentences on where the stacks diverge, safe to print; none if unknown."""
        if len(self.callers) > 1:
            yield f"called by {_listed(self.callers)}"
        elif len(self.callees) > 1 and _ITSELF not in {part.name for part in self.callees}:
            yield f"through {_listed(self.callees)}"
        elif len(self.lines) > 1:
            lines = [PartShare(base_name(line.name), line.share) for line in self.lines]
            who = "" if self.parts_inside else f"called by {printable(self.callers[0].name)} "
            yield f"{who}at {_listed(lines)}"
        elif len(self.callees) > 1:
            yield f"through {_listed(self.callees)}"


@dataclass(slots=True)
class _Stack:
    named: NamedStack
    share: float
    at: int  # Position of the stack's frame in the shared function

    @property
    def frame(self) -> Frame:
        return self.named.frames[self.at]

    def inner(self) -> Sequence[int]:
        """Positions of the shown frames from the shared one inwards."""
        return [self.at, *(n for n in range(self.at - 1, -1, -1) if not self.named.hidden[n])]

    def beside(self, way: int) -> Frame | None:
        """Returns the next shown frame of another function: ``way`` 1 is outwards, -1 inwards."""
        own, frames = frame_name(self.frame), self.named.frames
        for other in range(self.at + way, len(frames) if way > 0 else -1, way):
            if not self.named.hidden[other] and frame_name(frames[other]) != own:
                return frames[other]
        return None


def shared_function(snapshot: Snapshot, namer: Namer, suspect: Suspect) -> SharedFunction | None:
    """Returns the function that a suspect's stacks share, by the known names, or None."""
    if len(suspect.members) < 2 or suspect.frame is None:
        return None
    stacks = []
    for member in suspect.members[:STACKS_NAMED]:
        named = namer.stack(snapshot, member.stack)
        at = _position(named, suspect.frame)
        if at is not None:
            stacks.append(_Stack(named, member.share, at))
    if not stacks:
        return None
    inner = {tuple(frame.address for frame in each.named.frames[: each.at]) for each in stacks}
    parts_inside = len(inner) > 1
    if parts_inside:
        _step_inwards(stacks)
    own = [(stack.frame if parts_inside else stack.beside(1), stack.share) for stack in stacks]
    return SharedFunction(
        stacks[0].frame,
        callers=_ranked((_name(stack.beside(1), _UNSHOWN), stack.share) for stack in stacks),
        callees=_ranked((_name(stack.beside(-1), _ITSELF), stack.share) for stack in stacks),
        lines=_ranked((_line(frame), share) for frame, share in own),
        parts_inside=parts_inside,
    )


def _position(stack: NamedStack, address: int) -> int | None:
    """Returns the position of the outermost shown frame at an address or inside; else any."""
    found = None
    for at, frame in enumerate(stack.frames):
        if frame.address == address:
            found = at
    if found is None:
        return None
    shown = (at for at in range(found, -1, -1) if not stack.hidden[at])
    return next(shown, found)


def _step_inwards(stacks: Sequence[_Stack]) -> None:
    """Advances to the innermost function that all stacks share.

    Stacks may pass through the function at different addresses, so it may be no shared frame.
    """
    inner = [stack.inner() for stack in stacks]

    def is_shared(at: tuple[int, ...]) -> bool:
        pairs = zip(stacks, at, strict=True)
        return len({frame_name(stack.named.frames[n]) for stack, n in pairs}) == 1

    for deeper in takewhile(is_shared, zip(*inner, strict=False)):
        for stack, at in zip(stacks, deeper, strict=True):
            stack.at = at


def _name(frame: Frame | None, if_none: str) -> str:
    return if_none if frame is None else frame_name(frame)


def _line(frame: Frame | None) -> str | None:
    if frame is None or frame.file is None or frame.line is None:
        return None
    return f"{frame.file}:{frame.line}"


def _ranked(parts: Iterable[tuple[str | None, float]]) -> Sequence[PartShare]:
    shares: defaultdict[str, float] = defaultdict(float)
    for name, share in parts:
        if name is not None:
            shares[name] += share
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(PartShare(name, share) for name, share in ranked)


def _listed(parts: Sequence[PartShare]) -> str:
    shown = [f"{printable(p.name)} {format_percent(p.share, 0)}" for p in parts[:_LISTED]]
    more = len(parts) - len(shown)
    return f"{', '.join(shown)}{f' and {more:,} more' if more else ''}"
