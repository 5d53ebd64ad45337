"""What narrows the views, in words."""

from __future__ import annotations

from tracelloc.ui.picture import Picture
from tracelloc.ui.settings import describe_limits
from tracelloc.views.metrics import Metric


def notes_of(picture: Picture) -> str:
    """For the line of the tabs."""
    settings = picture.settings
    notes = describe_limits(settings.limits)
    if settings.view.by_metric and settings.metric is not Metric.BYTES:
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
