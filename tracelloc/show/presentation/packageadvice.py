"""Advice on packages with debug information, from the file system of a running process."""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.symboladvice import advice_text, lacking_files
from tracelloc.system.debugpackages import debug_hints


class SymbolAdvice:
    """Finds advice on debug information of processes' files, in the background. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hints: dict[tuple[int, str], str | None] = {}
        self._asked: set[tuple[int, str]] = set()

    def advice_for(self, pid: int, root: Path, stack: NamedStack) -> str | None:
        """Returns advice on a stack's first file without lines; None if there is none (yet)."""
        lacking = lacking_files(stack)
        if not lacking:
            return None
        with self._lock:
            unknown = [path for path in lacking if (pid, path) not in self._asked]
            self._asked.update((pid, path) for path in unknown)
            path, nameless = next(iter(lacking.items()))
            known = (pid, path) in self._hints
            hint = self._hints.get((pid, path))
        if unknown:
            threading.Thread(
                target=self._look, args=(pid, root, unknown), name="packages", daemon=True
            ).start()
        return advice_text(path, nameless=nameless, hint=hint) if known else None

    def _look(self, pid: int, root: Path, paths: Iterable[str]) -> None:
        hints = hints_of(root, paths)
        with self._lock:
            self._hints |= {(pid, path): hints.get(path) for path in paths}


def hints_of(root: Path, paths: Iterable[str]) -> Mapping[str, str]:
    """Returns ``debug_hints`` by path; empty if the process's files can't be read."""
    try:
        return debug_hints(root, paths)
    except OSError:
        return {}
