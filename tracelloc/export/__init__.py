"""File formats of a snapshot, by the suffix that asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from tracelloc.errors import UsageError
from tracelloc.export import folded
from tracelloc.snapshot import Snapshot
from tracelloc.view import Namer


class Exporter(Protocol):
    """Writes a snapshot in one format."""

    def __call__(self, snapshot: Snapshot, namer: Namer) -> Iterator[bytes]:
        """The file's content in pieces."""
        ...


EXPORTERS: Final[dict[str, Exporter]] = {".fg": folded.export, ".folded": folded.export}


def exporter_for(path: str) -> Exporter:
    """The exporter that a file name's suffix stands for. Raises UsageError."""
    for suffix, exporter in EXPORTERS.items():
        if path.endswith(suffix):
            return exporter
    known = ", ".join(EXPORTERS)
    raise UsageError(f"{path}: no format has this suffix", hint=f"known are {known}")
