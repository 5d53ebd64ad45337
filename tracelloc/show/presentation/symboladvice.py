"""Advice on packages or build options that add a stack's missing names and source lines."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tracelloc.model.codefiles import Unresolved, base_name, is_c_library
from tracelloc.model.process import Runtime
from tracelloc.show.filters import NamedStack
from tracelloc.text import printable

# Number of shown frames that are checked: advice on frames further out is of little use.
_FRAMES: Final = 6


def lacking_files(stack: NamedStack) -> dict[str, bool]:
    """Returns files of a stack's first frames without lines; True: names are missing, too."""
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
    """Returns how to get names of generated code; None if a stack's first frames need none."""
    naming = next((runtime.naming for runtime in runtimes if runtime.naming), None)
    shown = (part.frame for part in stack.parts() if part.frame is not None)
    if naming is None or not any(
        frame.reason is Unresolved.ANONYMOUS for frame in islice(shown, _FRAMES)
    ):
        return None
    return f"no names of generated code: {naming}"
