"""What a view of the screen is. ``registry.VIEWS`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tracelloc.snapshots.snapshot import Wanted
from tracelloc.ui.lines import LineView

if TYPE_CHECKING:
    from tracelloc.ui.selection import Selection
    from tracelloc.ui.settings import Settings
    from tracelloc.ui.source import Source

C = TypeVar("C")

BASIC: Final = Wanted(blocks=True)
"""What the details of a stack need, whichever view is on top."""


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which column; none has an empty key."""

    column: str
    descending: bool = True


@dataclass(frozen=True, eq=False)
class View(Generic[C]):
    """One tab: how it is reached, made and drawn, and what choosing a row of it does.

    ``C`` is its content: made in the refresher's thread, never changed, shown in the other.
    """

    name: str
    """Unique; also the id of its widget."""
    title: str
    key: str
    """Brings it on top."""
    maker: Callable[[Source], Callable[[Selection], C]]
    """Called once per run; what it returns makes the content and may remember things. Views
    with the same maker share what it returns."""
    widget: Callable[[], LineView[C]]
    choose: Callable[[Any, Settings], int | Settings | None] = lambda _key, _settings: None
    """What Enter on the row of a key does: opens a stack, or goes to the first view with
    other settings."""
    wanted: Wanted = BASIC
    """What snapshots need to hold while it is on top."""
    keeps: bool = False
    """What its maker remembers is kept while other views are on top."""
    sorting: Sorting = Sorting("")
    """At first."""
    shows_stack: bool = False
    """Its rows stand for stacks, and the one under the cursor is shown below."""
    by_metric: bool = False
    """It is drawn by a metric."""
    exists: Callable[[Source], bool] = lambda _source: True
    """Whether a run has it."""
