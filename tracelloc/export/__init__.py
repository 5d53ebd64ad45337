"""File formats of a profile, by the suffix that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tracelloc.errors import UsageError
from tracelloc.export import flamegraph, jsonfile, pprof
from tracelloc.export.listings import write_csv, write_folded, write_speedscope, write_trace
from tracelloc.snapshots.snapshot import NOTHING_ELSE, Snapshot, Wanted
from tracelloc.views.combined import profile_of
from tracelloc.views.naming import Namer
from tracelloc.views.profile import Metric, Profile

__all__ = ["EXPORTERS", "FOLDED", "PPROF", "Exporter", "exporter_for"]


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format."""

    name: str
    """What it is, for people."""
    write: Callable[[Profile, Metric], Iterator[bytes]]
    """The file's content in pieces. The metric is what it shows, or shows first."""
    one_metric: bool = False
    """Whether it holds figures of one metric only."""
    wanted: Wanted = NOTHING_ELSE
    """What a snapshot must have for all that it can hold."""

    def needs_freed(self, metric: Metric) -> bool:
        """Whether stacks that hold nothing any more are in it."""
        return metric.figure.of_freed or not self.one_metric

    def __call__(
        self, snapshot: Snapshot, namer: Namer, metric: Metric = Metric.BYTES
    ) -> Iterator[bytes]:
        """The file of a snapshot; waits for names."""
        return self.write(profile_of(snapshot, namer, freed=self.needs_freed(metric)), metric)


FOLDED: Final = Exporter("folded stacks", write_folded, one_metric=True)
PPROF: Final = Exporter("pprof", pprof.write)

EXPORTERS: Final[dict[str, Exporter]] = {
    ".fg": FOLDED,
    ".folded": FOLDED,
    ".svg": Exporter("flame graph as an SVG picture", flamegraph.write_svg, one_metric=True),
    ".html": Exporter("interactive flame graph as an HTML page", flamegraph.write_html),
    ".pb.gz": PPROF,
    ".speedscope.json": Exporter("speedscope", write_speedscope),
    ".trace.json": Exporter("Chrome or Perfetto trace of live bytes", write_trace),
    ".json": Exporter("full snapshot as JSON", jsonfile.write, wanted=Wanted(threads=True)),
    ".csv": Exporter("table of stacks as CSV", write_csv),
}
"""By suffix; where one ends in another, the longer one comes first."""


def exporter_for(path: str) -> Exporter:
    """The exporter that a file name's suffix stands for. Raises UsageError."""
    for suffix, exporter in EXPORTERS.items():
        if path.endswith(suffix):
            return exporter
    known = ", ".join(EXPORTERS)
    raise UsageError(f"{path}: unknown suffix", hint=f"known are {known}")
