"""What the keys of screens do. The help screen and the footer are made from this."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from textual.binding import Binding

from tracelloc.ui.view import View


def bindings(
    screen: str, keys: Iterable[tuple[str, str, str, str]], shown: Container[str], first: str = ""
) -> list[Binding]:
    """Those of a screen by (key, action, word, sentence); ``shown``: in its footer.

    ``first``: at once, so that what is typed behind it goes where it puts the focus.
    """
    return [
        Binding(
            key, action, short, show=key in shown, tooltip=long, id=f"{screen}.{key}",
            priority=key == first,
        )
        for key, action, short, long in keys
    ]  # fmt: skip


LIVE_KEYS: Final = bindings(
    "live",
    (
        ("q", "app.ask('leave')", "Quit", "Quit: probes off, files written"),
        ("question_mark", "app.ask('show_help')", "Help", "All keys"),
        ("slash", "search", "Search", "Search names, files, modules (regex)"),
        ("f", "app.ask('show_filters')", "Filters", "Groups of rules that hide noise"),
        ("n", "app.ask('toggle_filters')", "Noise", "Switch all filters off and on"),
        ("s", "sort", "Sort", "Sort by the next column"),
        ("S", "reverse", "Reverse", "Turn the order round"),
        ("t", "sort_by('bytes')", "Total", "Sort by outstanding bytes"),
        ("o", "sort_by('bytes')", "Own", "The same: a stack's own bytes are all it has"),
        ("a", "sort_by('count')", "Allocations", "Sort by blocks"),
        ("p", "sort_by('growth')", "Growth", "Sort by growth per minute"),
        ("r", "sort_by('rate')", "Rate", "Sort by allocations per second"),
        ("A", "sort_by('age')", "Age", "Sort by age"),
        ("v", "sort_by('verdict')", "Verdict", "Leak suspects first, then by outstanding bytes"),
        (
            "V",
            "app.ask('next_verdicts')",
            "Suspects",
            "Only leak suspects, caches, busy stacks …; again: next",
        ),
        ("b", "app.ask('toggle_baseline')", "Baseline", "Only what has come since now and stays"),
        ("M", "app.ask('set_mark')", "Mark", "Mark this moment in the plot"),
        (
            "d",
            "app.ask('next_difference')",
            "Difference",
            "What changed: last mark to now, mark to mark, off",
        ),
        ("space", "pause", "Pause", "Freeze the screen; capture goes on"),
        ("i", "invert", "Invert", "Flame and tree the other way round"),
        ("w", "metric", "Weight", "Flame and tree by bytes, blocks, peak …"),
        ("L", "app.ask('ask_limits')", "Limits", "Only blocks of some age and size"),
        (
            "m",
            "app.ask('toggle_threads')",
            "Threads",
            "All threads together, or the first one's blocks",
        ),
        (
            "greater_than_sign",
            "app.ask('step_thread', 1)",
            "Next thread",
            "Blocks of the next thread only",
        ),
        (
            "less_than_sign",
            "app.ask('step_thread', -1)",
            "Thread before",
            "Blocks of the thread before only",
        ),
        (
            "T",
            "app.ask('toggle_all_processes')",
            "Together",
            "All processes together, those that run, one (--follow)",
        ),
        (
            "E",
            "app.ask('toggle_ended')",
            "Ended",
            "Processes that have ended: a line each, or one per parent",
        ),
        ("e", "app.ask('ask_export')", "Export", "Write the stacks to a file"),
        ("y", "app.ask('copy_stack')", "Copy", "Copy the row's stack to the clipboard"),
        ("P", "app.ask('leave', True)", "Processes", "Back to the list of processes"),
        ("escape", "back", "Back", "One step back"),
    ),
    shown={"q", "question_mark", "slash", "f", "s", "b", "M", "space", "e"},
    first="slash",
)


def view_keys(views: Iterable[View[Any]]) -> list[Binding]:
    """What brings each view on top."""
    rows = [(v.key, f"view('{v.name}')", v.title, f"Show {v.title}") for v in views]
    return bindings("live", rows, shown=())
