"""Formats holders of heap blocks for reports and the screen, safe to print."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from tracelloc.model.blocks import (
    BlockHolders,
    BlockSum,
    HeapRoot,
    HolderPath,
    Keeper,
    PathStep,
    RootKind,
)
from tracelloc.model.codefiles import base_name
from tracelloc.show.presentation.blocktypes import class_text
from tracelloc.show.tables import json_of
from tracelloc.text import amount, format_duration, format_percent, format_size, plural, printable

WHOLE: Final = 0.999  # Below this part of the heap, a report says what it does not include
_LEAST_KEPT: Final = 0.01  # Share of the blocks that a keeper must keep to be named
_OLD_S: Final = 60.0  # Age of a finding from which a sentence says it


def root_text(root: HeapRoot) -> str:
    """Formats a root with its place: ``app::g_sessions (server)``."""
    places = []
    module = base_name(root.module)
    if root.file and root.line:
        places.append(f"{base_name(root.file)}:{root.line}")
    elif module and not root.name.startswith((f"{module}+", f"data of {module}")):
        places.append(module)
    if root.kind is RootKind.THREAD_LOCAL and root.module:
        threads = root.thread_ids
        whose = f"of thread {threads[0]}" if len(threads) == 1 else f"of {len(threads):,} threads"
        places.append(f"thread-local {whose}")
    if root.kind is RootKind.MODULE:
        places.append("several words")
    name = root.name.removesuffix("[abi:cxx11]")
    return printable(f"{name} ({', '.join(places)})" if places else name)


def step_text(step: PathStep) -> str:
    """Formats a step of a path: ``app::Session ×31,204``, ``3 blocks of 56 B``."""
    name = class_text(step.class_name)
    if not name:
        what = plural(step.count, "block") if step.count > 1 else "block"
        size = format_size(step.usable_bytes)
        return f"{what} of {size}" if step.usable_bytes else f"other {what}"
    return f"{name} ×{step.count:,}" if step.count > 1 else name


def path_text(path: HolderPath) -> str:
    """Formats a path: ``app::g_sessions (server) → 3 blocks of 56 B → app::Session ×31,204``."""
    steps = [*map(step_text, path.steps)]
    # Memory of no known purpose says nothing about the blocks that it points to.
    is_told = path.root.kind is not RootKind.MAPPING or not steps
    return " → ".join([root_text(path.root), *steps] if is_told else steps)


def blocks_text(blocks: BlockSum) -> str:
    """Formats a sum of blocks: ``340 MiB in 62,408 blocks``."""
    return amount(blocks.size_bytes, blocks.count)


def top_keeper_text(keeper: Keeper) -> str:
    """Formats the path to most of a keeper's blocks, and the keeper's other roots."""
    path = keeper.path
    if path is None:
        return root_text(keeper.root)
    text = path_text(path)
    if path.root != keeper.root:
        return f"{root_text(keeper.root)}, such as {text}"
    others = keeper.other_roots
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"{text}; also {root_text(others[0])}{more}"
    return f"{text}; also other roots" if keeper.is_shared else text


def keeper_text(keeper: Keeper, asked: BlockSum) -> str:
    """Formats a keeper and the blocks that freeing it would free, as a share of ``asked``."""
    name = root_text(keeper.root)
    if keeper.step is not None:
        name = f"the {step_text(keeper.step)} at {keeper.address:#x}"
    text = f"{name} keeps {blocks_text(keeper.retained)}"
    if asked.count == 1:
        return text
    if keeper.held.count == asked.count:
        return f"{text}, all of these included"
    return f"{text}, most of these included ({keeper.held.count:,} of {asked.count:,})"


def retained_by_message(found: BlockHolders, now_s: float) -> Iterator[str]:
    """Yields sentences on who keeps a suspect's old blocks, and what freeing that would free."""
    heap, whole = found.heap, found.blocks
    if not whole.count:
        return
    is_complete = heap.coverage >= WHOLE and not heap.swapped_bytes and not heap.pointers_left_out
    note = "" if is_complete else "; search incomplete"
    if now_s - heap.time_s >= _OLD_S:
        note += f" (found {format_duration(now_s - heap.time_s)} ago)"
    if not found.keepers or found.keepers[0].held.size_bytes < _LEAST_KEPT * whole.size_bytes:
        yield _shared_sentence(found, note)
        return
    keeper, text = found.keepers[0], ""
    if keeper.step is not None:
        text = f"the {step_text(keeper.step)} at {keeper.address:#x}, to which several roots lead"
        text += f", such as {root_text(keeper.root)}"
    else:
        of_root = [path for path in found.paths if path.root == keeper.root]
        main = max(of_root, key=lambda path: path.blocks.size_bytes, default=None)
        text = root_text(keeper.root) if main is None else _counted(main, found)
    if keeper.held.count < whole.count:
        text += f", {_share_text(keeper.held, whole)}"
    freed = format_size(keeper.retained.size_bytes)
    if freed != format_size(whole.size_bytes):
        text += f"; freeing that frees {freed}"
    yield f"held by {text}{note}"


