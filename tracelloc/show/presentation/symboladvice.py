"""What would add the names and source lines that a stack lacks: a package, or a build option."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from tracelloc.model.codefiles import Unresolved, base_name, is_c_library
from tracelloc.model.runtimes import Runtime
from tracelloc.show.filters import NamedStack
from tracelloc.system.debugpackages import debug_hints
from tracelloc.text import printable

_FRAMES: Final = 6
"""Shown frames that are looked at: who reads further out has what they need."""


def lacking_files(stack: NamedStack) -> dict[str, bool]:
    """Files of code whose frames, shown first in a stack, have no line; True: nor a name."""
    found: dict[str, bool] = {}
    shown = (part.frame for part in stack.parts() if part.frame is not None and part.label is None)
    for frame in islice(shown, _FRAMES):
        path = frame.module or ""
        is_known = frame.file is not None or frame.reason is Unresolved.PENDING
        if not is_known and path.startswith("/") and not is_c_library(path):
            found[path] = found.get(path, False) or frame.symbol is None
    return found


def advice_text(path: str, *, nameless: bool, hint: str | None) -> str:
    """``no source lines of redis-server: apt install redis-tools-dbgsym``."""
    what = "names or source lines" if nameless else "source lines"
    if hint is None:
        hint = "build it with -g, don't strip it" if nameless else "compile it with -g"
    return printable(f"no {what} of {base_name(path)}: {hint}")


def generated_advice(runtimes: Iterable[Runtime], stack: NamedStack) -> str | None:
    """What gives names to generated code; None: a stack's first frames have none without."""
    naming = next((runtime.naming for runtime in runtimes if runtime.naming), None)
    shown = (part.frame for part in stack.parts() if part.frame is not None)
    if naming is None or not any(
        frame.reason is Unresolved.ANONYMOUS for frame in islice(shown, _FRAMES)
    ):
        return None
    return f"no names of generated code: {naming}"


class SymbolAdvice:
    """Advice on the files of processes, looked up in the background. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hints: dict[tuple[int, str], str | None] = {}
        self._asked: set[tuple[int, str]] = set()

    def of(self, pid: int, root: Path, stack: NamedStack) -> str | None:
        """Advice on the first file that lacks lines; None: none does, or it is not known yet."""
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
    """``debug_hints``, none where the process's files can't be read."""
    try:
        return debug_hints(root, paths)
    except OSError:
        return {}
