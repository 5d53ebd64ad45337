"""Decides which frames of a stack are noise, by rules that may change while in use.

Rules come in layers: the shipped ones, the user's own file, ``--filters`` files, then rules
added at run time. The last matching rule of an enabled group decides about a frame. Filters
never change figures, and hidden frames are counted.

Wrappers of malloc that no rule matches are detected by their use: if many functions call the direct
caller of malloc for blocks of many sizes, it is the program's own malloc, and users want to read
its callers instead. A function that allocates one kind of object has blocks of one size.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from tracelloc.dataclass import dataclass, field
from tracelloc.errors import UsageError
from tracelloc.model.codefiles import is_c_library
from tracelloc.model.frames import Frame
from tracelloc.show.filters.rules import (
    Action,
    Match,
    On,
    Rule,
    RuleFile,
    find_line,
    function_name,
    nearest,
    trait_name,
)

REVEALED: Final = 3  # Number of frames shown of a stack whose frames would all be hidden

WRAPPERS: Final = "wrappers"  # The group of functions that wrap malloc
# Groups whose hidden functions wrap malloc, in general or in one project each.
_ALLOCATING: Final = frozenset({
    WRAPPERS, "redis", "postgresql", "mariadb", "nginx", "jvm", "bind", "numpy", "ffmpeg", "ruby",
    "perl", "php", "openssl", "sqlite",
})  # fmt: skip
# Names whose verdicts are cached: programs that generate code may have any number.
_MOST_VERDICTS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class StackLine:
    """One line of a filtered stack: a frame, a collapsed run, or a number of hidden frames."""

    frame: Frame | None  # The shown frame; None: `count` hidden frames
    label: str | None  # Label of a collapsed run of `count` frames; else None
    count: int


@dataclass(frozen=True, slots=True)
class NamedStack:
    """A symbolized call stack, innermost frame first, and which of its frames to show.

    A collapsed run is shown by its innermost frame, the only one of the run that is not hidden.
    All frames of the run carry its label, and none counts as hidden.
    """

    frames: Sequence[Frame]
    hidden: Sequence[bool]  # Whether each frame is hidden
    # Label of each frame's run, or None; empty if there are no runs.
    labels: Sequence[str | None] = ()

    @property
    def all_labels(self) -> Sequence[str | None]:
        """The label of each frame's run; None for a frame without one."""
        return self.labels or (None,) * len(self.frames)

    def below(self, caller: Frame) -> NamedStack:
        """Returns the stack with ``caller`` added as its outermost frame, which is shown."""
        return NamedStack([*self.frames, caller], [*self.hidden, False], [*self.all_labels, None])

    def parts(self) -> Iterator[StackLine]:
        """Yields the shown lines, innermost first. Counts and plain frames add up to the stack."""
        last: StackLine | None = None
        for frame, hidden, label in zip(self.frames, self.hidden, self.all_labels, strict=True):
            is_filtered = hidden and label is None
            if last is not None:
                # A hidden frame belongs to the line before, if that stands for such frames.
                if hidden and (last.frame is None if is_filtered else last.label is not None):
                    last = StackLine(last.frame, last.label, last.count + 1)
                    continue
                yield last
            last = StackLine(None if is_filtered else frame, label, 1)
        if last is not None:
            yield last


_Key = tuple[str | None, str | None, str | None]  # A frame's symbol, module and file
_Verdict = tuple[Action, str | None]
_Test = tuple[int, Callable[[str], object], _Verdict]
_SHOW: Final[_Verdict] = (Action.SHOW, None)
# A wrapper of malloc; unnamed functions that it calls are part of it.
_WRAPS: Final[_Verdict] = (Action.HIDE, WRAPPERS)
_SUBJECTS: Final = {On.SYMBOL: 0, On.TRAIT: 1, On.MODULE: 2, On.FILE: 3}


