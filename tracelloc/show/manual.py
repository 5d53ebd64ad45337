"""The manual: Markdown files shipped with tracelloc, one per topic."""

import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import Final

_DOCS = files("tracelloc") / "docs"

_START: Final = """\
# Start here

1. `sudo tracelloc leaks -p PID`: what a running process has lost already, by size and structure
2. `sudo tracelloc -p PID`: which call stacks leak, on the screen; verdicts take a minute
3. `sudo tracelloc -p PID --text --interval 10 > log`: the same as a log
4. `sudo tracelloc -p PID -o heap.html`: a flame graph, written when Ctrl-C ends the trace
5. `sudo tracelloc -p PID --text --duration 5m --fail-if leak`: for scripts; status 3 after a leak

6. `tracelloc run --leaks -- CMD`: what a test program leaked at its end, without root

`-n NAME` takes a name in place of a PID, and either may stand alone: `tracelloc leaks shop`.
`-- CMD` starts a program under tracing.
"""
# Topics by what they are about; a topic that is in none of them is listed last.
_GROUPS: Final = {
    "Look": (
        "top", "watch", "screen", "reports", "verdicts", "leaks", "memory", "heap", "holders",
        "objects", "recipes",
    ),
    "What is traced": (
        "processes", "containers", "allocators", "python", "preload", "symbols", "filters",
    ),
    "Files and other programs": (
        "ci", "pytest", "agents", "api", "json", "exports", "recordings", "opentelemetry",
    ),
    "When something is wrong": ("troubleshooting", "exactness", "cost", "security"),
    "Background": ("glossary", "internals"),
}  # fmt: skip
# What else a topic may be called; plurals are found, too.
ALIASES: Final = {
    "docker": "containers", "kubernetes": "containers", "podman": "containers",
    "error": "troubleshooting", "kernel": "troubleshooting", "permission": "security",
    "flamegraph": "exports", "pprof": "exports", "pyroscope": "exports", "otlp": "opentelemetry",
    "growing": "verdicts", "cache": "verdicts", "confidence": "verdicts", "suspect": "verdicts",
    "key": "screen", "tui": "screen", "text": "reports", "log": "reports", "exit": "reports",
    "lane": "preload", "library": "preload", "ld_preload": "preload", "follow": "processes",
    "jemalloc": "allocators", "malloc": "allocators", "lost": "exactness",
    "usdt": "allocators", "gpu": "allocators", "pytorch": "allocators",
    "overhead": "cost", "slow": "cost", "debuginfo": "symbols", "names": "symbols",
    "sarif": "ci", "junit": "ci", "ctest": "ci", "cargo": "ci", "memray": "pytest", "mcp": "agents",
    "prometheus": "watch", "grafana": "watch", "oom": "watch", "daemonset": "watch",
    "root": "security", "word": "glossary", "rss": "memory",
    "import": "api", "module": "api", "contract": "api",
    "fragmentation": "memory", "arena": "memory", "retained": "holders",
}  # fmt: skip


def topics() -> list[str]:
    """Returns the names of all topics, in order."""
    names = (file.name for file in _DOCS.iterdir())
    return sorted(name.removesuffix(".md") for name in names if name.endswith(".md"))


def find_topic(word: str) -> str:
    """Finds a topic by name, alias or prefix. Raises ValueError, which suggests a topic."""
    known, lower = topics(), word.lower()
    alias = ALIASES.get(lower) or ALIASES.get(lower.removesuffix("s"))
    beginning = [topic for topic in known if topic.startswith(lower)]
    if lower in known or alias is not None or len(beginning) == 1:
        return lower if lower in known else alias or beginning[0]
    close = beginning or [
        ALIASES.get(each, each) for each in get_close_matches(lower, [*known, *ALIASES])
    ]
    if close:
        meant = f"did you mean {' or '.join(dict.fromkeys(close))}?"
    else:
        counts = {topic: text_of(topic).lower().count(lower) for topic in known}
        most = sorted(counts, key=counts.__getitem__)[:-4:-1]
        found = ", ".join(topic for topic in most if counts[topic])
        meant = f"the word is in {found}" if found else "tracelloc help lists the topics"
    raise ValueError(f"there is no topic {word!r}; {meant}")


def text_of(topic: str) -> str:
    """Returns a topic as Markdown."""
    return (_DOCS / f"{topic}.md").read_text(encoding="utf-8")


def contents() -> str:
    """Returns the first steps, and the topics with their titles by group, as Markdown."""
    grouped = {topic for group in _GROUPS.values() for topic in group}
    rest = tuple(topic for topic in topics() if topic not in grouped)
    lines = [_START, "# tracelloc help TOPIC"]
    for title, group in [*_GROUPS.items(), ("More", rest)]:
        if group:
            lines += ["", f"| {title} | |", "|---|---|"]
            lines += [f"| {topic} | {_title(topic)} |" for topic in group]
    return "\n".join([*lines, "", "`tracelloc --help-all` lists all options."]) + "\n"


def _title(topic: str) -> str:
    return text_of(topic).partition("\n")[0].removeprefix("# ")


def show(topic: str | None) -> None:
    """Prints a topic or the list of topics, rendered on a terminal, else as Markdown."""
    text = contents() if topic is None else text_of(topic)
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(text.encode())
        return
    from rich.console import Console  # noqa: PLC0415 - comes with textual, for this alone
    from rich.markdown import Markdown  # noqa: PLC0415

    Console().print(Markdown(text, hyperlinks=False))
