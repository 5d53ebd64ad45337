"""Objects of a language runtime by type: censuses, their holders, and growing types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Final

from tracelloc.dataclass import dataclass, field, replace
from tracelloc.model.verdicts import Verdict

OTHER_TYPES: Final = "[other types]"
LEAST_GROWING_S: Final = 20.0  # Least time between censuses that tell which types grow


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The objects of one type, or of several types with the same name."""

    name: str  # `module.Name`, or just `Name` of a built-in type
    count: int
    size_bytes: int  # Bytes of the objects, including the tables that they own


@dataclass(frozen=True, slots=True)
class ObjectCensus:
    """The objects found by one census."""

    time_s: float  # When the census began, seconds since 1970
    took_s: float
    types: tuple[TypeCount, ...]  # Counts by type, most bytes first
    block_count: int  # Of CPython's allocator, as `sys.getallocatedblocks`: no larger ones
    block_bytes: int
    changed_pools: int  # Pools that changed while they were read
    no_holders: str = ""  # Why holders can't be found; empty if they can

    @property
    def count(self) -> int:
        return sum(found.count for found in self.types)

    def reduced_to(self, names: Set[str]) -> ObjectCensus:
        """Returns a census of the types with these names, with all others added up as one type."""
        kept = tuple(one for one in self.types if one.name in names)
        rest = [one for one in self.types if one.name not in names]
        if not rest:
            return self
        sums = sum(one.count for one in rest), sum(one.size_bytes for one in rest)
        return replace(self, types=(*kept, TypeCount(OTHER_TYPES, *sums)))


@dataclass(frozen=True, slots=True)
class Holder:
    """A place in the program that holds some of the objects of a type: a reference path."""

    path: str  # Path from a root: `app.handlers.CACHE[…]`
    type_name: str  # Type of the object that directly refers to the held ones; empty if unknown
    count: int  # Number of sampled objects that the holder holds
    unresolved: int  # Number of steps of the path without a name
    file: str | None = None  # File of the module or function at the start of the path
    line: int | None = None  # First line of that function
    is_bounded: bool = False  # A `functools.lru_cache`, a bounded `deque`, or the method cache
    is_garbage: bool = False  # Whether no root holds the objects: they await collection


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of the objects of one type."""

    sample_count: int
    holders: tuple[Holder, ...]  # Most held samples first, garbage last
    skipped_tables: int  # Tables that could not be read, or were too large: paths may lack
    tables: tuple[int, ...] = ()  # Some of the tables from malloc that refer to the objects

    @property
    def is_bounded(self) -> bool:
        bounded = sum(holder.count for holder in self.holders if holder.is_bounded)
        return 2 * bounded > self.sample_count

    @property
    def kept_share(self) -> float:
        """Share of the sampled objects that are not garbage, 0 to 1; 1 without samples."""
        garbage = sum(holder.count for holder in self.holders if holder.is_garbage)
        return 1 - garbage / max(1, self.sample_count)

    def main_keeper(self, names: Set[str]) -> str | None:
        """Returns which of these types directly holds most of the objects; None if others do."""
        counts: Counter[str] = Counter()
        for holder in self.holders:
            counts[holder.type_name] += holder.count
        found = [(count, name) for name, count in counts.items() if name in names]
        count, name = max(found, default=(0, ""))
        return name if 2 * count > self.sample_count else None


UNKNOWN: Final = ".?"


@dataclass(frozen=True, slots=True)
class GrowingType:
    """A type with a growing number of objects."""

    name: str
    since_s: float  # When the growth began, seconds since 1970
    count_per_min: float
    bytes_per_min: float

    def scaled(self, share: float) -> GrowingType:
        count, size = self.count_per_min * share, self.bytes_per_min * share
        return replace(self, count_per_min=count, bytes_per_min=size)


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """A function of a runtime, and the line that it has reached; None where unknown."""

    function: str
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class NativeGrowth:
    """Memory from C extensions that grows in proportion to the objects of a type."""

    bytes_per_min: float
    size_bytes: int  # Bytes of all live blocks of the stacks
    stacks: tuple[int, ...]  # Call stacks that allocate this memory, the fastest growing first
    caller: FunctionLine  # The innermost function of the runtime in the first stack


@dataclass(frozen=True, slots=True)
class TypeSuspect:
    """A growing type, with the types that grow because its objects hold them."""

    growth: GrowingType
    count: int
    size_bytes: int
    verdict: Verdict
    holders: Holders | None  # Holders of the new objects; None if unknown yet
    parts: tuple[GrowingType, ...] = ()  # Growing types whose objects the type's objects hold
    grower: FunctionLine | None = None  # It has enlarged the holder's table; None: unknown
    native: NativeGrowth | None = None  # What grows with it outside objects; None: unknown

    @property
    def name(self) -> str:
        return self.growth.name

    @property
    def bytes_per_min(self) -> float:
        """Growth in bytes per minute, including that of the parts and of native memory."""
        native = 0.0 if self.native is None else self.native.bytes_per_min
        return self.growth.bytes_per_min + sum(part.bytes_per_min for part in self.parts) + native


_LEAST_RATE: Final = 16 << 10  # Growth in bytes per minute from which types are suspects
_MOST_SUSPECTS: Final = 8


@dataclass(frozen=True, slots=True)
class ObjectFindings:
    """Findings about a program's objects at one time."""

    now: ObjectCensus | None = None  # The last census; None if there was none (see `trouble`)
    first: ObjectCensus | None = None
    suspects: tuple[TypeSuspect, ...] = ()  # Growing types, most bytes per minute first
    minor: tuple[TypeSuspect, ...] = ()  # Too slow to be suspects, with native memory, too
    holders: Mapping[str, Holders] = field(default_factory=dict)  # Of growing types, by name
    trouble: str | None = None  # Why objects are not counted, for display


def divide_by_rate(
    found: Sequence[TypeSuspect],
) -> tuple[tuple[TypeSuspect, ...], tuple[TypeSuspect, ...]]:
    """Returns (types that grow fast enough to be suspects, slower types), a few of each."""
    suspects = tuple(one for one in found if one.bytes_per_min >= _LEAST_RATE)
    minor = tuple(one for one in found if one.bytes_per_min < _LEAST_RATE)
    return suspects[:_MOST_SUSPECTS], minor[:_MOST_SUSPECTS]
