"""Filter rules and their TOML form, as the head of filters.toml describes it."""

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, NoReturn

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import UsageError
from tracelloc.text import printable

# Characters a regular expression sees; the target's names can be 16 KiB long.
LONGEST_SUBJECT: Final = 2048


class Action(Enum):
    """What a rule does with a matching frame."""

    HIDE = "hide"
    COLLAPSE = "collapse"  # A run of such frames is shown as one frame with the rule's label
    SHOW = "show"  # The frame is shown, as an exception to earlier rules


class Match(Enum):
    """How a rule's pattern is matched."""

    PREFIX = "prefix"
    REGEX = "regex"


class On(Enum):
    """The part of a frame that a pattern is matched against."""

    SYMBOL = "symbol"
    TRAIT = "trait"  # The trait in Rust's `<TYPE as TRAIT>::function`
    MODULE = "module"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Rule:
    """One filter rule: a pattern, and what happens to frames that match."""

    pattern: str  # Text or regular expression, see `match`
    match: Match = Match.PREFIX  # How the pattern is matched
    on: On = On.SYMBOL  # The part of a frame that is matched
    action: Action = Action.HIDE  # What happens to matching frames
    label: str | None = None  # Label of a collapsed run: the key `as`
    group: str = ""  # Group that switches the rule; empty: none
    why: str = ""  # Reason for the rule, in words

    def tester(self) -> Callable[[str], object]:
        """Returns a function that tests whether a subject matches. Raises re.error."""
        pattern = self.pattern
        if self.match is Match.PREFIX:
            return lambda subject: subject.startswith(pattern)
        search = re.compile(pattern).search
        return lambda subject: search(subject, 0, LONGEST_SUBJECT)

    def to_toml(self) -> str:
        """Formats the rule as a ``[[rule]]``. Raises UsageError if TOML can't represent it."""
        keys = {
            "pattern": self.pattern, "match": self.match.value, "on": self.on.value,
            "action": self.action.value, "as": self.label, "group": self.group, "why": self.why,
        }  # fmt: skip
        lines = [f"{key} = {_quoted(value)}" for key, value in keys.items() if value]
        return "\n".join(["[[rule]]", *lines]) + "\n"


@dataclass(frozen=True, slots=True)
class RuleFile:
    """Rules and switches of one file."""

    name: str
    rules: tuple[Rule, ...] = ()
    # Whether the file switches a group on, by the group's name; also groups of earlier files.
    groups: Mapping[str, bool] = field(default_factory=dict)
    text: str = field(default="", compare=False)  # The text of the file


_KEYS: Final = ("pattern", "match", "on", "action", "as", "group", "why")


def parse_rules(text: str, name: str, *, trusted: bool = False) -> RuleFile:
    """Parses rules; UsageErrors name file and line.

    Regular expressions of a ``trusted`` text are not compiled, which would take most of the time;
    a test does that.
    """
    return _Parser(text, name, trusted).parse()


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns a hint for an unknown word: the most similar known word, or all of them."""
    from difflib import get_close_matches  # noqa: PLC0415 - only where there is an error

    choices = list(known)
    close = get_close_matches(word, choices, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(choices)}" if choices else "there is none"


class TomlTables:
    """A TOML document that is a list of tables; reports errors with their lines."""

    def __init__(self, text: str, name: str, table: str, *others: str) -> None:
        """Allows the top-level keys ``table`` and ``others``. ``name``: in errors. UsageError."""
        self.text, self.name, self.table = text, name, table
        try:
            self.document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line, reason = _toml_error(str(error), text)
            raise UsageError(f"{name}:{line}: this is not TOML: {reason}") from error
        except RecursionError as error:
            raise UsageError(f"{name}: this is not TOML: brackets are nested too deeply") from error
        known = (table, *others)
        for key in self.document:
            if key not in known:
                self.fail(find_line(text, key), f"unknown key {key!r}", nearest(key, known))
        self.entries: list[dict[str, Any]] = self.document.get(table, [])
        if not isinstance(self.entries, list) or not all(
            isinstance(entry, dict) for entry in self.entries
        ):
            self.fail(find_line(text, table), f"{table} must be written as [[{table}]]")

    def fail(self, line: int, what: str, hint: str = "") -> NoReturn:
        raise UsageError(f"{self.name}:{line}: {what}", hint=hint)

    def fail_at(self, index: int, key: str, what: str, hint: str = "") -> NoReturn:
        """Raises UsageError for an error at a key of one of the tables."""
        line = find_line(self.text, key, self.table, index)
        self.fail(line, f"{self.table} {index + 1}: {what}", hint)


class _Parser(TomlTables):
    def __init__(self, text: str, name: str, trusted: bool) -> None:
        super().__init__(text, name, "rule", "groups")
        self._trusted = trusted

    def parse(self) -> RuleFile:
        rules = tuple(self._rule(index, entry) for index, entry in enumerate(self.entries))
        groups = self.document.get("groups", {})
        if not isinstance(groups, dict):
            self.fail(find_line(self.text, "groups"), "groups must be a table: [groups]")
        for group, switch in groups.items():
            if not isinstance(switch, bool):
                line = find_line(self.text, group, "groups")
                self.fail(line, f"groups: {group} must be true or false")
        return RuleFile(self.name, rules, groups, self.text)

    def _rule(self, index: int, entry: dict[str, Any]) -> Rule:
        fail = partial(self.fail_at, index)
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
            entry["pattern"], Match(entry.get("match", "prefix")), On(entry.get("on", "symbol")),
            Action(entry.get("action", "hide")), entry.get("as"), entry.get("group", ""),
            entry.get("why", ""),
        )  # fmt: skip
        if rule.action is Action.COLLAPSE and not rule.label:
            fail("action", 'collapse needs a name for what it collapses: as = "…"')
        if rule.action is not Action.COLLAPSE and rule.label is not None:
            fail("as", f"as belongs to collapse, and this rule's action is {rule.action.value}")
        if rule.match is Match.REGEX and not self._trusted:
            try:
                rule.tester()
            except (re.error, OverflowError, RecursionError) as error:
                fail("pattern", f"pattern is not a regular expression: {error}")
        return rule


def _toml_error(message: str, text: str) -> tuple[int, str]:
    """Returns line and reason of tomllib's message, which ends in ``(at line 1, column 2)``."""
    place = re.search(r" \(at line (\d+), column \d+\)$", message)
    if place is not None:
        return int(place[1]), printable(message[: place.start()])
    reason = message.removesuffix(" (at end of document)")
    return max(1, len(text.splitlines())), printable(reason)


