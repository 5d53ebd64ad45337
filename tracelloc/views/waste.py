"""What the allocator gives beyond what was asked for, in words."""

from __future__ import annotations

from collections.abc import Iterator

from tracelloc.snapshots.usable import UsableSizes
from tracelloc.snapshots.waste import TotalWaste, Waste
from tracelloc.target.procfs import base_name
from tracelloc.text import format_size, printable


def waste_text(waste: Waste, about: str) -> str:
    """Of a bin, a size or a stack. ``about``: ``~`` before estimates."""
    known = f"{about}{format_size(waste.waste_bytes)} wasted ({waste.share:.1%})"
    if not waste.unknown_count:
        return known
    unknown = f"{about}{waste.unknown_count} of unknown usable size"
    return f"{known}, {unknown}" if waste.usable_bytes else unknown


def waste_line(sizes: UsableSizes, total: TotalWaste, about: str) -> str:
    """Of all blocks, with how their sizes became known and what speaks against them."""
    return printable(", ".join(_parts(sizes, total, about)))


def _parts(sizes: UsableSizes, total: TotalWaste, about: str) -> Iterator[str]:
    usable = format_size(total.waste.usable_bytes)
    yield f"usable sizes ({sizes.main.provider.value}): {about}{usable}"
    yield waste_text(total.waste, about)
    if total.header_bytes:
        yield f"{about}{format_size(total.header_bytes)} more in headers"
    if total.read_count:
        yield f"{about}{total.read_count} read from the process"
    if total.computed_count:
        yield f"{about}{total.computed_count} computed"
    why = why_uncertain(sizes)
    if why is not None:
        yield why


def why_uncertain(sizes: UsableSizes) -> str | None:
    """What speaks against usable sizes; None if nothing does."""
    main = sizes.main
    if not sizes.has_sizes:
        return f"those of {main.provider.value} in {base_name(main.file)} are not known"
    if main.others:
        others = ", ".join(main.others)
        return f"all blocks are taken for {main.provider.value}'s, there is also {others}"
    return None
