"""The manual: Markdown files shipped with tracelloc, one per topic."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.resources import files

_DOCS = files("tracelloc") / "docs"


def topics() -> list[str]:
    """Returns the names of all topics, in order."""
    names = (file.name for file in _DOCS.iterdir())
    return sorted(name.removesuffix(".md") for name in names if name.endswith(".md"))


def find_topic(word: str) -> str:
    """Finds a topic by its name or by an unambiguous prefix such as ``verdict``.

    Raises ValueError with a sentence that suggests a topic.
    """
    known = topics()
    beginning = [topic for topic in known if topic.startswith(word)]
    if word in known or len(beginning) == 1:
        return word if word in known else beginning[0]
    close = beginning or get_close_matches(word, known)
    meant = f"did you mean {' or '.join(close)}?" if close else "tracelloc help lists the topics"
    raise ValueError(f"there is no topic {word!r}; {meant}")


def text_of(topic: str) -> str:
    """Returns a topic as Markdown."""
    return (_DOCS / f"{topic}.md").read_text(encoding="utf-8")


def contents() -> str:
    """Returns the topics with their titles, as Markdown."""
    lines = ["# tracelloc help TOPIC", "", "| topic | about |", "|---|---|"]
    for topic in topics():
        title = text_of(topic).partition("\n")[0].removeprefix("# ")
        lines.append(f"| {topic} | {title} |")
    return "\n".join([*lines, "", "`tracelloc --help-all` lists all options."]) + "\n"


def show(topic: str | None) -> None:
    """Prints a topic or the list of topics, rendered on a terminal, else as Markdown."""
    text = contents() if topic is None else text_of(topic)
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(text.encode())
        return
    from rich.console import Console  # noqa: PLC0415 - comes with textual, for this alone
    from rich.markdown import Markdown  # noqa: PLC0415

    Console().print(Markdown(text, hyperlinks=False))
