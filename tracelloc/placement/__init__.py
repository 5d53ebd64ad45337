"""Where on a function its probes sit, and which programs they run.

``places`` finds the cheap instruction at a function's beginning, ``exits`` the ends of those
that can't have a return probe, ``points`` makes the list of what is to be attached.
"""

from tracelloc.placement.places import Place, find_place, is_emulated
from tracelloc.placement.points import (
    LOADER_HOOK,
    Plan,
    ProbePoint,
    place_exceptions,
    place_loader,
    plan,
)

__all__ = [
    "LOADER_HOOK",
    "Place",
    "Plan",
    "ProbePoint",
    "find_place",
    "is_emulated",
    "place_exceptions",
    "place_loader",
    "plan",
]
