"""File formats of profiles, by file suffix; a format is imported when a file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Final

from tracelloc.dataclass import dataclass
from tracelloc.errors import UsageError
from tracelloc.model.snapshotrequest import TOTALS_ONLY, SnapshotRequest
from tracelloc.show.presentation.profile import Metric, Profile

__all__ = ["EXPORTERS", "FOLDED", "FORMATS", "PPROF", "Exporter", "exporter_for"]


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format of profiles, and the module that writes it."""

    name: str  # Name on the command line
    title: str  # Name for people
    module: str  # The module of this package that writes it
    function: str = "write"  # The module's function from `Profile` and `Metric` to pieces of bytes
    one_metric: bool = False  # Whether it holds figures of one metric only
    # What a snapshot must contain to fill every field of the format.
    wanted: SnapshotRequest = TOTALS_ONLY
    is_binary: bool = False  # Whether it is unreadable on a terminal
    checked_by: str = ""  # The module's function for `check`; empty: it can always be written

    def check(self) -> None:
        """Raises UsageError if this format can't be written here."""
        if self.checked_by:
            getattr(import_module(f"{__name__}.{self.module}"), self.checked_by)()

    def write(self, profile: Profile, metric: Metric) -> Iterator[bytes]:
        """Yields the file's content in pieces; ``metric``: the one shown, or shown first."""
        module = import_module(f"{__name__}.{self.module}")
        write: Callable[[Profile, Metric], Iterator[bytes]] = getattr(module, self.function)
        return write(profile, metric)

    def needs_freed(self, metric: Metric) -> bool:
        """Whether the file includes stacks without live blocks."""
        return metric.figure.of_freed or not self.one_metric


FOLDED: Final = Exporter("folded", "folded stacks", "listings", "write_folded", one_metric=True)
PPROF: Final = Exporter("pprof", "pprof", "pprof", is_binary=True)

# fmt: off
# Exporters by suffix, in the order of every list of formats; longer suffixes come first.
EXPORTERS: Final[dict[str, Exporter]] = {
    ".fg": FOLDED,
    ".folded": FOLDED,
    ".svg": Exporter("svg", "flame graph as an SVG picture", "flamegraph", "write_svg",
        one_metric=True),
    ".html": Exporter("html", "interactive flame graph as an HTML page", "flamegraph",
        "write_html"),
    ".pb.gz": PPROF,
    ".speedscope.json": Exporter("speedscope", "speedscope", "listings", "write_speedscope"),
    ".trace.json": Exporter("trace", "Chrome or Perfetto trace of live bytes", "listings",
        "write_trace"),
    ".json": Exporter("snapshot", "full snapshot as JSON", "listings",
        "write_snapshot", wanted=SnapshotRequest(threads=True)),
    ".otlp": Exporter("otlp", "OpenTelemetry profiles (OTLP)", "otlp", is_binary=True,
        checked_by="check"),
    ".csv": Exporter("csv", "table of stacks as CSV", "table", "write_csv"),
    ".parquet": Exporter("parquet", "table of stacks as Parquet", "table", "write_parquet",
        is_binary=True, checked_by="check_parquet"),
}
# fmt: on
FORMATS: Final = {exporter.name: exporter for exporter in EXPORTERS.values()}


def exporter_for(path: str) -> Exporter:
    """Returns the exporter of a suffix. Raises UsageError, also if it lacks a package."""
    for suffix, exporter in EXPORTERS.items():
        if path.endswith(suffix):
            exporter.check()
            return exporter
    known = ", ".join(EXPORTERS)
    raise UsageError(f"{path}: unknown suffix", hint=f"known are {known}")
