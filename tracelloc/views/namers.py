"""Names for all processes of a trace, under one set of rules."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tracelloc.filters import Filters
from tracelloc.snapshots.snapshot import Target
from tracelloc.symbols import SourceMap, Symbolizer
from tracelloc.target.space import AddressSpace
from tracelloc.views.naming import REPORT_PATIENCE_S, Namer


class Symbolizers:
    """One per process, made when it is first asked for. Thread safe."""

    def __init__(self, space_of: Callable[[int], AddressSpace], sources: SourceMap) -> None:
        """``space_of``: the address space of a process by its number in the trace."""
        self._space_of = space_of
        self._sources = sources
        self._lock = threading.Lock()
        self._symbolizers: dict[int, Symbolizer] = {}

    def of(self, number: int) -> Symbolizer:
        """That of a process."""
        with self._lock:
            if number not in self._symbolizers:
                first = next(iter(self._symbolizers.values()), None)
                space = self._space_of(number)
                self._symbolizers[number] = Symbolizer(space, self._sources, like=first)
            return self._symbolizers[number]

    def close(self) -> None:
        """Ends their threads. Nothing new becomes known."""
        with self._lock:
            # The first one has what is known of files for all of them.
            for symbolizer in reversed(self._symbolizers.values()):
                symbolizer.close()


class Namers:
    """One per process. For one thread at a time; each thread has its own copy."""

    def __init__(self, symbolizers: Symbolizers, filters: Filters, *, short_names: bool) -> None:
        """See ``Namer``."""
        self.filters = filters
        """Of all of them; may be changed from the thread that uses the namers."""
        self.patience_s = REPORT_PATIENCE_S
        """How long reports wait for names."""
        self._symbolizers = symbolizers
        self._short_names = short_names
        self._namers: dict[int, Namer] = {}

    def of(self, target: Target) -> Namer:
        """That of a process."""
        number = target.number
        namer = self._namers.get(number)
        if namer is None:
            symbolizer = self._symbolizers.of(number)
            namer = Namer(symbolizer, self.filters, short_names=self._short_names)
            self._namers[number] = namer
        namer.patience_s = self.patience_s
        return namer

    def copy(self) -> Namers:
        """Others under the same rules, for another thread."""
        return Namers(self._symbolizers, self.filters.copy(), short_names=self._short_names)
