"""Adds options to parsers: those of a trace by group, those of several commands. Argument types.

Types are functions for argparse's ``type`` that raise ``argparse.ArgumentTypeError`` with a
sentence on the error. The module imports nothing slow, so that help and usage errors are fast.
"""

import argparse
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tracelloc import __version__
from tracelloc.model.process import DEFAULT_POLICY, MOST_BETWEEN, TemporaryPolicy
from tracelloc.show.alerts.rules import FAILED_STATUS, ON_LEAK_PATIENCE_S, parse_rule
from tracelloc.show.export import EXPORTERS
from tracelloc.show.presentation.profile import METRICS, Metric
from tracelloc.show.publish import address
from tracelloc.show.report.optional import SECTIONS, parse_sections
from tracelloc.text import NS_PER_S, parse_duration, parse_percent, parse_size

_SEVERAL: Final[dict[str, Any]] = {"action": "append", "default": []}
# What ``--help`` lists, in few words; ``--help-all`` has the whole sentences.
_DAILY: Final = {
    "--pid": "process to trace (default: choose from a list)",
    "--name": "process to trace, by the name of program or script",
    "--follow": "trace child processes as well",
    "--text": "text reports (default without a terminal)",
    "--json": "JSON reports, one object per line",
    "--duration": "end after this time (default: on Ctrl-C)",
    "--output": "write FILE at the end: .html, .svg, .pb.gz, .json, …",
    "--fail-if": "end with status 3 on a leak, 'live > 2GiB', …",
    "--help": "show the common options and exit",
    "--help-all": "show all options and exit",
    "--version": "show the version and exit",
}


