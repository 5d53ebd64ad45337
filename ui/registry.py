"""The views there are, in the order of their tabs. Each says in its own module what it is."""

from __future__ import annotations

from typing import Any, Final

from tracelloc.ui.blocks import BLOCKS
from tracelloc.ui.flame import FLAME
from tracelloc.ui.histograms import AGES, SIZES
from tracelloc.ui.logview import LOG
from tracelloc.ui.output import OUTPUT
from tracelloc.ui.processes import PROCESSES
from tracelloc.ui.stacks import STACKS
from tracelloc.ui.threads import THREADS
from tracelloc.ui.tree import TREE
from tracelloc.ui.view import View

VIEWS: Final[tuple[View[Any], ...]] = (
    STACKS, BLOCKS, FLAME, TREE, SIZES, AGES, THREADS, LOG, PROCESSES, OUTPUT,
)  # fmt: skip
"""The first one is shown first."""
