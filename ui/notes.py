"""What narrows the views, and why there is nothing in one: in words."""

from __future__ import annotations

from tracelloc.ui.picture import Picture
from tracelloc.ui.settings import TREES, describe_limits
from tracelloc.views.calltree import Metric


def notes_of(picture: Picture) -> str:
    """For the line of the tabs."""
    settings = picture.settings
    notes = describe_limits(settings.limits)
    if settings.view in TREES and settings.metric is not Metric.BYTES:
        notes.append(f"by {settings.metric.value} (w)")
    if settings.baseline is not None:
        notes.append("since baseline (b)")
    if settings.difference is not None:
        notes.append(f"change {settings.difference.title} (d)")
    if settings.verdicts:
        notes.append(f"only {' or '.join(v.value for v in settings.verdicts)} (V)")
    if settings.search:
        notes.append(f"/{settings.search}: {picture.found:,}")
    if not settings.filters_on:
        notes.append("filters off (n)")
    if picture.names_pending:
        notes.append(f"naming {picture.names_pending:,} more")
    return "  ".join(notes)


def why_empty(picture: Picture) -> str:
    """Why a table has no row."""
    settings = picture.settings
    if settings.search or settings.verdicts:
        what = f"matches /{settings.search}" if settings.search else "is judged so"
        return f"nothing {what} (Esc shows all)"
    if settings.difference is not None:
        return f"nothing has changed from {settings.difference.title} (Esc goes back)"
    if settings.baseline is not None:
        return "nothing has come since the baseline and stayed (b switches it off)"
    if not settings.limits.is_open:
        return "no block within the limits (L changes them, Esc lifts them)"
    if picture.snapshot.events:
        return "everything that was allocated has been freed"
    return "no allocations seen yet: is the target idle?"
