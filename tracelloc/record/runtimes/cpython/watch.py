"""Watches the objects of one Python program: censuses, growing types, and their holders."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tracelloc.errors import PrivilegeError, TargetError
from tracelloc.model.objects import (
    GrowingType,
    Holders,
    ObjectCensus,
    ObjectFindings,
    TypeSuspect,
    divide_by_rate,
)
from tracelloc.model.verdicts import Verdict
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.census import CensusTaker
from tracelloc.record.runtimes.cpython.growth import TypeHistory
from tracelloc.record.runtimes.cpython.holders import HolderSearch, ObjectAddresses
from tracelloc.record.runtimes.cpython.paths import ITEMS, KEYS
from tracelloc.verdict.parameters import P
from tracelloc.verdict.unreachable import doubles_memory

# Growing types whose holders are searched for, with the growing types that keep them.
_MOST_TYPES: Final = 12
_HOLDERS_S: Final = 60.0  # Time after which holders are searched for again
_FRESH_S: Final = 5.0  # Oldest census that a report accepts as current
_MINUTE_S: Final = 60.0
POOL_MEMORY: Final = 4  # Bytes that a census and a search for holders need for each byte of pools


class PythonObjectWatch:
    """Counts one Python program's objects periodically. Thread safe: one thread works at a time."""

    def __init__(
        self, process: Process, space: AddressSpace, now_s: Callable[[], float] = time.time
    ) -> None:
        """``space``: kept up to date by its owner. ``now_s``: returns the time since 1970."""
        # The findings so far; None: nothing yet. Replaced as a whole.
        self.findings: ObjectFindings | None = None
        # Most of tracelloc's memory that a census may use; None: unlimited
        self.most_bytes: int | None = None
        # Called after each census, in the thread that has taken it
        self.on_census: Callable[[ObjectCensus], None] = lambda _: None
        self._process = process
        self._lock = threading.Lock()
        self._now_s = now_s
        self._censuses = CensusTaker(process, now_s)
        self._search = HolderSearch(process, space)
        self._history = TypeHistory()
        self._first: ObjectCensus | None = None
        self._before: ObjectAddresses | None = None
        self._holders: dict[str, Holders] = {}
        self._has_looked = False
        self._least_rss_bytes: int | None = None  # Least resident memory so far
        # Names of types whose holders were searched for, and when
        self._searched: tuple[frozenset[str], float] = frozenset(), 0.0

    @property
    def is_growing(self) -> bool:
        """Whether to count again soon: some type grows, or it is too early to tell."""
        found = self.findings
        if found is None or found.now is None or found.first is None:
            return not self._has_looked
        return bool(found.suspects) or found.now.time_s - found.first.time_s < 2 * _MINUTE_S

    def update_findings(self) -> None:
        """Takes a census, and finds the holders of growing types; does nothing without Python."""
        with self._lock:
            self._look()

    def refresh(self) -> None:
        """Takes a census, like ``update_findings``, unless the last one is only seconds old."""
        with self._lock:
            now = None if self.findings is None else self.findings.now
            if now is None or self._now_s() - now.time_s > _FRESH_S:
                self._look()

    def _look(self) -> None:
        self._has_looked = True
        try:
            if self._search.has_python():
                self._count()
        except TargetError as error:
            if self.findings is None:
                self.findings = ObjectFindings(trouble=str(error))
        except (PrivilegeError, MemoryError, OSError) as error:
            self.findings = ObjectFindings(trouble=str(error) or type(error).__name__)

    def _count(self) -> None:
        most_bytes = None if self.most_bytes is None else self.most_bytes // POOL_MEMORY
        now = self._censuses.take_census(keep=True, most_bytes=most_bytes)
        if not now.block_count:
            raise TargetError(f"process {self._process.pid} is about to end")
        self._history.add_census(now)
        self.on_census(now)
        found = self._censuses.take_found()
        self._first = self._first or now
        if found is not None and self._before is None:
            self._before = ObjectAddresses(found)
        growing = self._history.growing()
        wanted = [one.name for one in growing[:_MOST_TYPES]]
        names, searched_s = self._searched
        is_due = not names.issuperset(wanted) or now.time_s - searched_s > _HOLDERS_S
        if found is not None and wanted and is_due:
            keepers = frozenset(one.name for one in growing)
            self._holders = self._search.find(found, wanted, self._before, keepers)
            self._searched = frozenset(wanted), now.time_s
        # Only the growth that is kept: garbage goes as soon as it is collected.
        shares = {name: found.kept_share for name, found in self._holders.items()}
        kept = [one.scaled(shares.get(one.name, 1)) for one in growing if shares.get(one.name, 1)]
        kept.sort(key=lambda one: -one.bytes_per_min)
        suspects, minor = divide_by_rate(self._suspects(now, kept))
        holders = {
            one.name: self._holders[one.name] for one in growing if one.name in self._holders
        }
        self.findings = ObjectFindings(now, self._first, suspects, minor, holders)

    def _suspects(self, now: ObjectCensus, growing: Sequence[GrowingType]) -> list[TypeSuspect]:
        counts = {one.name: one for one in now.types}
        found = []
        for lead, parts in group_types(growing, self._holders):
            if self._is_bounded(lead.name):
                continue
            holders = self._holders.get(lead.name)
            one = counts[lead.name]
            kept = tuple(part for part in parts if not self._is_bounded(part.name))
            suspect = TypeSuspect(lead, one.count, one.size_bytes, Verdict.GROWING, holders, kept)
            found.append(self._judged(suspect, now.time_s))
        return sorted(found, key=lambda one: -one.bytes_per_min)

    def _is_bounded(self, name: str) -> bool:
        holders = self._holders.get(name)
        return holders is not None and holders.is_bounded

    def _judged(self, suspect: TypeSuspect, now_s: float) -> TypeSuspect:
        """Returns a suspect as a leak if its growth has lasted; before, it may be a cache."""
        watched_s = now_s - suspect.growth.since_s
        resident_bytes = self._process.rss_bytes() or 0
        self._least_rss_bytes = min(self._least_rss_bytes or resident_bytes, resident_bytes)
        has_doubled = doubles_memory(
            suspect.bytes_per_min, watched_s, resident_bytes, resident_bytes - self._least_rss_bytes
        )
        called_s = P.referenced_doubled_s if has_doubled else P.referenced_watch_s
        return suspect if watched_s < called_s else replace(suspect, verdict=Verdict.LEAKING)


