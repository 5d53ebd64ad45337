"""Which frames are noise: rules from TOML, applied when stacks are shown."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from tracelloc.errors import UsageError
from tracelloc.symbols import Frame

_MATCHES: Final = {
    "prefix": "^(?:{})",
    "suffix": "(?:{})$",
    "contains": "{}",
    "regex": "{}",
}
_SUBJECTS: Final = ("symbol", "module")
_KEYS: Final = frozenset(("pattern", "match", "on", "group", "why"))


@dataclass(frozen=True, slots=True)
class Rule:
    """Hides frames whose symbol or module a pattern is found in."""

    expression: re.Pattern[str]
    on: str
    group: str

    def hides(self, frame: Frame) -> bool:
        """Whether this frame is meant."""
        subject = frame.symbol if self.on == "symbol" else frame.module
        return subject is not None and self.expression.search(subject) is not None


class Filters:
    """Rules, with their verdict on each frame remembered."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self._verdicts: dict[tuple[str | None, str | None], bool] = {}

    def hidden(self, stack: Sequence[Frame]) -> list[bool]:
        """Per frame whether it is hidden. A stack of nothing but noise is shown whole."""
        hidden = [self._is_hidden(frame) for frame in stack]
        return [False] * len(hidden) if all(hidden) else hidden

    def _is_hidden(self, frame: Frame) -> bool:
        key = frame.symbol, frame.module
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = any(rule.hides(frame) for rule in self.rules)
        return verdict


def shipped_rules() -> list[Rule]:
    """The rules of the filters.toml that comes with the program."""
    text = (files("tracelloc") / "filters.toml").read_text(encoding="utf-8")
    return parse_rules(text, "filters.toml")


def read_rules(path: Path) -> list[Rule]:
    """The rules of a user's file. Raises UsageError naming file, rule and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"filters file {path} cannot be read: {reason}") from error
    return parse_rules(text, str(path))


def parse_rules(text: str, name: str) -> list[Rule]:
    """Rules from TOML; ``name`` stands for the file in errors. Raises UsageError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}") from error
    entries = document.pop("rule", [])
    if document:
        raise UsageError(f"{name}: unknown key {next(iter(document))!r}; it holds [[rule]] only")
    if not isinstance(entries, list):
        raise UsageError(f"{name}: write [[rule]], not [rule]")
    return [_parse_rule(entry, f"{name}: rule {n}") for n, entry in enumerate(entries, 1)]


def _parse_rule(entry: dict[str, object], where: str) -> Rule:
    for key, value in entry.items():
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(_KEYS))}")
        if not isinstance(value, str):
            raise UsageError(f"{where}: {key} must be a string")
    pattern = str(entry.get("pattern", ""))
    match = str(entry.get("match", "prefix"))
    on = str(entry.get("on", "symbol"))
    if not pattern:
        raise UsageError(f"{where}: pattern is missing")
    if match not in _MATCHES:
        raise UsageError(f"{where}: match is {match!r}; it can be {', '.join(_MATCHES)}")
    if on not in _SUBJECTS:
        raise UsageError(f"{where}: on is {on!r}; it can be {', '.join(_SUBJECTS)}")
    text = pattern if match == "regex" else re.escape(pattern)
    try:
        expression = re.compile(_MATCHES[match].format(text) if match != "regex" else text)
    except re.error as error:
        raise UsageError(f"{where}: pattern is no regular expression: {error}") from error
    return Rule(expression, on, str(entry.get("group", "")))
