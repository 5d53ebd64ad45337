"""Suppressions hide known leaks, by files in LeakSanitizer's syntax.

A line ``leak:PATTERN`` suppresses blocks allocated through a frame whose function, source
file or module matches; the pattern is looked for anywhere in the name, ``*`` stands for any
text, ``^`` and ``$`` anchor it at the beginning and the end. Lines that begin with ``#`` are
comments (clang's AddressSanitizer documentation, "Suppressions"). Suppressed stacks are no
longer suspects; reports state their number and sum.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError, UsageError
from tracelloc.model.verdicts import Member, Suppressed, Suspect
from tracelloc.show.filters import NamedStack
from tracelloc.show.presentation.naming import REPORT_PATIENCE_S, Namer
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import printable

Matcher = Callable[[str], re.Match[str] | None]  # Finds a pattern in a name

_KIND: Final = "leak:"
_LARGEST_BYTES: Final = 1 << 20


def read_patterns(paths: Iterable[Path]) -> list[Matcher]:
    """Reads suppression files. Raises UsageError for unreadable files and invalid lines."""
    patterns = []
    for path in paths:
        try:
            with path.open("rb") as stream:
                text = stream.read(_LARGEST_BYTES).decode(errors="replace")
        except OSError as error:
            raise TracellocError(f"{path} cannot be read: {error.strerror}") from error
        for number, line in enumerate(text.splitlines(), 1):
            entry = line.strip()
            if not entry or entry.startswith("#"):
                continue
            if not entry.startswith(_KIND) or not entry.removeprefix(_KIND):
                raise UsageError(
                    f"{path}:{number}: {printable(entry[:80])!r} is not a suppression",
                    hint="write leak:PATTERN, one per line",
                )
            patterns.append(_matcher(entry.removeprefix(_KIND)))
    return patterns


class Suppressions:
    """Applies patterns of known leaks to snapshots. For one thread at a time."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._matches = read_patterns(paths)
        # Stack and whether it is suppressed, by process and stack index
        self._known: dict[tuple[int, int], tuple[NamedStack, bool]] = {}

    def apply(
        self, snapshot: Snapshot, namer: Namer, patience_s: float = REPORT_PATIENCE_S
    ) -> Snapshot:
        """Returns the snapshot without suppressed suspects, and with the suspects' sum.

        Waits at most ``patience_s`` for names; a stack without names is not suppressed yet.
        """
        findings = snapshot.findings
        if not self._matches or findings is None:
            return snapshot
        namer.prepare(snapshot, findings.suspect_of, patience_s)
        kept: list[Suspect] = []
        suppressed: list[int] = []
        rate = 0.0
        for suspect in findings.suspects:
            matched = [m for m in suspect.members if self._is_known(snapshot, namer, m.stack)]
            suppressed += [member.stack for member in matched]
            lost = sum(member.rate_bytes_per_min for member in matched)
            rate += lost
            if len(matched) < len(suspect.members):
                kept.append(_without(suspect, matched, lost) if matched else suspect)
        live_bytes = int(snapshot.totals.live_bytes[suppressed].sum())
        found = replace(
            findings,
            suspects=tuple(kept),
            suspect_of={m.stack: s for s in kept for m in s.members},
            suppressed=Suppressed(
                stacks=len(suppressed), rate_bytes_per_min=rate, live_bytes=live_bytes
            ),
        )
        return replace(snapshot, findings=found)

    def _is_known(self, snapshot: Snapshot, namer: Namer, index: int) -> bool:
        stack = namer.stack(snapshot, index)
        key = snapshot.target.number, index
        known = self._known.get(key)
        # A stack becomes another object when more of its names are known.
        if known is None or known[0] is not stack:
            known = self._known[key] = stack, is_matched(stack, self._matches)
        return known[1]


def is_matched(stack: NamedStack, patterns: Sequence[Matcher]) -> bool:
    """Whether a pattern matches the function, source file or module of a frame."""
    texts = ((one.symbol, one.raw_symbol, one.file, one.module) for one in stack.frames)
    names = {name for each in texts for name in each if name is not None}
    return any(match(name) for match in patterns for name in names)


def _matcher(pattern: str) -> Matcher:
    start, end = pattern.startswith("^"), pattern.endswith("$")
    middle = pattern[start : len(pattern) - end]
    text = ".*".join(map(re.escape, middle.split("*")))
    return re.compile(f"{'^' * start}{text}{'$' * end}", re.DOTALL).search


def _without(suspect: Suspect, gone: list[Member], lost: float) -> Suspect:
    left = tuple(member for member in suspect.members if member not in gone)
    rate = max(0.0, suspect.judgement.rate_bytes_per_min - lost)
    shares = max(sum(member.share for member in left), 1e-9)
    return Suspect(
        replace(suspect.judgement, rate_bytes_per_min=rate),
        tuple(replace(member, share=member.share / shares) for member in left),
        suspect.frame if len(left) > 1 else None,
    )
