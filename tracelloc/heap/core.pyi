from typing import Any

import numpy as np
import numpy.typing as npt

from tracelloc.heap.stackids import StackIds

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

NEED_STACK: int
NEED_ROOM: int
NEED_ROW: int
NEED_MEMORY: int

class Core:
    count: int
    held: int
    peak_ns: int
    peak_bytes: int | None
    unmatched: int
    reuses: int
    odd_restores: int
    unordered: int
    thread_count: int
    need: int
    missing_row: int
    room: int
    def __init__(
        self,
        ids: StackIds,
        mean: float,
        between: int,
        soon_ns: int,
        most_threads: int,
        most_flows: int,
        shortest_ns: int,
    ) -> None: ...
    def bind_figures(self, columns: list[I64]) -> None: ...
    def bind_slices(self, starts: I64, row_of: I64, load: I64, unmatched: I64) -> None: ...
    def bind_row(self, at: int, row: I64) -> None: ...
    def survey(self, records: npt.NDArray[Any]) -> tuple[int, bool]: ...
    def run(self, records: npt.NDArray[Any], at: int, in_order: bool, late: bool) -> int: ...
    def end_batch(self, in_order: bool, time_ns: int) -> None: ...
    def pass_by(self, pairs: npt.NDArray[Any], at: int) -> int: ...
    def watch(self, begins: bool) -> None: ...
    watched_count: int
    def note_addresses(self, records: npt.NDArray[np.uint8]) -> None: ...
    def stacks_at(self, addresses: U64, stacks: npt.NDArray[np.int64]) -> None: ...
    def find_watched(self, addresses: U64, watched: npt.NDArray[np.uint8]) -> None: ...
    def add_earlier(
        self,
        addresses: U64,
        sizes: U64,
        stacks: U32,
        added: npt.NDArray[np.uint8],
        at: int,
        time_ns: int,
    ) -> int: ...
    def explain_frees(self) -> None: ...
    def inherit(self, count: int, size: int) -> None: ...
    def forget_blocks(self) -> None: ...
    def fork(self, ids: StackIds, held: int, time_ns: int) -> Core: ...
    def gains(self, count: I64, size: I64) -> None: ...
    def copy_blocks(
        self, at: int, born_by: int, least: int, with_earlier: bool, *columns: U64 | U32
    ) -> tuple[int, int, int, int]: ...
    def thread_rows(self, rows: I64) -> None: ...
    def flow_rows(self) -> list[tuple[int, int, int, int]]: ...
