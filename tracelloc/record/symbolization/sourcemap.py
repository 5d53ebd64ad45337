"""Where source files lie on this machine."""

from __future__ import annotations

from collections.abc import Iterable


class SourceMap:
    """Directories that stand for others: ``(as compiled, as it is here)``."""

    def __init__(self, directories: Iterable[tuple[str, str]] = ()) -> None:
        pairs = [(old.rstrip("/"), new.rstrip("/")) for old, new in directories]
        # The longest, which says most, decides.
        self._directories = sorted(pairs, key=lambda pair: -len(pair[0]))

    def apply(self, path: str | None) -> str | None:
        """The path with the directory it lies in exchanged, if one is to be."""
        if path is None:
            return None
        for old, new in self._directories:
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path
