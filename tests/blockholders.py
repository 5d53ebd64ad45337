"""Made-up holders of blocks."""

from typing import Final

from tracelloc.model.blocks import (
    BlockHolders,
    BlockSum,
    HeapCoverage,
    HeapRoot,
    HolderPath,
    Keeper,
    PathStep,
    RootKind,
)

HEAP: Final = HeapCoverage(0.0, BlockSum(10, 1000), BlockSum())
SESSIONS: Final = HeapRoot(RootKind.VARIABLE, "app::g_sessions", "/srv/server")
STEPS: Final = (PathStep("", 56, 3), PathStep("Session", 0, 1))
PATH: Final = HolderPath(SESSIONS, STEPS, BlockSum(1, 104), 0x5000, BlockSum(4, 300))
_KEEPER: Final = Keeper(SESSIONS, None, 0, BlockSum(1200, 160_000), BlockSum(1000, 104_000))
_BLOCK: Final = Keeper(
    SESSIONS, PathStep("", 4096, 1), 0x5000, BlockSum(1100, 150_000), BlockSum(950, 98_800)
)
# The holders of a suspect's blocks: one variable, and a block behind it.
KEPT: Final = BlockHolders(
    HEAP, BlockSum(1000, 104_000), BlockSum(), BlockSum(1000, 104_000),
    (HolderPath(SESSIONS, STEPS, BlockSum(1000, 104_000), 0x5000, BlockSum(4, 300)),),
    (_KEEPER, _BLOCK),
)  # fmt: skip
