"""The command palette's content: what the keys of the screen below it do, by all their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from textual.app import App
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.screen import Screen

from tracelloc.ui.lineview import LIST_KEYS

# Other words for actions, which also find them.
SYNONYMS: Final = {
    "ask('next_verdicts')": "leaks growing verdicts filter",
    "sort_by('verdict')": "leaks suspects",
    "view('stacks')": "leaks suspects call stacks",
    "ask('next_difference')": "differences compare delta",
    "ask('set_mark')": "snapshot checkpoint differences",
    "ask('toggle_baseline')": "reset new differences",
    "ask('choose_span')": "time range window",
    "list_source": "code lines",
    "ask('ask_export')": "save files pprof html svg",
    "ask('copy_stack')": "clipboard yank",
    "ask('show_help')": "keys shortcuts glossary",
    "ask('leave')": "exit close",
    "ask('choose_process')": "attach pid switch",
    "ask('show_filters')": "hide groups",
    "sort_by('bytes')": "size largest",
    "sort_by('growth')": "fastest",
    "freeze": "pause stop",
    "together": "all processes follow",
    "view('flame')": "flamegraph icicle",
    "view('resident')": "rss",
    "view('log')": "errors overhead losses warnings",
    "view('chart')": "plot graph history",
}
_LISTS: Final = tuple(f"{action}(" for _, action, *_ in LIST_KEYS)
# Textual's own commands that are listed; others have keys already.
_OF_TEXTUAL: Final = ("Theme", "Screenshot")
_BY_OTHER_WORDS: Final = 0.5  # Score of commands that are found by their description or a synonym


@dataclass(frozen=True, slots=True)
class Command:
    """One line of the palette."""

    word: str
    key: str
    help: str
    others: str  # Synonyms
    run: Callable[[], Any]

    @property
    def title(self) -> str:
        """The key and the word."""
        return f"{self.key:<5} {self.word}"

    def is_called(self, text: str) -> bool:
        """Whether a word of its description or a synonym begins with the text."""
        words = f"{self.help} {self.others}".lower().split()
        return any(word.strip("(,;:").startswith(text.lower()) for word in words)


def commands_of(screen: Screen[Any]) -> Iterator[Command]:
    """Yields a command for each action of a screen's keys, then those of Textual."""
    app, seen = screen.app, set()
    # Of an action's keys the one that the footer shows.
    bindings = sorted(screen.active_bindings.values(), key=lambda each: not each.binding.show)
    for namespace, binding, enabled, tooltip in bindings:
        action, help_text = binding.action.removeprefix("app."), tooltip or ""
        is_ours = bool(help_text) and not binding.system and not action.startswith(_LISTS)
        if action in seen or not enabled or not is_ours or "palette" in action:
            continue
        seen.add(action)
        word, key = binding.description or help_text, app.get_key_display(binding)
        yield Command(
            word,
            key,
            help_text,
            SYNONYMS.get(action, ""),
            partial(app.run_action, binding.action, namespace),
        )
    for title, help_text, run, _ in App.get_system_commands(app, screen):
        if title in _OF_TEXTUAL:
            yield Command(title, "", help_text, "", run)


class Commands(Provider):
    """Finds commands by what is typed into the palette."""

    async def discover(self) -> Hits:
        """Yields all commands, those of the footer first."""
        for each in commands_of(self.screen):
            yield DiscoveryHit(each.title, each.run, help=each.help)

    async def search(self, query: str) -> Hits:
        """Yields the commands that match."""
        matcher = self.matcher(query)
        for each in commands_of(self.screen):
            score = max(matcher.match(each.word), _BY_OTHER_WORDS * each.is_called(query.strip()))
            if score > 0:
                yield Hit(score, each.title, each.run, help=each.help)
