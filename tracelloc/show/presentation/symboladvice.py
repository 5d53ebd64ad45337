"""Advice on packages or build options that add a stack's missing names and source lines."""

import threading
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from tracelloc.model.codefiles import GENERATED, Unresolved, base_name, is_c_library
from tracelloc.model.process import Runtime
from tracelloc.show.filters import NamedStack
from tracelloc.system.debugpackages import debug_hints
from tracelloc.text import printable

# Number of shown frames that are checked: advice on frames further out is of little use.
_FRAMES: Final = 6
# What is not named, by the interpreter's function that runs it.
_INTERPRETED: Final = {
    "Perl_runops_standard": "Perl subroutines", "rb_vm_exec": "Ruby methods",
    "luaV_execute": "Lua functions", "execute_ex": "PHP functions",
}  # fmt: skip


def lacking_files(stack: NamedStack) -> dict[str, bool]:
    """Returns the files of inner frames without lines, and whether names are missing, too."""
    found: dict[str, bool] = {}
    shown = (part.frame for part in stack.parts() if part.frame is not None and part.label is None)
    for frame in islice(shown, _FRAMES):
        path = frame.module or ""
        is_known = frame.file is not None or frame.reason is Unresolved.PENDING
        if not is_known and path.startswith("/") and not is_c_library(path):
            found[path] = found.get(path, False) or frame.symbol is None
    return found


def advice_text(path: str, *, nameless: bool, hint: str | None) -> str:
    """Formats ``no source lines of redis-server: apt install redis-tools-dbgsym``."""
    what = "names or source lines" if nameless else "source lines"
    if hint is None:
        hint = "build it with -g, don't strip it" if nameless else "compile it with -g"
    return printable(f"no {what} of {base_name(path)}: {hint}")


def generated_advice(runtimes: Iterable[Runtime], stack: NamedStack) -> str | None:
    """Returns how to get names of generated code, and all of its frames; None if all are there."""
    runtime = next((each for each in runtimes if each.naming), None)
    shown = [part.frame for part in stack.parts() if part.frame is not None]
    is_nameless = [frame.reason is Unresolved.ANONYMOUS for frame in shown]
    kinds = (_INTERPRETED.get(frame.symbol or "") for frame in shown)
    if what := next(filter(None, kinds), None):
        return f"{what} are not named: these functions are the interpreter's"
    if runtime is None:
        return None
    advice = []
    if any(is_nameless[:_FRAMES]):
        advice.append(f"no names of generated code: {runtime.naming}")
    if runtime.frames_option and (
        any(is_nameless) or any(frame.module == GENERATED for frame in shown)
    ):
        frames = f"frames of compiled {runtime.name} code may be missing"
        advice.append(f"{frames}: start it with {runtime.frames_option}")
    return "; ".join(advice) or None


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
