"""Filter rules and their TOML form, as the head of filters.toml describes it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NoReturn

from tracelloc.errors import UsageError
from tracelloc.filters.tomllines import Lines
from tracelloc.text import printable

LONGEST_SUBJECT: Final = 2048
"""Characters a regular expression gets to see: names can be 16 KiB, and are the target's."""


class Action(Enum):
    """What becomes of a frame that a rule matches."""

    HIDE = "hide"
    COLLAPSE = "collapse"
    """A run of such frames is shown as one, under the rule's own name for it."""
    CUT = "cut"
    """The frame and all that called it are hidden."""
    SHOW = "show"
    """An exception to earlier rules."""


class Match(Enum):
    """How a pattern is looked for."""

    PREFIX = "prefix"
    SUFFIX = "suffix"
    CONTAINS = "contains"
    REGEX = "regex"


class On(Enum):
    """What of a frame is matched."""

    SYMBOL = "symbol"
    TRAIT = "trait"
    """Of Rust's ``<TYPE as TRAIT>::function``."""
    MODULE = "module"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    pattern: str
    match: Match = Match.PREFIX
    on: On = On.SYMBOL
    action: Action = Action.HIDE
    label: str | None = None
    """What a collapsed run is called: the key ``as``."""
    group: str = ""
    why: str = ""

    def tester(self) -> Callable[[str], object]:
        """A function that tells whether a subject matches. Raises re.error."""
        pattern = self.pattern
        if self.match is Match.PREFIX:
            return lambda subject: subject.startswith(pattern)
        if self.match is Match.SUFFIX:
            return lambda subject: subject.endswith(pattern)
        if self.match is Match.CONTAINS:
            return lambda subject: pattern in subject
        search = re.compile(pattern).search
        return lambda subject: search(subject, 0, LONGEST_SUBJECT)

    def to_toml(self) -> str:
        """The rule as a ``[[rule]]``. Raises UsageError if TOML can't hold it."""
        keys = {
            "pattern": self.pattern,
            "match": self.match.value,
            "on": self.on.value,
            "action": self.action.value,
            "as": self.label,
            "group": self.group,
            "why": self.why,
        }
        lines = [f"{key} = {_quoted(value)}" for key, value in keys.items() if value]
        return "\n".join(["[[rule]]", *lines]) + "\n"


@dataclass(frozen=True, slots=True)
class RuleFile:
    """What one file says."""

    name: str
    rules: tuple[Rule, ...] = ()
    groups: Mapping[str, bool] = field(default_factory=dict)
    """Groups that it switches on or off, those of earlier files included."""
    lines: Callable[[], Lines] = field(default=lambda: Lines(""), compare=False)


_KEYS: Final = ("pattern", "match", "on", "action", "as", "group", "why")
_TOP_KEYS: Final = ("rule", "groups")


def parse_rules(text: str, name: str, *, trusted: bool = False) -> RuleFile:
    """The rules of a TOML text; ``name`` stands for the file in errors.

    Raises UsageError with file, line and key. The regular expressions of a ``trusted``
    text are not tried out: that is a test's work, and takes most of the time.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, reason = _toml_error(str(error), text)
        raise UsageError(f"{name}:{line}: this is not TOML: {reason}") from error
    except RecursionError as error:
        raise UsageError(f"{name}: this is not TOML: brackets are nested too deeply") from error
    return _Parser(text, name, trusted).parse(document)


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say of a word that isn't known: the one that was meant, or all there are."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where there is an error

    choices = list(known)
    close = get_close_matches(word, choices, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(choices)}" if choices else "there is none"


class _Parser:
    """Checks one document, and finds the lines of what is wrong."""

    def __init__(self, text: str, name: str, trusted: bool) -> None:
        self._text, self._name, self._trusted = text, name, trusted

    def parse(self, document: dict[str, Any]) -> RuleFile:
        for key in document:
            if key not in _TOP_KEYS:
                self._fail(self._lines().of(key), f"unknown key {key!r}", nearest(key, _TOP_KEYS))
        entries = document.get("rule", [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            self._fail(self._lines().of("rule"), "rule must be written as [[rule]]")
        rules = tuple(self._rule(index, entry) for index, entry in enumerate(entries))
        groups = document.get("groups", {})
        if not isinstance(groups, dict):
            self._fail(self._lines().of("groups"), "groups must be a table: [groups]")
        for group, switch in groups.items():
            if not isinstance(switch, bool):
                line = self._lines().of("groups", group)
                self._fail(line, f"groups: {group} must be true or false")
        return RuleFile(self._name, rules, groups, self._lines)

    def _rule(self, index: int, entry: dict[str, Any]) -> Rule:
        def fail(key: str, what: str, hint: str = "") -> NoReturn:
            line = self._lines().of_entry("rule", index, key)
            self._fail(line, f"rule {index + 1}: {what}", hint)

        for key, value in entry.items():
            if key not in _KEYS:
                fail(key, f"unknown key {key!r}", nearest(key, _KEYS))
            if not isinstance(value, str):
                fail(key, f"{key} must be a string")
        for key, kind in (("match", Match), ("on", On), ("action", Action)):
            choices = [member.value for member in kind]
            if key in entry and entry[key] not in choices:
                fail(key, f"{key} cannot be {entry[key]!r}", f"known are {', '.join(choices)}")
        if not entry.get("pattern"):
            what = "is empty: it would match every frame" if "pattern" in entry else "is missing"
            fail("pattern", f"pattern {what}")
        rule = Rule(
            entry["pattern"],
            Match(entry.get("match", "prefix")),
            On(entry.get("on", "symbol")),
            Action(entry.get("action", "hide")),
            entry.get("as"),
            entry.get("group", ""),
            entry.get("why", ""),
        )
        if rule.action is Action.COLLAPSE and not rule.label:
            fail("action", 'collapse needs a name for what it collapses: as = "…"')
        if rule.action is not Action.COLLAPSE and rule.label is not None:
            fail("as", f"as belongs to collapse, and this rule's action is {rule.action.value}")
        if rule.match is Match.REGEX and not self._trusted:
            try:
                rule.tester()
            except (re.error, OverflowError, RecursionError) as error:
                fail("pattern", f"pattern is no regular expression: {error}")
        return rule

    def _lines(self) -> Lines:
        return Lines(self._text)

    def _fail(self, line: int, what: str, hint: str = "") -> NoReturn:
        raise UsageError(f"{self._name}:{line}: {what}", hint=hint)


def _toml_error(message: str, text: str) -> tuple[int, str]:
    """Line and reason of tomllib's message, which ends in ``(at line 1, column 2)``, or
    ``(at end of document)``.
    """
    place = re.search(r" \(at line (\d+), column \d+\)$", message)
    if place is not None:
        return int(place[1]), printable(message[: place.start()])
    reason = message.removesuffix(" (at end of document)")
    return max(1, len(text.splitlines())), printable(reason)


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's, with DEL escaped too."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"{printable(text)!r} cannot be kept in a file: it is not Unicode"
        raise UsageError(what) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
