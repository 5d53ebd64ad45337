"""The manual: Markdown files shipped with tracelloc, one per topic."""

import re
import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import Final

_DOCS = files("tracelloc") / "docs"

_START: Final = """\
# Start here

1. `tracelloc top`: which process grows
2. `sudo tracelloc leaks -p PID`: what a running process has lost already, by size and structure
3. `sudo tracelloc holders -p PID`: what keeps the rest of its memory
4. `sudo tracelloc -p PID`: which call stacks leak, on the screen; `--text` for a log
5. `tracelloc run --leaks -- CMD`: what a test program leaked at its end, without root

`-n NAME` takes a name in place of a PID, and either may stand alone: `tracelloc leaks shop`.
`-- CMD` starts a program under tracing. `tracelloc doctor` tells what works here.
"""
# Topics by what they are about.
_GROUPS: Final = {
    "Begin": ("tutorial", "rootless"),
    "Look": ("watch", "screen", "reports", "verdicts", "leaks", "memory", "python"),
    "What is traced": ("processes", "allocators"),
    "Tests, files and other programs": ("ci", "agents", "exports", "api"),
    "When something is wrong": ("troubleshooting", "cost", "security"),
    "Background": ("measurements", "internals"),
}  # fmt: skip
# What else is found, by any of the words: a topic, or a section of one.
_FOUND_BY: Final = {
    "tutorial": "start begin example guide",
    "rootless": "container docker podman sudo root privilege capabilities seccomp unprivileged",
    "rootless#When probes": "preload lane ld_preload",
    "rootless#A service that can": "library-path",
    "rootless#Inject": "inject",
    "watch#top": "top cgroup",
    "watch#watch": "daemonset rule",
    "watch#Killed": "oom killed oom-killer",
    "watch#Prometheus": "prometheus grafana metrics",
    "watch#As a service": "systemd service",
    "screen": "key tui shortcut thread",
    "reports": "text log report",
    "reports#Blocks": "before earlier",
    "reports#Rules": "suppression known ignore fail-if on-leak hook alert",
    "reports#Signals": "exit status signal detach quit",
    "reports#Names": "symbols debuginfo dwarf lines names stack source inline stripped",
    "reports#Filters": "filters hidden",
    "verdicts": "growing cache confidence suspect leaking false minute",
    "verdicts#Glossary": "glossary word term",
    "leaks": "memleak lost",
    "leaks#Holders": "holders retained dominator path",
    "memory": "heap rss fragmentation arena trim swap malloc_trim",
    "memory#Heaps of": "jvm v8 metaspace",
    "python#Objects": "objects tracemalloc",
    "python#An inference": "vllm inference llm",
    "processes": "follow children fork exec wait attach running",
    "processes#Limits of": "gdb debugger strace ptrace",
    "processes#All processes": "group pod",
    "processes#Containers": "containers",
    "processes#Kubernetes": "kubernetes k8s kubectl",
    "allocators": "jemalloc tcmalloc mimalloc musl glibc malloc pool static",
    "allocators#Memory": "mmap sbrk",
    "allocators#Programs that": "usdt gpu pytorch cuda",
    "allocators#By language": "recipes rust node php go java dotnet c++ language",
    "ci": "run sarif junit ctest cargo github gitlab valgrind sanitizer asan test",
    "ci#pytest": "pytest memray",
    "ci#Two versions": "regression compare",
    "agents": "mcp agent",
    "exports": "flamegraph pprof gperftools speedscope folded file",
    "exports#Recordings": "recordings record open merge recorder",
    "exports#Differences": "diff difference",
    "exports#HTTP": "http listen",
    "exports#Tables": "sql parquet duckdb csv",
    "exports#Push": "push pyroscope",
    "exports#OpenTelemetry": "opentelemetry otlp",
    "api": "module import notebook pandas",
    "api#JSON": "json schema jq",
    "api#What stays": "contract stable compatibility",
    "troubleshooting": "doctor error problem bcc debug version",
    "troubleshooting#Kernels": "kernel arm64",
    "cost": "overhead slow benchmark heaptrack massif perf",
    "cost#Making it cheaper": "sample sampling max-overhead",
    "cost#Exactness": "exactness exact overflow accuracy",
    "security": "permission safe safety hostile stop crash kill production",
}  # fmt: skip
ALIASES: Final = {word: found for found, words in _FOUND_BY.items() for word in words.split()}


def topics() -> list[str]:
    """Returns the names of all topics, in order."""
    names = (file.name for file in _DOCS.iterdir())
    return sorted(name.removesuffix(".md") for name in names if name.endswith(".md"))


def names() -> list[str]:
    """Returns all that can be shown: topics, words that lead to one, files of examples."""
    return sorted({*topics(), *ALIASES, *(file.name for file in (_DOCS / "files").iterdir())})


def find_topic(word: str) -> str:
    """Finds one of ``names`` by its beginning or plural. Raises ValueError, which suggests some."""
    known, lower = names(), word.lower()
    for name in (lower, f"{lower}s", lower.removesuffix("s")):
        if name in known:
            return name
    close = [name for name in known if name.startswith(lower)]
    if len({ALIASES.get(name, name) for name in close}) == 1:
        return close[0]
    meant = "tracelloc help lists the topics"
    if not close:
        whole = re.compile(rf"(?<!\w){re.escape(lower)}s?(?!\w)", re.IGNORECASE)
        counts = {topic: len(whole.findall(text_of(topic))) for topic in topics()}
        most = sorted(counts, key=counts.__getitem__)[:-4:-1]
        if found := ", ".join(topic for topic in most if counts[topic]):
            meant = f"the word is in {found}"
        else:
            close = get_close_matches(lower, known)
    if close:
        meant = f"did you mean {' or '.join(close[:4])}?"
    raise ValueError(f"there is no topic {word!r}; {meant}")


def text_of(name: str) -> str:
    """Returns a topic, a section of one, or an example's file; the first two are Markdown."""
    if "." in name:
        return (_DOCS / "files" / name).read_text(encoding="utf-8")
    topic, _, title = ALIASES.get(name, name).partition("#")
    text = (_DOCS / f"{topic}.md").read_text(encoding="utf-8")
    if not title:
        return text
    begin = text.index(f"\n## {title}") + 1
    section, *_ = text[begin:].partition("\n## ")
    return f"{section.rstrip()}\n\nFrom the page {topic}: `tracelloc help {topic}`\n"


def contents() -> str:
    """Returns the first steps, and the topics with their titles by group, as Markdown."""
    lines = [_START, "# tracelloc help TOPIC, SUBCOMMAND or any word"]
    for title, group in _GROUPS.items():
        lines += ["", f"| {title} | |", "|---|---|"]
        lines += [f"| {topic} | {text_of(topic)[2:].splitlines()[0]} |" for topic in group]
    return "\n".join([*lines, "", "`tracelloc --help-all` lists all options."]) + "\n"


def show(name: str | None) -> None:
    """Prints one of ``names`` or the list of topics, rendered on a terminal, else as it is."""
    text = contents() if name is None else text_of(name)
    if "." in (name or "") or not sys.stdout.isatty():
        sys.stdout.buffer.write(text.encode())
        return
    from rich.console import Console  # noqa: PLC0415 - comes with textual, for this alone
    from rich.markdown import Markdown  # noqa: PLC0415

    Console().print(Markdown(text, hyperlinks=False))
