"""The part of the command line that says what is traced, and how."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tracelloc.capture.attach import Method
from tracelloc.command.argumenttypes import (
    entries_type,
    frames_type,
    names_type,
    pid_type,
    positive_type,
    size_type,
)


def add_tracing(parser: argparse.ArgumentParser) -> None:
    """Which processes, and which of their allocations."""
    add = parser.add_argument_group("what is traced").add_argument
    add("-p", "--pid", type=pid_type, metavar="PID", help="process to trace (default: ask)")
    add(
        "-n",
        "--name",
        metavar="NAME",
        help="process to trace by its short name or its program's; if there are several they "
        "are listed",
    )
    _add_processes(add)
    _add_allocations(add)


def _add_processes(add: Callable[..., object]) -> None:
    add(
        "--follow",
        nargs="?",
        const=frozenset(),
        type=names_type,
        metavar="NAME,...",
        help="trace its children as well, each with a table of its own (default: the process "
        "alone), or only those that run a command of these names; no debugger can be used on "
        "them meanwhile",
    )
    add(
        "--follow-limit",
        type=positive_type,
        default=256,
        metavar="N",
        help="trace N processes at a time, and count further ones (default 256)",
    )
    add(
        "--as-root",
        action="store_true",
        help="run CMD as root where sudo runs tracelloc (default: as the user who called sudo)",
    )
    add(
        "--program-output",
        type=Path,
        metavar="FILE",
        help="copy what CMD writes to FILE, where the screen shows it",
    )


def _add_allocations(add: Callable[..., object]) -> None:
    add(
        "--allocator",
        metavar="NAME|PATH",
        help="trace only the allocator in files whose name contains NAME, or in PATH "
        "(default: every one found)",
    )
    add(
        "--allocators",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="TOML file that names functions of pools and other allocators to be traced as well; "
        "can be given several times",
    )
    add(
        "--mmap",
        action="store_true",
        help="show memory that the program maps by itself (mmap, mremap, sbrk), apart from "
        "blocks; lengths are whole pages",
    )
    _add_sizes(add)


def _add_sizes(add: Callable[..., object]) -> None:
    add(
        "--min-size",
        type=size_type,
        default=0,
        metavar="SIZE",
        help="ignore smaller allocations (default 0)",
    )
    add(
        "--max-size",
        type=size_type,
        metavar="SIZE",
        help="ignore larger allocations (default: no limit)",
    )
    add(
        "--sample",
        type=size_type,
        metavar="SIZE",
        help="report about one allocation per SIZE allocated bytes and estimate the rest, for "
        "targets that must not pay for every stack (default: report all, exactly)",
    )


def add_probes(parser: argparse.ArgumentParser) -> None:
    """Buffers, call stacks, ways of attaching."""
    add = parser.add_argument_group("how it is traced").add_argument
    add(
        "--events-size",
        type=size_type,
        default=8 << 20,
        metavar="SIZE",
        help="buffer between probes and reader (default 8MiB)",
    )
    add(
        "--spill-entries",
        type=entries_type,
        default=1 << 18,
        metavar="N",
        help="addresses whose changes are kept while that buffer is full, at about 128 bytes of "
        "kernel memory each while they are (default 262144; 0: events are lost then)",
    )
    add(
        "--stacks",
        choices=["auto", "cfi", "fp"],
        default="auto",
        help="how call stacks are found: by call-frame information, which needs no frame "
        "pointers, or by frame pointers alone (default auto: the first, with frame pointers "
        "for code that has no such information)",
    )
    add(
        "--max-frames",
        type=frames_type,
        default=127,
        metavar="N",
        help="deepest call stack kept, up to 512 frames (default 127)",
    )
    add(
        "--attach",
        choices=["auto", *(method.value for method in Method)],
        default="auto",
        help="how probes are attached: uprobe_multi links (Linux 6.6) or perf events "
        "(default: links where the kernel has them)",
    )
