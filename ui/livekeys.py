"""Keys of the main screen, with their descriptions in the help."""

from collections.abc import Iterable
from typing import Any, Final

from textual.binding import Binding

from tracelloc.ui.lineview import bindings
from tracelloc.ui.view import View

# fmt: off
LIVE_KEYS: Final = bindings(
    "live",
    (
        ("l", "list_source", "Source",
         "Show the source of the row's function, with live bytes per line"),
        ("M", "app.ask('set_mark')", "Mark", "Set a mark to compare with (d)"),
        ("d", "app.ask('next_difference')", "Changes",
         "Show what changed: since the last mark; between marks; off"),
        ("e", "app.ask('ask_export')", "Export", "Write the stacks to a file"),
        ("slash", "search", "Search", "Search names, files, modules (regex)"),
        ("question_mark", "app.ask('show_help')", "Help", "All keys"),
        ("q", "app.ask('leave')", "Quit", "Quit (detach, write files)"),
        ("f", "app.ask('show_filters')", "Filters", "Rules that hide or collapse frames"),
        ("n", "app.ask('toggle_filters')", "All filters", "Switch all filters off or on"),
        ("s", "sort", "Sort", "Sort by the next column"),
        ("S", "reverse", "Reverse", "Reverse the order"),
        ("t", "sort_by('bytes')", "Live bytes", "Sort by live bytes"),
        ("a", "sort_by('count')", "Block count", "Sort by blocks"),
        ("p", "sort_by('growth')", "Growth", "Sort by growth per minute"),
        ("r", "sort_by('rate')", "Rate", "Sort by allocations per second"),
        ("X", "sort_by('peak')", "Peak", "Show what was live at the heap's peak"),
        ("A", "sort_by('age')", "Age", "Sort by age"),
        ("v", "sort_by('verdict')", "Verdict", "Sort leak suspects first, then by live bytes"),
        ("V", "app.ask('next_verdicts')", "Suspects",
         "Show only suspects; again: only caches, busy, start-up; all"),
        ("b", "app.ask('toggle_baseline')", "Baseline",
         "Show only live blocks allocated from now on"),
        ("x", "app.ask('choose_span')", "Span",
         "Show only live blocks allocated in a span of time, chosen on the chart"),
        ("space", "freeze", "Freeze", "Freeze or resume the screen; tracing continues"),
        ("i", "invert", "Invert", "Invert flame graph and tree"),
        ("w", "metric", "Metric", "Show the next metric in flame graph and tree: bytes, blocks …"),
        ("L", "app.ask('ask_limits')", "Limits", "Show only blocks within limits of age and size"),
        ("m", "app.ask('toggle_threads')", "One thread", "Show blocks of all threads, or of one"),
        ("greater_than_sign", "app.ask('step_thread', 1)", "Next thread",
         "Show only blocks of the next thread"),
        ("less_than_sign", "app.ask('step_thread', -1)", "Previous thread",
         "Show only blocks of the previous thread"),
        ("T", "together", "Together", "All processes, the running ones, or one (--follow)"),
        ("D", "ended", "Ended", "Ended processes: one line each, or per parent"),
        ("y", "app.ask('copy_stack')", "Copy", "Copy the row's stack to the clipboard"),
        ("P", "app.ask('choose_process')", "Choose process",
         "Choose another process; tracing continues until then"),
        ("escape", "back", "Back", "One step back"),
    ),
    shown={"l", "M", "d", "e", "slash", "question_mark", "q"},
    first=("slash",),
)
# fmt: on


def view_keys(views: Iterable[View[Any]]) -> list[Binding]:
    """Returns the keys that show each view."""
    rows = [(v.key, f"view('{v.name}')", v.title, f"Show {v.title}") for v in views]
    return bindings("live", rows, shown=())
