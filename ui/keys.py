"""What the keys of the live view do. The help screen and the footer are made from this."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from textual.binding import Binding

from tracelloc.ui.view import View


def _key(
    key: str, action: str, short: str, long: str, *, show: bool = False, first: bool = False
) -> Binding:
    """``first``: at once, so that what is typed behind it goes where it puts the focus."""
    return Binding(key, action, short, show=show, tooltip=long, id=f"live.{key}", priority=first)


LIVE_KEYS: Final[list[Binding]] = [
    _key("q", "ask('leave')", "Quit", "Quit: probes off, files written", show=True),
    _key("question_mark", "ask('show_help')", "Help", "All keys", show=True),
    _key(
        "slash", "search", "Search", "Search names, files, modules (regex)", show=True, first=True
    ),
    _key("f", "ask('show_filters')", "Filters", "Groups of rules that hide noise", show=True),
    _key("n", "ask('toggle_filters')", "Noise", "Switch all filters off and on"),
    _key("s", "sort", "Sort", "Sort by the next column", show=True),
    _key("S", "reverse", "Reverse", "Turn the order round"),
    _key("t", "sort_by('bytes')", "Total", "Sort by outstanding bytes"),
    _key("o", "sort_by('bytes')", "Own", "The same: a stack's own bytes are all it has"),
    _key("a", "sort_by('count')", "Allocations", "Sort by blocks"),
    _key("p", "sort_by('growth')", "Growth", "Sort by growth per minute"),
    _key("r", "sort_by('rate')", "Rate", "Sort by allocations per second"),
    _key("A", "sort_by('age')", "Age", "Sort by age"),
    _key("v", "sort_by('verdict')", "Verdict", "Leak suspects first, then by outstanding bytes"),
    _key(
        "V",
        "ask('next_verdicts')",
        "Suspects",
        "Only leak suspects, caches, busy stacks …; again: next",
    ),
    _key(
        "b",
        "ask('toggle_baseline')",
        "Baseline",
        "Only what has come since now and stays",
        show=True,
    ),
    _key("M", "ask('set_mark')", "Mark", "Mark this moment in the plot", show=True),
    _key(
        "d",
        "ask('next_difference')",
        "Difference",
        "What changed: last mark to now, mark to mark, off",
    ),
    _key("space", "pause", "Pause", "Freeze the screen; capture goes on", show=True),
    _key("i", "invert", "Invert", "Flame and tree the other way round"),
    _key("w", "metric", "Weight", "Flame and tree by bytes, blocks, peak …"),
    _key("L", "ask('ask_limits')", "Limits", "Only blocks of some age and size"),
    _key(
        "m", "ask('toggle_threads')", "Threads", "All threads together, or the first one's blocks"
    ),
    _key(
        "greater_than_sign",
        "ask('step_thread', 1)",
        "Next thread",
        "Blocks of the next thread only",
    ),
    _key(
        "less_than_sign",
        "ask('step_thread', -1)",
        "Thread before",
        "Blocks of the thread before only",
    ),
    _key("e", "ask('ask_export')", "Export", "Write the stacks to a file", show=True),
    _key("y", "ask('copy_stack')", "Copy", "Copy the row's stack to the clipboard"),
    _key("P", "ask('leave', True)", "Processes", "Back to the list of processes"),
    _key("escape", "back", "Back", "One step back"),
]


def view_keys(views: Iterable[View[Any]]) -> list[Binding]:
    """What brings each view on top."""
    return [
        _key(view.key, f"view('{view.name}')", view.title, f"Show {view.title}") for view in views
    ]