def _quoted(text: str) -> str:
    """Formats a TOML basic string: JSON's, with DEL escaped as well."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = f"{printable(text)!r} cannot be kept in a file: it is not Unicode"
        raise UsageError(what) from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def find_line(text: str, key: str, table: str = "", index: int = 0) -> int:
    """Returns the line, from 1, of a key in the table of that ``index``, else the table's, or 1."""

    def names(word: str, line: str) -> object:
        return re.match(rf"\s*(?:\[+\s*)?[\"']?{re.escape(word)}[\"']?\s*[\].=]", line)

    lines = text.split("\n")
    tables = [number for number, line in enumerate(lines) if table and names(table, line)]
    begin = tables[min(index, len(tables) - 1)] if tables else -1
    for number, line in enumerate(lines[begin + 1 :], begin + 2):
        if table and line.lstrip().startswith("["):
            break
        if names(key, line):
            return number
    return max(begin, 0) + 1


# Function names within demangled symbols, without the types around them.

# Characters of a name that are scanned, as the target controls its length.
LONGEST_SCAN: Final = 16 << 10

_BRACKET: Final = re.compile(r"->|\boperator\b|\(anonymous namespace\)|[<>(){}\[\] ]")
_SCOPE: Final = re.compile(r"(?:\[abi:\w+\])*(?: const)?(?: volatile)?(?: &&?)?::")
_CLOSES: Final = {">": "<", ")": "(", "}": "{", "]": "["}


def function_name(symbol: str) -> str:
    """Removes C++ return types: ``void* shop::apply<int>(int)`` is ``shop::apply<int>(int)``."""
    if " " not in symbol:
        return symbol
    start = skip = 0
    open_: list[str] = []
    of_type = False
    for token in _BRACKET.finditer(symbol, 0, LONGEST_SCAN):
        text, end = token[0], token.end()
        if text in "<({[":
            if not open_:
                of_type = symbol.endswith(("decltype", "decltype "), 0, token.start())
            open_.append(text)
        elif text in _CLOSES:
            if open_ and open_[-1] == _CLOSES[text]:
                open_.pop()
            if text != ")" or open_ or of_type:
                continue
            scope = _SCOPE.match(symbol, end)
            if scope is None:
                # These were the parameters: the name began before them.
                return symbol[start:]
            # The name of a local function or lambda continues after that of its outer function.
            skip = scope.end()
        elif not open_:
            if text == "operator":
                return symbol[start:]
            if text == " " and end > skip:
                start = end
    return symbol if open_ else symbol[start:]


def trait_name(symbol: str) -> str | None:
    """Returns TRAIT of Rust's ``<TYPE as TRAIT>::function``, or None."""
    if not symbol.startswith("<") or " as " not in symbol:
        return None
    start = -1
    open_: list[str] = []
    for token in _BRACKET.finditer(symbol, 0, LONGEST_SCAN):
        text = token[0]
        if text in "<({[":
            open_.append(text)
        elif text in _CLOSES:
            if open_ and open_[-1] == _CLOSES[text]:
                open_.pop()
            if not open_:
                return symbol[start : token.start()] if start >= 0 else None
        elif (
            text == " " and start < 0 and len(open_) == 1 and symbol.startswith("as ", token.end())
        ):
            start = token.end() + 3
    return None
