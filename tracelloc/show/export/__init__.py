"""File formats of a profile, by the suffix that asks for them; read in when a file is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tracelloc.errors import UsageError
from tracelloc.model.wanted import NOTHING_ELSE, Wanted
from tracelloc.show.presentation.profile import Metric, Profile

if TYPE_CHECKING:
    from tracelloc.show.presentation.naming import Namer
    from tracelloc.snapshots.snapshot import Snapshot

__all__ = ["EXPORTERS", "FOLDED", "FORMATS", "PPROF", "Exporter", "check_otlp", "exporter_for"]


@dataclass(frozen=True, slots=True)
class Exporter:
    """A file format."""

    name: str
    """The word for it on the command line."""
    title: str
    """What it is, for people."""
    module: str
    """The module of this package that writes it."""
    function: str = "write"
    """The function in it, from ``Profile`` and ``Metric`` to pieces of bytes."""
    one_metric: bool = False
    """Whether it holds figures of one metric only."""
    wanted: Wanted = NOTHING_ELSE
    """What a snapshot must have for all that it can hold."""
    is_binary: bool = False
    """Whether it makes no sense on a terminal."""
    needs_otlp: bool = False
    """Whether it needs the definitions of OTLP."""

    def check(self) -> None:
        """Raises UsageError if it can't be written here."""
        if self.needs_otlp:
            check_otlp()

    def write(self, profile: Profile, metric: Metric) -> Iterator[bytes]:
        """The file's content in pieces. The metric is what it shows, or shows first."""
        module = import_module(f"{__name__}.{self.module}")
        write: Callable[[Profile, Metric], Iterator[bytes]] = getattr(module, self.function)
        return write(profile, metric)

    def needs_freed(self, metric: Metric) -> bool:
        """Whether stacks that hold nothing any more are in it."""
        return metric.figure.of_freed or not self.one_metric

    def __call__(
        self, snapshot: Snapshot, namer: Namer, metric: Metric = Metric.BYTES
    ) -> Iterator[bytes]:
        """The file of a snapshot; waits for names."""
        from tracelloc.show.presentation.combined import profile_of  # noqa: PLC0415 - options need none of it

        return self.write(profile_of(snapshot, namer, freed=self.needs_freed(metric)), metric)


FOLDED: Final = Exporter("folded", "folded stacks", "listings", "write_folded", one_metric=True)
PPROF: Final = Exporter("pprof", "pprof", "pprof", is_binary=True)

# fmt: off
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
    ".json": Exporter("snapshot", "full snapshot as JSON", "jsonfile",
        wanted=Wanted(threads=True)),
    ".otlp": Exporter("otlp", "OpenTelemetry profiles (OTLP)", "otlp", is_binary=True,
        needs_otlp=True),
    ".csv": Exporter("csv", "table of stacks as CSV", "listings", "write_csv"),
}
# fmt: on
"""By suffix, for every list of formats; where one ends in another, the longer one comes first."""
FORMATS: Final = {exporter.name: exporter for exporter in EXPORTERS.values()}
"""Exporters by name."""


def exporter_for(path: str) -> Exporter:
    """The exporter that a file name's suffix stands for. Raises UsageError.

    That is also said where it lacks what it needs.
    """
    for suffix, exporter in EXPORTERS.items():
        if path.endswith(suffix):
            exporter.check()
            return exporter
    known = ", ".join(EXPORTERS)
    raise UsageError(f"{path}: unknown suffix", hint=f"known are {known}")


def check_otlp() -> None:
    """Raises UsageError if OTLP can't be written here, or variables for it make no sense."""
    from tracelloc.show.export.definitions import check_definitions  # noqa: PLC0415 - for few
    from tracelloc.show.export.otelnames import service_attributes  # noqa: PLC0415

    check_definitions()
    service_attributes(os.environ)
