"""How long do 10,000 distinct call stacks of 40 frames take to become readable?

Their frames are functions of this very process, which loads bcc and so LLVM, C++ and C.
Runs in a process of its own: ``python -m tests.bench.naming`` prints one JSON object.
"""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracelloc.files.elf.file import ElfFile
from tracelloc.record.kernel.compiler import import_bcc
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.symbolization.modulesymbols import ModuleSymbols
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.show.filters.files import load_filters
from tracelloc.show.presentation.naming import Namer
from tracelloc.system.invoker import invoker

STACKS = 10_000
FRAMES = 40
SITES = 20_000  # Distinct return addresses: stacks share most of their callers


def _sites(space: AddressSpace, order: np.random.Generator) -> list[int]:
    """Addresses in named functions of every mapped file, in proportion to how many it has."""
    functions = []
    for module in space.modules:
        table = ElfFile(os.dup(module.elf.descriptor())).symbols
        base = next((m for m in space.mappings if m.path == module.path and m.offset == 0), None)
        if base is not None:
            starts = table._address.tolist()
            functions += [base.start + start + 2 for start in starts if start]
    picked = order.choice(len(functions), SITES, replace=len(functions) < SITES)
    return [functions[n] for n in picked.tolist()]


def _seconds_for(namer: Namer, snapshot: Any) -> float:
    began_s = time.perf_counter()
    namer.prepare(snapshot, range(STACKS))
    for index in range(STACKS):
        namer.stack(snapshot, index)
    return time.perf_counter() - began_s


def measure() -> dict[str, Any]:
    """The figures, in this process. Lines are left out and measured apart."""
    import_bcc()
    order = np.random.default_rng(1)
    space = AddressSpace(Process(os.getpid()))
    space.refresh()
    symbolizer = Symbolizer(space)
    began_s = time.perf_counter()
    sites = _sites(space, order)
    load_s = time.perf_counter() - began_s
    # Towards the root, stacks are alike.
    picks = order.integers(0, SITES, (STACKS, FRAMES)) % np.geomspace(SITES, 2, FRAMES).astype(int)
    stacks = [tuple(sites[n] for n in row) for row in picks.tolist()]
    assert len(set(stacks)) == STACKS
    snapshot = SimpleNamespace(frames=stacks.__getitem__, why_partial=lambda index: None)
    filters, _ = load_filters([], [], standing=True, who=invoker({"HOME": "/nonexistent"}))
    namer = Namer(symbolizer, filters)
    with_lines_s = None
    may_have_lines = ModuleSymbols.may_have_lines
    ModuleSymbols.may_have_lines = False  # type: ignore[assignment]
    cold_s = _seconds_for(namer, snapshot)
    warm_s = min(_seconds_for(namer, snapshot) for _ in range(5))
    ModuleSymbols.may_have_lines = may_have_lines  # type: ignore[method-assign]
    again = Symbolizer(space)
    began_s = time.perf_counter()
    again.prepare(sites)
    with_lines_s = time.perf_counter() - began_s
    frames = again.peek(sites)
    again.close()
    symbolizer.close()
    return {
        "stacks": STACKS,
        "frames": FRAMES,
        "distinct_addresses": len({a for stack in stacks for a in stack}),
        "load_tables_s": load_s,
        "cold_s": cold_s,
        "warm_s": warm_s,
        "with_lines_s": with_lines_s,
        "share_with_lines": sum(frame.line is not None for frame in frames) / len(frames),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