class Filters:
    """Layers of rules with cached verdicts; ``version`` counts changes. Not thread safe."""

    def __init__(self, files: Iterable[RuleFile] = ()) -> None:
        """Raises UsageError if a file switches a group without rules."""
        self.version = 0
        self.enabled = True  # Whether rules apply; if not, every frame is shown
        self._rules: list[Rule] = []
        self._groups: dict[str, bool] = {}
        self._added: list[Rule] = []
        self.measured: frozenset[str] = frozenset()
        self._program: list[_Test] | None = None
        self._verdicts: dict[_Key, _Verdict] = {}
        self._stacks: dict[int, NamedStack] = {}
        for file in files:
            self._rules += file.rules
            for rule in file.rules:
                self._add_group(rule)
            for group, enabled in file.groups.items():
                if group not in self._groups:
                    line = find_line(file.text, group, "groups")
                    hint = nearest(group, self._groups)
                    raise UsageError(f"{file.name}:{line}: there is no group {group!r}", hint=hint)
                self._groups[group] = enabled

    def copy(self) -> Filters:
        """Returns a copy of rules and switches, for another thread."""
        copy = Filters()
        copy._rules, copy._added = list(self._rules), list(self._added)
        copy._groups = dict(self._groups)
        copy.measured, copy.enabled = self.measured, self.enabled
        return copy

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules, in order of increasing precedence, disabled groups included."""
        return (*self._rules, *self._added)

    @property
    def added(self) -> tuple[Rule, ...]:
        return tuple(self._added)

    @property
    def groups(self) -> dict[str, bool]:
        return dict(self._groups)

    def hide_measured(self, names: frozenset[str]) -> None:
        """Hides functions as part of the group of wrappers, unless a rule matches them."""
        if not names <= self.measured:
            self.measured |= names
            self._change()

    def add(self, rule: Rule) -> None:
        """Adds a rule after all others. Raises UsageError for a bad regular expression."""
        try:
            rule.tester()
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"this is not a regular expression: {error}") from error
        self._added.append(rule)
        self._add_group(rule)
        self._change()

    def remove(self, rule: Rule) -> None:
        """Removes the latest rule added at run time that equals ``rule``."""
        del self._added[len(self._added) - 1 - self._added[::-1].index(rule)]
        self._change()

    def set_group(self, group: str, enabled: bool) -> None:
        """Switches a group on or off. Raises UsageError if it has no rules."""
        if group not in self._groups:
            hint = nearest(group, self._groups)
            raise UsageError(f"there is no filter group {group!r}", hint=hint)
        if self._groups[group] is not enabled:
            self._groups[group] = enabled
            self._change()

    def set_enabled(self, enabled: bool) -> None:
        if enabled is not self.enabled:
            self.enabled = enabled
            self._change()

    def apply(self, frames: Sequence[Frame], stack: int | None = None) -> NamedStack:
        """Returns a stack of these frames; ``stack``: a number under which it is cached."""
        known = None if stack is None else self._stacks.get(stack)
        # Comparing is cheap: the frames of a known stack are identical objects.
        if known is not None and known.frames == frames:
            return known
        if self.enabled:
            result = _arranged(frames, self._judged(frames))
        else:
            result = NamedStack(frames, [False] * len(frames))
        if stack is not None:
            self._stacks[stack] = result
        return result

    def _judged(self, frames: Sequence[Frame]) -> list[_Verdict]:
        known = self._verdicts
        verdicts = []
        for frame in frames:
            key = frame.symbol, frame.module, frame.file
            verdict = known.get(key)
            if verdict is None:
                if len(known) >= _MOST_VERDICTS:
                    known.clear()
                verdict = known[key] = self._judge(key)
            verdicts.append(verdict)
        return verdicts

    def effects(self) -> dict[str, tuple[int, str]]:
        """Returns by group how many of the frames seen its rules decide on, and what they hide."""
        tests = [(rule.group, *_compile([rule])[0]) for rule in reversed(self.rules)]
        decided: Counter[str] = Counter()
        for key in self._verdicts:
            subjects = _subjects(key)
            found = (
                group
                for group, on, test, _ in tests
                if (text := subjects[on]) is not None and test(text)
            )
            decided.update(itertools.islice(found, 1))
        whys = {group: [r.why for r in self.rules if r.group == group] for group in self._groups}
        texts = {group: ", ".join(dict.fromkeys(filter(None, why))) for group, why in whys.items()}
        return {group: (decided[group], text) for group, text in texts.items()}

    def _judge(self, key: _Key) -> _Verdict:
        symbol, subjects = key[0], _subjects(key)
        if self._program is None:
            enabled = [rule for rule in self.rules if self._groups.get(rule.group, True)]
            self._program = _compile(enabled)
        for on, matches, verdict in self._program:
            subject = subjects[on]
            if subject is not None and matches(subject):
                return verdict
        is_wrapper = symbol in self.measured and self._groups.get(WRAPPERS, True)
        return _WRAPS if is_wrapper else _SHOW

    def _add_group(self, rule: Rule) -> None:
        if rule.group:
            self._groups.setdefault(rule.group, True)

    def _change(self) -> None:
        self.version += 1
        self._program = None
        self._verdicts.clear()
        self._stacks.clear()


def _subjects(key: _Key) -> tuple[str | None, ...]:
    symbol, module, file = key
    if symbol is None:
        return None, None, module, file
    return function_name(symbol), trait_name(symbol), module, file


def _compile(rules: Sequence[Rule]) -> list[_Test]:
    """Compiles rules to tests, the first of which decides; alike prefix rules become one."""

    def kind(rule: Rule) -> tuple[Match, On, _Verdict]:
        wraps = rule.action is Action.HIDE and rule.group in _ALLOCATING
        return rule.match, rule.on, _WRAPS if wraps else (rule.action, rule.label)

    program: list[_Test] = []
    tests: list[Callable[[str], object]]
    for (match, on, verdict), same in itertools.groupby(reversed(rules), kind):
        if match is Match.PREFIX:
            choices = tuple(rule.pattern for rule in same)
            tests = [operator.methodcaller("startswith", choices)]
        else:
            tests = [rule.tester() for rule in same]
        program += ((_SUBJECTS[on], test, verdict) for test in tests)
    return program


def _arranged(frames: Sequence[Frame], verdicts: list[_Verdict]) -> NamedStack:
    _hide_nameless(frames, verdicts)
    if not any(
        action is Action.SHOW and not _is_libc(frame.module)
        for frame, (action, _) in zip(frames, verdicts, strict=True)
    ):
        for index in _revealed(frames, verdicts):
            verdicts[index] = _SHOW
    hidden = [action is not Action.SHOW for action, _ in verdicts]
    if not any(action is Action.COLLAPSE for action, _ in verdicts):
        return NamedStack(frames, hidden)
    labels: list[str | None] = [None] * len(frames)
    run, last = None, -1
    for index, (action, label) in enumerate(verdicts):
        if action is Action.SHOW:
            run = None
        elif action is Action.COLLAPSE:
            if run == label:
                # Hidden frames between two frames of a run belong to the run.
                labels[last + 1 : index] = [label] * (index - last - 1)
            else:
                hidden[index] = False
            labels[index] = run = label
            last = index
    return NamedStack(frames, hidden, labels)


def _hide_nameless(frames: Sequence[Frame], verdicts: list[_Verdict]) -> None:
    for index, frame in enumerate(frames):
        if frame.symbol is None or _is_libc(frame.module):
            continue
        inner = frames[:index]
        if verdicts[index] == _WRAPS and all(
            each.module == frame.module or _is_libc(each.module) for each in inner
        ):
            verdicts[:index] = [_WRAPS] * index
        return


def _revealed(frames: Sequence[Frame], verdicts: Sequence[_Verdict]) -> list[int]:
    """Returns the frames to show if all are noise or libc's: the innermost few outside libc.

    Frames that would be collapsed are preferred: the library function that allocates tells
    more than the frames between it and malloc.
    """
    own = [index for index, frame in enumerate(frames) if not _is_libc(frame.module)]
    collapsed = [index for index in own if verdicts[index][0] is Action.COLLAPSE]
    return (collapsed or own or list(range(len(frames))))[:REVEALED]


@functools.lru_cache(maxsize=1 << 12)
def _is_libc(module: str | None) -> bool:
    return module is not None and is_c_library(module)


_LEAST_CALLERS: Final = 8
_LEAST_SIZES: Final = 6  # Least number of distinct mean block sizes, by caller
_LEAST_SPREAD: Final = 8  # Least ratio of the largest to the smallest mean size
# Largest share of one caller in the bytes; above it, the function may belong to that caller.
_MOST_SHARE: Final = 0.6


@dataclass(slots=True)
class _Use:
    size_bytes: Counter[str] = field(default_factory=Counter)  # By caller
    count: Counter[str] = field(default_factory=Counter)  # Blocks by caller

    @property
    def is_wrapper(self) -> bool:
        if len(self.size_bytes) < _LEAST_CALLERS:
            return False
        means = {self.size_bytes[name] // max(self.count[name], 1) for name in self.size_bytes}
        least, most = max(1, min(means)), max(means)
        share = max(self.size_bytes.values()) / max(1, sum(self.size_bytes.values()))
        return len(means) >= _LEAST_SIZES and most >= _LEAST_SPREAD * least and share <= _MOST_SHARE


def measured_wrappers(stacks: Iterable[tuple[NamedStack, int, int]]) -> frozenset[str]:
    """Returns functions that wrap malloc; ``stacks``: with their allocated bytes and blocks."""
    uses: defaultdict[str, _Use] = defaultdict(_Use)
    for stack, size_bytes, count in stacks:
        if (found := _innermost(stack)) is not None:
            name, caller = found
            uses[name].size_bytes[caller] += size_bytes
            uses[name].count[caller] += count
    return frozenset(name for name, use in uses.items() if use.is_wrapper)


def _innermost(stack: NamedStack) -> tuple[str, str] | None:
    """Returns (innermost shown function, its caller); None if either is not a plain frame."""
    name: str | None = None
    for part in stack.parts():
        if part.frame is None:
            continue
        symbol = part.frame.symbol
        if part.label is not None or symbol is None:
            return None
        if name is None:
            name = symbol
        elif symbol != name:
            return name, symbol
    return None