def type_of(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns an argparse type: errors show the ValueError's sentence, not the type's name."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def _whole(lowest: int, most: int | None = None, beyond: str = "") -> Callable[[str], int]:
    """Returns a type for whole numbers; ``beyond`` is the error for more than ``most``."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < lowest or len(text) > 18:
            raise ValueError(f"{text!r} is not a whole number of at least {lowest}")
        if most is not None and int(text) > most:
            raise ValueError(beyond.format(most))
        return int(text)

    return type_of(number)


duration_type, size_type = type_of(parse_duration), type_of(parse_size)
count_type, positive_type = _whole(0), _whole(1)
_between: Final = _whole(0, MOST_BETWEEN, "more than {} other allocations are not supported")


def is_pid(word: str) -> bool:
    """Whether a word is a PID rather than a name."""
    return word.isascii() and word.isdigit() and 0 < int(word[:19]) < 1 << 31


@type_of
def pid_type(text: str) -> int:
    """Parses a PID."""
    if not is_pid(text):
        raise ValueError(f"{text!r} is not a PID, a whole number of at least 1; -n takes a name")
    return int(text)


def _soon(text: str) -> TemporaryPolicy:
    """Parses the limit for temporary allocations: a number of allocations in between, or a time."""
    if text.isdigit():
        return TemporaryPolicy(_between(text))
    return TemporaryPolicy(life_ns=_duration_ns(text))


def _duration_ns(text: str) -> int:
    return round(parse_duration(text) * NS_PER_S)


def _names(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(","))
    if "" in names:
        raise ValueError(f"{text!r} is not a list of names such as nginx,php-fpm")
    return names


def _switch(text: str) -> tuple[str, bool]:
    name, _, switch = text.rpartition("=")
    if not name or switch not in ("on", "off"):
        raise ValueError(f"{text!r} is not NAME=on or NAME=off")
    return name, switch == "on"


def _directories(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    if not (old and new):
        raise ValueError(f"{text!r} is not OLD=NEW")
    return old, new


def _command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a command: {error}") from None
    if not words:
        raise ValueError("the command is empty")
    return words


class _ShowHelp(argparse.Action):
    """Prints the help and exits: all options for ``--help-all``, else the common ones."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more, nargs=0)

    def __call__(
        self, parser: argparse.ArgumentParser, _given: object, _value: object, flag: Any = None
    ) -> None:
        if flag != "--help-all":
            for action in parser._actions:
                flags = _DAILY.keys() & set(action.option_strings)
                action.help = _DAILY[flags.pop()] if flags else argparse.SUPPRESS
        parser.print_help()
        parser.exit()


def add_option(group: Any, form: str, about: str, **more: Any) -> None:
    """Adds an option; ``form``: names, then its argument, if any. One without any is a switch."""
    flags = [word for word in form.split() if word.startswith("-")]
    if taken := form.split()[len(flags) :]:
        more["metavar"] = taken[0]
    elif not more:
        more["action"] = "store_true"
    group.add_argument(*flags, help=about, **more)


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Adds all options of a trace to a parser."""
    groups = (
        ("what to trace", add_tracing), ("probes", add_probes), ("reports", _add_reports),
        ("output files", _add_files), ("watching", add_watch), ("network", _add_live),
        ("names and filters", add_names), ("help", _add_rest),
    )  # fmt: skip
    for title, add_group in groups:
        add_group(parser.add_argument_group(title))


def add_recordings(parser: argparse.ArgumentParser) -> None:
    """Adds recordings as positional arguments."""
    about = "recording; several are shown as one"
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help=about)


# fmt: off
def add_at(group: Any, what: str) -> None:
    """Adds ``--at``, for every command that shows a snapshot of a recording."""
    add_option(group, "--at TIME", f"{what} (default: the last one): 03:15, 03:15:30, "
        "2026-11-22T03:15, +90m from the start, or --at=-5m from the end")


def add_tracing(group: Any) -> None:
    """Adds the options that select what is traced."""
    add = partial(add_option, group)
    add("-p --pid PID", "process to trace (default: choose from a list)", type=pid_type)
    add("-n --name NAME", "process to trace, by its name in ps, its executable, its argv[0], or "
        "the script that an interpreter runs (app.py)", type=str)
    add("--group NAME", "trace all processes of a control group, now and later, each with its own "
        "figures: of a container (its name, or the first digits of its ID), a pod "
        "(NAMESPACE/NAME[/CONTAINER] or UID), a unit (nginx.service) or a path (/a/b); implies "
        "--follow", type=str, dest="group_name")
    add("--wait", "with -n: wait until a program of this name (in ps) is executed, and trace it "
        "from its first allocation; with --group: wait until the group has a process; implies "
        "--follow", dest="waits", action="store_true")
    add("--follow NAME,...", "trace child processes as well, also those that run already; with "
        "--follow=NAME,... only those that run these commands; no debugger can attach to any of "
        "them meanwhile", nargs="?", const=frozenset(), type=type_of(_names))
    add("--follow-limit N", "trace at most N processes at a time and count the others (default "
        "256)", dest="most_processes", type=positive_type, default=256)
    add("--as-root", "run CMD and hooks as root under sudo (default: as the user who called sudo)")
    add("--program-output FILE", "also write what CMD prints on the screen's Output tab to FILE",
        type=Path)
    add("--malloc NAME|PATH", "trace only the malloc library in files whose name contains NAME, "
        "or in PATH (default: all that are found)")
    group.add_argument("--allocator", dest="malloc", help=argparse.SUPPRESS)
    add("--allocators FILE", "TOML file with functions of custom allocators, and providers of USDT "
        "probes, to trace (repeatable)",
        dest="allocators_paths", type=Path, **_SEVERAL)
    add("--mmap", "also trace memory that the program maps itself (mmap, mremap, sbrk), in whole "
        "pages, reported separately from blocks", dest="trace_mappings", action="store_true")
    add("--min-size SIZE", "ignore smaller allocations (default 0)", dest="min_block_bytes",
        type=size_type, default=0)
    add("--max-size SIZE", "ignore larger allocations (default: no limit)",
        dest="max_block_bytes", type=size_type)
    add("--sample SIZE", "sample one allocation per SIZE bytes allocated, on average, and "
        "estimate the rest: less overhead, but estimates (default: every allocation)",
        dest="sample_bytes", type=size_type)
    add("--max-overhead PCT", "limit of the probes' CPU time, in percent of the program's own: "
        "once they have used up a minute's allowance, tracing ends, and files are written "
        "(default: no limit)", type=type_of(parse_percent))
    add("--earlier", "blocks that a running process allocated before tracing: count them by class "
        "and size, and follow their frees (on, the default), or ignore them (off)",
        choices=["on", "off"], default="on")
    add("--no-search", "do not read the program's memory: neither search it for pointers to old "
        "blocks, nor count Python's objects; verdicts take longer and are less certain",
        dest="reads_memory", action="store_false")


def _source(text: str) -> str:
    if text not in ("auto", "usdt") and not (text.startswith("usdt:") and text != "usdt:"):
        raise ValueError(f"{text!r} is not usdt, and not usdt: with the name of a provider")
    return text


def add_probes(group: Any) -> None:
    """Adds the options that select how processes are traced."""
    add = partial(add_option, group)
    add("--events-size SIZE", "largest size of the event ring between probes and reader (default "
        "8MiB: room for 131,072 events)", dest="events_size_bytes", type=size_type, default=8 << 20)
    add("--stacks", "how call stacks are unwound: by call-frame information, and by frame pointers "
        "in code that has none (auto, the default, and cfi), or by frame pointers alone (fp)",
        choices=["auto", "cfi", "fp"], default="auto")
    add("--max-frames N", "truncate call stacks deeper than N frames, at most 512 (default 127)",
        type=_whole(2, 512, "more than {} frames are not supported"), default=127)
    add("--max-memory SIZE", "limit of tracelloc's own memory (default: a tenth of what is "
        "available, but 512MiB where that is no more than a quarter); near the limit, new call "
        "stacks are truncated to their innermost frames; at the limit, tracing ends",
        type=size_type)
    # For tests and support.
    hidden = partial(group.add_argument, help=argparse.SUPPRESS)
    hidden("--attach", dest="method", default="auto", choices=["auto", "perf", "multi", "session"])
    hidden("--overflow-entries", dest="spill_entries", default=1 << 18,
        type=_whole(0, 1 << 24, "more than {} entries are not supported"))
    hidden("--max-stall", dest="max_stall_s", type=duration_type, default=1.0)
    add("--source usdt[:NAME]", "read the allocations that the program itself reports by the USDT "
        "probes of a provider: otel_memory (OpenTelemetry's samples), pytorch (memory of GPUs), or "
        "one of --allocators (default: only if nothing else can be probed)",
        type=type_of(_source), default="auto")
    add("--preload", "use the preloaded library instead of probes: on, where possible; auto "
        "(default), where possible and nothing else needs probes, such as functions of Python; "
        "off; inject, which puts it into the running process",
        choices=["auto", "off", "on", "inject"], default="auto")


def _add_reports(group: Any) -> None:
    add = partial(add_option, group)
    view = partial(add_option, group.add_mutually_exclusive_group())
    view("--tui", "interactive screen (default on a terminal, unless --count is given)")
    view("--text", "text reports on standard output (default without a terminal)")
    view("--json", "JSON reports, one object per line")
    add("--report FILE", "write reports to FILE (default: standard output; with -- CMD, standard "
        "error)", type=Path)
    add("--top N", "entries per section (default 2)", type=count_type, default=2)
    add("--show LIST", f"add sections to reports: {', '.join(SECTIONS)}, or all",
        type=type_of(parse_sections), default=frozenset())
    add("--temporary N|TIME", "an allocation is temporary if its own thread frees it after at "
        f"most N others (0 to {MOST_BETWEEN}, default {DEFAULT_POLICY.between}), or within TIME, "
        "such as 20ms", type=type_of(_soon),
        default=DEFAULT_POLICY)
    add("--age AGE", "list the largest live blocks that are at least this old", dest="min_age_ns",
        type=type_of(_duration_ns))
    add("--interval S", "time between reports (1s; in files and pipes 60s)", dest="interval_s",
        type=duration_type)
    add("--json-full", "repeat a stack's frames in each JSON report (default: only the first and "
        "the last report are complete, and one every 6 hours, as text reports are)")
    add("--count N", "end after N reports", type=positive_type)
    add("--duration S", "end after this time (default: when the process ends, or on Ctrl-C); a CMD "
        "that still runs then is waited for", dest="duration_s", type=duration_type)


def _add_files(group: Any) -> None:
    add = partial(add_option, group)
    add_output(group)
    add("--flamegraph FILE", "write folded stacks, whatever the suffix of FILE")
    add("--pprof FILE", "write a pprof profile, whatever the suffix of FILE")
    add("--since-mark", "write files as the difference from the mark that SIGUSR2 sets, once it "
        "is set")


def add_output(group: Any, what: str = "FILE at the end and on SIGUSR1") -> None:
    """Adds ``-o`` and ``--metric``, for every command that writes files."""
    add = partial(add_option, group)
    add("-o --output FILE", f"write {what} (repeatable); its suffix selects the "
        f"format: {', '.join(EXPORTERS)}; %%p in its name is the PID, %%t the time",
        **_SEVERAL)
    add("--metric", "the metric that files show, or show first: "
        f"{', '.join(metric.title for metric in Metric)} (default {Metric.BYTES.value})",
        choices=list(METRICS), default=Metric.BYTES.value)


def add_watch(group: Any) -> None:
    """Adds the options that end tracing or run a command when a rule is broken."""
    add = partial(add_option, group)
    add("--fail-if RULE", f"end with exit status {FAILED_STATUS} as soon as a report meets "
        "RULE: leak, 'leak > 1MiB/min', 'suspects > 1MiB/min', 'growth > 5MiB/min', "
        "'live > 2GiB', 'peak > 2GiB', 'rss > 4GiB' or 'lost > 1MiB' (repeatable)",
        type=type_of(parse_rule), **_SEVERAL)
    add("--on-leak COMMAND", "run COMMAND once for each leak, with its JSON on standard input, "
        f"without a shell and for at most {ON_LEAK_PATIENCE_S:g} s", type=type_of(_command))
    add("--suppressions FILE", "known leaks to suppress, lines of leak:PATTERN as in "
        "LeakSanitizer (repeatable)", type=Path, **_SEVERAL)


def _add_live(group: Any) -> None:
    add = partial(add_option, group)
    add("--listen [HOST:]PORT", "serve HTTP while tracing, on localhost unless HOST is "
        "given: a flame graph, /debug/pprof/heap, /metrics",
        type=type_of(address.parse_listen))
    add("--listen-token-file FILE", "answer only clients that send the token in the first line "
        f"of FILE (default: that in {address.LISTEN_TOKEN}, if it is set)", type=Path)
    add("--push URL", "send profiles to a Pyroscope-compatible server, "
        "https://[USER@]HOST[:PORT], or by OTLP, otlp+http://HOST:4318",
        type=type_of(address.parse_push_url))
    add("--push-password-file FILE", "the password for --push is the first line of FILE (default: "
        f"{address.PUSH_PASSWORD}, if it is set); without USER it is sent as a token", type=Path)
    add("--push-interval S", f"time between pushed profiles (default {address.PUSH_INTERVAL_S:g}s)",
        type=duration_type)
    add("--push-name NAME", "application name of pushed profiles (default: the command)")
    add("--push-label KEY=VALUE", "label or attribute of pushed profiles, besides hostname and pid "
        "(repeatable)",
        type=type_of(address.parse_label), **_SEVERAL)


def add_names(group: Any) -> None:
    """Adds the options that select how functions are named, and which are hidden."""
    add = partial(add_option, group)
    add("--filters FILE", "TOML file with more rules for hiding frames (repeatable)",
        dest="filters_paths", type=Path, **_SEVERAL)
    add("--filter-group NAME=on|off", "switch a group of filters, such as tokio or qt, on "
        "or off (repeatable)", dest="filter_groups", type=type_of(_switch), **_SEVERAL)
    add("--no-filters", "disable the built-in and your own filters; those of --filters FILE "
        "still apply", dest="use_filters", action="store_false")
    add_sources(group)


def add_plain(group: Any) -> None:
    """Adds ``--plain``, for every command with a screen."""
    add_option(group, "--plain", "a screen in ASCII, without boxes, chart and animation, for "
        "screen readers")


def add_sources(group: Any) -> None:
    """Adds ``--sources``, for every command that shows or records source lines."""
    add_option(group, "--sources OLD=NEW", "look in directory NEW for source files that were "
        "compiled in OLD (repeatable)", type=type_of(_directories), **_SEVERAL)


def add_quiet(group: Any) -> None:
    """Adds ``--quiet``, for every command."""
    add_option(group, "--quiet", "write only warnings and errors to standard error")


def _add_rest(group: Any) -> None:
    add = partial(add_option, group)
    add("-h --help", "show the common options and exit", action=_ShowHelp)
    add("--help-all", "show all options and exit", action=_ShowHelp)
    add_plain(group)
    add_quiet(group)
    add("--debug", "show tracebacks and compiler messages")
    add("--version", "show the version and exit", action="version",
        version=f"tracelloc {__version__}")
# fmt: on
