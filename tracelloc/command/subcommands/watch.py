"""Watches processes, and looks into what breaks rules on memory.

A file says which processes and control groups are watched, what they may take, and what happens if
they take more: a walk of the heap, a recording, pushed profiles, a command of yours. If the kernel
kills one of them for want of memory, a line says which call stacks held it. Prometheus can scrape
the memory of all processes and groups. tracelloc help watch describes the file.

To try it:
  tracelloc watch --listen 9476
"""

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from tracelloc.command.arguments import add_option, positive_type, type_of
from tracelloc.errors import UsageError
from tracelloc.show.publish.address import parse_listen
from tracelloc.text import plural

_EXAMPLES: Final = {
    "config": "watch.toml", "service": "tracelloc-watch.service",
    "alerts": "prometheus-alerts.yml", "dashboard": "grafana-dashboard.json",
    "kubernetes": "kubernetes.yaml", "sidecar": "kubernetes-sidecar.yaml",
    "debug": "kubernetes-debug.yaml",
}  # fmt: skip


# fmt: off
def add_arguments(parser: ArgumentParser) -> None:
    add = partial(add_option, parser)
    add("--config FILE", "TOML file with targets and rules", type=Path)
    add("--directory DIR", "where files are written (default: that in FILE, or /var/lib/tracelloc)",
        type=Path)
    add("--listen [HOST:]PORT", "serve /metrics for Prometheus, on localhost unless HOST is given",
        type=type_of(parse_listen))
    add("--check", "check FILE and end")
    add("--example NAME", f"print a file to begin with, and end: {', '.join(_EXAMPLES)}",
        choices=sorted(_EXAMPLES))
    add("--count N", "end after N looks (default: with Ctrl-C)", type=positive_type)
# fmt: on


def run(given: Namespace) -> None:
    from tracelloc.machine.machinerules import WatchConfig, parse_watch_config
    from tracelloc.machine.machinewatch import watch
    from tracelloc.record.kernel.capabilities import raise_file_limit
    from tracelloc.show.filters.files import given_text

    if given.example is not None:
        example = files("tracelloc") / "docs" / "files" / _EXAMPLES[given.example]
        print(example.read_text(), end="")
        return
    if given.config is None and given.listen is None:
        raise UsageError("--config or --listen is required", hint="tracelloc help watch")
    config = WatchConfig()
    if given.config is not None:
        config = parse_watch_config(given_text(given.config, "configuration"), str(given.config))
    if given.check:
        print(f"{given.config}: {plural(len(config.target), 'target')}")
        return
    changes = {"directory": given.directory, "listen": given.listen}
    config = replace(config, **{key: each for key, each in changes.items() if each is not None})
    raise_file_limit()
    watch(config, given.count)
