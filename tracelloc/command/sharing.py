"""The part of the command line that is about results leaving: files, endpoint, push."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from tracelloc.command.argumenttypes import argument_type
from tracelloc.command.outputs import PRIVATE, Output
from tracelloc.errors import UsageError
from tracelloc.export import EXPORTERS
from tracelloc.live.address import PushConfig, parse_label, parse_listen, parse_push_url
from tracelloc.units import parse_duration
from tracelloc.views.metrics import METRICS, Metric


def add_files(parser: argparse.ArgumentParser) -> None:
    """``--flamegraph``, ``--pprof``, ``-o`` and how they are written."""
    add = parser.add_argument_group("files").add_argument
    add(
        "--flamegraph",
        metavar="FILE",
        help="write folded stacks to FILE at the end and on SIGUSR1; where there is no "
        "terminal, nothing but progress is shown without --text or --json",
    )
    add("--pprof", metavar="FILE", help="write a pprof profile to FILE at the same moments")
    add_output(add)
    add(
        "--since-mark",
        action="store_true",
        help="once SIGUSR2 has set a mark, write into these files what has come since "
        "(differences, as of tracelloc diff)",
    )


def add_output(add: Any) -> None:
    """``-o``, ``--metric`` and ``--output-mode``, for every command that writes files."""
    add(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help=f"write FILE; its suffix names the format: {', '.join(EXPORTERS)}; %%p in its name "
        "is the PID, %%t the time; can be given several times",
    )
    add(
        "--metric",
        choices=list(METRICS),
        default=Metric.BYTES.value,
        help="what files show, or show first: "
        f"{', '.join(metric.title for metric in Metric)} (default {Metric.BYTES.value})",
    )
    add(
        "--output-mode",
        type=_mode,
        default=PRIVATE,
        metavar="MODE",
        help="permissions of these files in octal (default 600: call stacks are confidential)",
    )


def add_live(parser: argparse.ArgumentParser) -> None:
    """``--listen`` and ``--push``."""
    add = parser.add_argument_group("live").add_argument
    add(
        "--listen",
        type=argument_type(parse_listen),
        metavar="[HOST:]PORT",
        help="answer HTTP while tracing, on this machine only unless HOST says otherwise: "
        "/debug/pprof/heap as Go programs do, /metrics as OpenMetrics, / as a flame graph; port "
        "0 takes a free one",
    )
    add(
        "--push",
        type=argument_type(parse_push_url),
        metavar="URL",
        help="send profiles to a Pyroscope-compatible server, http://[USER:PASSWORD@]HOST[:PORT]",
    )
    add(
        "--push-interval",
        type=argument_type(parse_duration),
        default=15.0,
        metavar="S",
        help="time between these profiles (default 15s)",
    )
    add("--push-name", metavar="NAME", help="application they belong to (default: the command)")
    add(
        "--push-label",
        type=argument_type(parse_label),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="label of these profiles, beside hostname and pid; can be given several times",
    )


def push_of(given: argparse.Namespace) -> PushConfig | None:
    """Where to push to. Raises UsageError."""
    if given.push is None:
        if given.push_name is not None or given.push_label:
            raise UsageError("--push-name and --push-label need --push URL")
        return None
    if not 1 <= given.push_interval <= 86400:
        raise UsageError("--push-interval must be between 1s and a day")
    url, authorization = given.push
    return PushConfig(
        url, authorization, given.push_interval, given.push_name, tuple(given.push_label)
    )


def outputs_of(given: argparse.Namespace) -> tuple[Output, ...]:
    """The files that were asked for. Raises UsageError."""
    outputs = []
    if getattr(given, "flamegraph", None):
        outputs.append(Output.flamegraph(given.flamegraph))
    if getattr(given, "pprof", None):
        outputs.append(Output.pprof(given.pprof))
    outputs.extend(Output.by_suffix(path) for path in given.output)
    metric = METRICS[given.metric]
    return tuple(replace(o, metric=metric, mode=given.output_mode) for o in outputs)


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise argparse.ArgumentTypeError(f"{text!r} is no file mode such as 640")
    return mode
