"""The names of the programs in ``probes/``, by what is traced."""

from __future__ import annotations

from typing import Final

from tracelloc.record.mallocs.signatures import ALLOCATOR_PROGRAM, FREE_PROGRAM, MAPPING_PROGRAM

PROGRAMS: Final = (
    ALLOCATOR_PROGRAM,
    FREE_PROGRAM,
    "loader_changes",
    "exception_enter",
    "do_nothing",
)
"""The programs for uprobes in ``probes/heap.bpf.c``."""

OTEL_PROGRAMS: Final = ("otel_alloc", "otel_free", "loader_changes", "do_nothing")
"""Uprobe programs for programs that report their own allocations: ``probes/otel.bpf.c``."""
TRACEPOINTS: Final = {"process_execs": "sched_process_exec", "process_forks": "task_newtask"}
"""Programs that run for every process, and their raw tracepoints; the second is attached
only if children are followed."""


def program_names(*, mappings: bool, otel: bool) -> tuple[str, ...]:
    """Returns the names of the uprobe programs to load."""
    names = OTEL_PROGRAMS if otel else PROGRAMS
    return (*names, MAPPING_PROGRAM) if mappings else names
