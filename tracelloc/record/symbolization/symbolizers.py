"""The symbolizers of a trace: one for each process."""

import threading
from collections.abc import Callable

from tracelloc.record.process.space import AddressSpace
from tracelloc.record.symbolization.sourcemap import SourceMap
from tracelloc.record.symbolization.symbolizer import Symbolizer


class Symbolizers:
    """One symbolizer per process, created on first use. Thread safe."""

    def __init__(self, space_of: Callable[[int], AddressSpace], sources: SourceMap) -> None:
        """``space_of``: returns the address space of a process, by its number in the trace."""
        self._space_of = space_of
        self._sources = sources
        self._lock = threading.Lock()
        self._symbolizers: dict[int, Symbolizer] = {}

    def symbols_of(self, number: int) -> Symbolizer:
        """Returns the symbolizer of a process, by its number in the trace."""
        with self._lock:
            if number not in self._symbolizers:
                first = next(iter(self._symbolizers.values()), None)
                space = self._space_of(number)
                self._symbolizers[number] = Symbolizer(space, self._sources, like=first)
            return self._symbolizers[number]

    def close(self) -> None:
        """Closes all symbolizers. No further frame becomes known."""
        with self._lock:
            # The first one owns the symbols of files for all of them.
            for symbolizer in reversed(self._symbolizers.values()):
                symbolizer.close()
