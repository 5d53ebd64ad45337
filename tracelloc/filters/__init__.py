"""Which frames of a call stack are noise: rules, where they come from, what they do."""

from tracelloc.filters.files import append_rules, load_filters
from tracelloc.filters.filters import REVEALED, Filters, NamedStack, StackLine
from tracelloc.filters.rules import Action, Match, On, Rule

__all__ = [
    "REVEALED",
    "Action",
    "Filters",
    "Match",
    "NamedStack",
    "On",
    "Rule",
    "StackLine",
    "append_rules",
    "load_filters",
]
