"""Objects of a Python program by type: censuses, who holds them, and types that grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from tracelloc.verdict.judgement import Verdict

OTHER_TYPES: Final = "[other types]"


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The objects of one type, or of several of the same name."""

    name: str
    """``module.Name``, or ``Name`` for what is built in."""
    count: int
    size_bytes: int
    """With the tables that they own."""


@dataclass(frozen=True, slots=True)
class ObjectCensus:
    """What was found at one time."""

    time_s: float
    """When it began, since 1970."""
    took_s: float
    types: tuple[TypeCount, ...]
    """The most bytes first."""
    block_count: int
    """PoolBlocks of CPython's allocator that are in use, as ``sys.getallocatedblocks`` counts them
    but for larger ones."""
    block_bytes: int
    changed_pools: int
    """Pools that changed while they were read."""

    @property
    def count(self) -> int:
        """Objects of all types."""
        return sum(found.count for found in self.types)

    def reduced_to(self, names: Set[str]) -> ObjectCensus:
        """A census with these types one by one, and all others as one."""
        kept = tuple(one for one in self.types if one.name in names)
        rest = [one for one in self.types if one.name not in names]
        if not rest:
            return self
        sums = sum(one.count for one in rest), sum(one.size_bytes for one in rest)
        return replace(self, types=(*kept, TypeCount(OTHER_TYPES, *sums)))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps some of the objects of a type."""

    path: str
    """From a root: ``app.handlers.CACHE[…]``."""
    type_name: str
    """What refers to them directly; empty: that is not known."""
    count: int
    """How many of the samples."""
    unresolved: int
    """Steps that have no name."""
    file: str | None = None
    """File of the module or function that the path begins with."""
    line: int | None = None
    """Where that function begins."""
    is_bounded: bool = False
    """A ``functools.lru_cache`` that will not keep more than so many keeps them."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Who keeps the objects of one type."""

    sample_count: int
    holders: tuple[Holder, ...]
    """Most first."""
    skipped_tables: int
    """Memory that could not be read, or was too much: paths through it are missing."""

    @property
    def is_bounded(self) -> bool:
        """Whether most of them are kept by what keeps a limited number of them."""
        bounded = sum(holder.count for holder in self.holders if holder.is_bounded)
        return 2 * bounded > self.sample_count

    def main_keeper(self, names: Set[str]) -> str | None:
        """Which of these types keeps most of them, directly; None: others do."""
        counts: Counter[str] = Counter()
        for holder in self.holders:
            counts[holder.type_name] += holder.count
        found = [(count, name) for name, count in counts.items() if name in names]
        count, name = max(found, default=(0, ""))
        return name if 2 * count > self.sample_count else None


UNKNOWN: Final = ".?"


@dataclass(frozen=True, slots=True)
class GrowingType:
    """A type whose objects become more and more."""

    name: str
    since_s: float
    """When that began, seconds since 1970."""
    count_per_min: float
    bytes_per_min: float


@dataclass(frozen=True, slots=True)
class TypeSuspect:
    """A type that grows, with those that its objects keep and that grow for that reason."""

    growth: GrowingType
    count: int
    size_bytes: int
    verdict: Verdict
    holders: Holders | None
    """Who keeps what is new; None: not known yet."""
    parts: tuple[GrowingType, ...] = ()
    """Types of what its objects keep."""

    @property
    def name(self) -> str:
        """``module.Name``, or ``Name`` for what is built in."""
        return self.growth.name

    @property
    def bytes_per_min(self) -> float:
        """Growth, with the parts."""
        return self.growth.bytes_per_min + sum(part.bytes_per_min for part in self.parts)


@dataclass(frozen=True, slots=True)
class ObjectFindings:
    """What is known of a program's objects at one moment."""

    now: ObjectCensus | None = None
    """The last census; None: there was none, for which there is a reason."""
    first: ObjectCensus | None = None
    suspects: tuple[TypeSuspect, ...] = ()
    """The most bytes a minute first."""
    holders: Mapping[str, Holders] = field(default_factory=dict)
    """Who keeps objects of growing types, by their names."""
    trouble: str | None = None
    """Why objects are not counted, for people."""