def keeping_root_text(found: BlockHolders | None) -> str:
    """Returns the root that keeps a stack's old blocks, as text; empty if there is none."""
    if found is None or not found.keepers or found.keepers[0].step is not None:
        return ""
    return root_text(found.keepers[0].root)


def _shared_sentence(found: BlockHolders, note: str) -> str:
    whole = found.blocks
    if 2 * (whole.count - found.unreached.count) < whole.count or not found.paths:
        part = _share_text(found.unreached, whole)
        return f"no variable, stack or other root was found to lead to {part}{note}"
    main = found.paths[0]
    part = _share_text(main.blocks, whole)
    return f"no single root keeps most of it; {part} is pointed to by {_counted(main, found)}{note}"


def _share_text(part: BlockSum, whole: BlockSum) -> str:
    """Formats a share: ``all of it``, ``most of it (98 %)``; never rounded up to all."""
    if part.count == whole.count:
        return "all of it"
    percent = min(99, 100 * part.size_bytes // max(1, whole.size_bytes))
    word = "most" if percent > 50 else "some"
    return f"{word} of it ({percent} %)"


def _counted(path: HolderPath, found: BlockHolders) -> str:
    """Returns a path, without numbers of blocks if the blocks are only a sample."""
    if not found.is_sample:
        return path_text(path)
    return path_text(replace(path, steps=tuple(replace(step, count=1) for step in path.steps)))


# What a search of memory may have missed: what to make of it, by a ``{}`` for what is missing.

# For the heap that was not understood, pointers that did not fit, and swapped memory.
MissingWords = tuple[str, str, str]


def missing_lines(
    words: MissingWords, coverage: float = 1.0, notes: Iterable[str] = (),
    pointers_left_out: int = 0, swapped_bytes: int = 0,
) -> Iterator[str]:  # fmt: skip
    """Yields lines on why the result of a heap walk or search may be wrong; safe to print."""
    of_heap, of_pointers, of_swapped = words
    if coverage < WHOLE:
        yield of_heap.format(f"{format_percent(coverage)} of the heap was understood")
    yield from map(printable, notes)
    if pointers_left_out:
        yield of_pointers.format(f"{pointers_left_out:,} pointers did not fit into memory")
    if swapped_bytes:
        size = format_size(swapped_bytes)
        yield of_swapped.format(f"{size} of the process are swapped out and were not read")


# JSON.

_NAMES: Final = {"class_name": "class", "count": "blocks", "root": None}


def holders_facts(found: BlockHolders, without: str) -> dict[str, Any]:
    """Returns the holders of some blocks as JSON values, without the field ``without``."""
    names = {"unreached": "without_holder", **dict.fromkeys(("heap", "keepers", "paths", without))}
    return {
        **json_of(found, names),
        "kept_by": [keeper_facts(one) for one in found.keepers],
        "paths": [root_facts(one.root) | json_of(one, _NAMES) for one in found.paths],
    }


def root_facts(root: HeapRoot) -> dict[str, Any]:
    """Returns a root as JSON values."""
    return {
        "root": root.name, "file": root.file or None, "line": root.line or None,
        "kind": root.kind.value, "module": root.module or None, "threads": list(root.thread_ids),
    }  # fmt: skip


def keeper_facts(keeper: Keeper) -> dict[str, Any]:
    """Returns a keeper as JSON values, with the share of the searched blocks or with a path."""
    names: dict[str, str | None] = dict.fromkeys(("root", "step", "address", "path", "other_roots"))
    block = keeper.step and {**json_of(keeper.step, _NAMES), "address": keeper.address}
    found = {**root_facts(keeper.root), "block": block}
    if keeper.path is None:
        return found | json_of(keeper, {**names, "held": "asked", "is_shared": None})
    return {
        **found,
        **json_of(keeper, {**names, "held": None}),
        "other_roots": [root_facts(root) for root in keeper.other_roots],
        **json_of(keeper.path, {**_NAMES, "retained": None}),
    }