def group_types(
    growing: Sequence[GrowingType], holders: Mapping[str, Holders]
) -> list[tuple[GrowingType, list[GrowingType]]]:
    """Groups growing types: (a type that grows independently, types that grow with it).

    A type whose objects are held by objects of another growing type grows because of that one. Of
    types whose objects are items of one container, one stands for all.
    """
    by_name = {one.name: one for one in growing}
    keepers = {
        name: keeper
        for name, found in holders.items()
        for keeper in [found.main_keeper(by_name.keys() - {name})]
        if name in by_name and keeper is not None
    }
    leads: dict[str, str] = {}
    for name in by_name:
        at, seen = name, {name}
        while at in keepers and keepers[at] not in seen:
            at = keepers[at]
            seen.add(at)
        # Of types that hold each other, the one nearest to a root; instances come before their
        # dictionaries, which share the path.
        nearest = min(seen, key=lambda one: (len(_main_path(holders, one)), "." not in one, one))
        leads[name] = nearest if at in keepers else at
    by_place: dict[str, str] = {}
    # Values come before keys, which exist for them.
    for name in sorted(
        set(leads.values()), key=lambda one: (_main_path(holders, one).endswith(KEYS), one)
    ):
        by_place.setdefault(_place(holders, name) or name, name)
    leads = {name: by_place[_place(holders, lead) or lead] for name, lead in leads.items()}
    groups: dict[str, list[GrowingType]] = {}
    for name, lead in leads.items():
        if name != lead:
            groups.setdefault(lead, []).append(by_name[name])
    return [(one, groups.get(one.name, [])) for one in growing if leads[one.name] == one.name]


def _main_path(holders: Mapping[str, Holders], name: str) -> str:
    found = holders.get(name)
    return found.holders[0].path if found is not None and found.holders else ""


def _place(holders: Mapping[str, Holders], name: str) -> str | None:
    path = _main_path(holders, name)
    return next((path.removesuffix(end) for end in ITEMS if path.endswith(end)), None)
