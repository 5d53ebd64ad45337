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
    """The objects of one type, or of several of the same name."""

    name: str  # `module.Name`, or just `Name` of a built-in type
    count: int
    size_bytes: int  # Including the tables that they own


@dataclass(frozen=True, slots=True)
class ObjectCensus:
    """The objects found by one census."""

    time_s: float  # When the census began, since 1970
    took_s: float
    types: tuple[TypeCount, ...]  # The most bytes first
    # Blocks of CPython's allocator in use, as `sys.getallocatedblocks` counts them, without larger
    # ones.
    block_count: int
    block_bytes: int
    changed_pools: int  # Pools that changed while they were read

    @property
    def count(self) -> int:
        """Objects of all types."""
        return sum(found.count for found in self.types)

    def reduced_to(self, names: Set[str]) -> ObjectCensus:
        """A census of these types, with all others added up as one."""
        kept = tuple(one for one in self.types if one.name in names)
        rest = [one for one in self.types if one.name not in names]
        if not rest:
            return self
        sums = sum(one.count for one in rest), sum(one.size_bytes for one in rest)
        return replace(self, types=(*kept, TypeCount(OTHER_TYPES, *sums)))


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of some of the objects of a type."""

    path: str  # Path from a root: `app.handlers.CACHE[…]`
    type_name: str  # Type of the object that refers to them directly; empty if unknown
    count: int  # Number of samples that it holds
    unresolved: int  # Steps without a name
    file: str | None = None  # File of the module or function at the start of the path
    line: int | None = None  # First line of that function
    # Whether it is of bounded size: a `functools.lru_cache`, a `deque` with a greatest length, or
    # the interpreter's method cache.
    is_bounded: bool = False
    is_garbage: bool = False  # Whether nothing holds them, and the garbage collector will free them


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of the objects of one type."""

    sample_count: int
    holders: tuple[Holder, ...]  # Most first, garbage last
    # Tables that could not be read, or were too large: paths through them are missing.
    skipped_tables: int
    # Addresses of tables from malloc that refer to the objects directly, some of them.
    tables: tuple[int, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether holders of bounded size hold most of the objects."""
        bounded = sum(holder.count for holder in self.holders if holder.is_bounded)
        return 2 * bounded > self.sample_count

    @property
    def kept_share(self) -> float:
        """The share of the objects that are not garbage; 1 if none was looked at."""
        garbage = sum(holder.count for holder in self.holders if holder.is_garbage)
        return 1 - garbage / max(1, self.sample_count)

    def main_keeper(self, names: Set[str]) -> str | None:
        """Which of these types directly holds most of the objects; None if others do."""
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
        """The growth of this share of its objects."""
        count, size = self.count_per_min * share, self.bytes_per_min * share
        return replace(self, count_per_min=count, bytes_per_min=size)


@dataclass(frozen=True, slots=True)
class FunctionLine:
    """A function, and the line that it has reached."""

    function: str
    file: str | None
    line: int | None


@dataclass(frozen=True, slots=True)
class NativeGrowth:
    """Memory of C extensions that grows in proportion to the objects of a type."""

    bytes_per_min: float
    size_bytes: int  # All live blocks of the stacks
    # Indices of the stacks that allocate it, the one that grows fastest first.
    stacks: tuple[int, ...]
    caller: FunctionLine  # The innermost function of the runtime in the first one


@dataclass(frozen=True, slots=True)
class TypeSuspect:
    """A growing type, with the types that grow because its objects hold them."""

    growth: GrowingType
    count: int
    size_bytes: int
    verdict: Verdict
    holders: Holders | None  # Holders of the new objects; None if unknown yet
    parts: tuple[GrowingType, ...] = ()  # Types of the objects that its objects hold
    # The function that has made the holder's table larger; None: not known.
    grower: FunctionLine | None = None
    # Memory outside its objects that grows with them; None: none is known.
    native: NativeGrowth | None = None

    @property
    def name(self) -> str:
        """``module.Name``, or just ``Name`` of a built-in type."""
        return self.growth.name

    @property
    def bytes_per_min(self) -> float:
        """Growth, including that of the parts and of native memory."""
        native = 0.0 if self.native is None else self.native.bytes_per_min
        return self.growth.bytes_per_min + sum(part.bytes_per_min for part in self.parts) + native


_LEAST_RATE: Final = 16 << 10  # Growth in bytes per minute from which types are suspects
_MOST_SUSPECTS: Final = 8


@dataclass(frozen=True, slots=True)
class ObjectFindings:
    """Findings about a program's objects at one time."""

    now: ObjectCensus | None = None  # The last census; None if there was none (see `trouble`)
    first: ObjectCensus | None = None
    suspects: tuple[TypeSuspect, ...] = ()  # The most bytes per minute first
    # Types that grow too slowly to be suspects, unless native memory grows with them.
    minor: tuple[TypeSuspect, ...] = ()
    # Holders of objects of growing types, by type name.
    holders: Mapping[str, Holders] = field(default_factory=dict)
    trouble: str | None = None  # Why objects are not counted, for display


def divided(
    found: Sequence[TypeSuspect],
) -> tuple[tuple[TypeSuspect, ...], tuple[TypeSuspect, ...]]:
    """(suspects, minor ones), by their rates."""
    suspects = tuple(one for one in found if one.bytes_per_min >= _LEAST_RATE)
    minor = tuple(one for one in found if one.bytes_per_min < _LEAST_RATE)
    return suspects[:_MOST_SUSPECTS], minor[:_MOST_SUSPECTS]
