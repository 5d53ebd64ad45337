"""Locations of source files on this machine."""

from collections.abc import Iterable


class SourceMap:
    """Replaces directories of source files: ``(as compiled, on this machine)``."""

    def __init__(self, directories: Iterable[tuple[str, str]] = ()) -> None:
        pairs = [(old.rstrip("/"), new.rstrip("/")) for old, new in directories]
        # The longest, most specific match applies.
        self._directories = sorted(pairs, key=lambda pair: -len(pair[0]))

    def apply(self, path: str | None) -> str | None:
        """Returns a path with its directory replaced, if a replacement applies."""
        if path is None:
            return None
        for old, new in self._directories:
            if path == old or path.startswith(f"{old}/"):
                return new + path[len(old) :]
        return path
