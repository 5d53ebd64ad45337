"""How fast is the overflow map emptied, and how much kernel memory does it take?

Runs in a process of its own: ``python -m tests.bench.overflow`` prints one JSON object.
What the target pays is measured by storm.
"""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from tracelloc.heap.stacks import Stacks
from tracelloc.heap.table import LiveTable
from tracelloc.record.abi import SPILL_KEY_FIELDS, SPILLED_FIELDS, SpillFlag
from tracelloc.record.kernel.bpf import Capture
from tracelloc.record.kernel.bpfmaps import _BatchAttr
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.system import syscalls

ENTRIES = 1 << 18
STACKS = 1000
ROUNDS = 5
BPF_MAP_UPDATE_BATCH = 26


def _fill(map_fd: int, entries: int, address: int, parity: int) -> None:
    """Blocks that were born in this epoch."""
    keys = np.zeros(entries, np.dtype(SPILL_KEY_FIELDS))
    values = np.zeros(entries, np.dtype(SPILLED_FIELDS))
    numbers = np.random.default_rng(1).permutation(entries).astype(np.uint64)
    keys["address"], keys["parity"] = address + numbers * 64, parity
    values["size"], values["stack_id"] = 48, 1 + numbers % STACKS
    values["time_ns"], values["flags"] = 1 + numbers, SpillFlag.BORN
    attributes = _BatchAttr(
        keys=keys.ctypes.data, values=values.ctypes.data, count=entries, map_fd=map_fd
    )
    syscalls.bpf(BPF_MAP_UPDATE_BATCH, attributes)
    assert attributes.count == entries


def _kernel_bytes(map_fd: int) -> int:
    text = Path(f"/proc/self/fdinfo/{map_fd}").read_text()
    return int(re.search(r"^memlock:\s*(\d+)", text, re.MULTILINE)[1])


def measure(entries: int = ENTRIES) -> dict[str, Any]:
    """The figures, in this process. Best of some rounds, the first of which warms up."""
    capture = Capture(CaptureConfig(spill_entries=entries))
    map_fd = capture._bpf.map_fd("spill")
    table = LiveTable(Stacks())
    idle_bytes = _kernel_bytes(map_fd)
    full_bytes = 0
    drains_s, applies_s = [], []
    for number in range(ROUNDS):
        parity = number % 2
        _fill(map_fd, entries, 0x7F00_0000_0000 + (number << 32), parity)
        full_bytes = max(full_bytes, _kernel_bytes(map_fd))
        capture._control["full"][0][parity] = 1
        began_s = time.perf_counter()
        batch = capture.take_events()
        drained_s = time.perf_counter()
        table.apply(batch.events)
        applies_s.append(time.perf_counter() - drained_s)
        drains_s.append(drained_s - began_s)
        assert len(batch.events) == entries
    assert table.count == ROUNDS * entries
    capture.close()
    return {
        "entries": entries,
        "idle_bytes": idle_bytes,
        "full_bytes": full_bytes,
        "drained_entries_per_s": entries / min(drains_s),
        "applied_events_per_s": entries / min(applies_s),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
