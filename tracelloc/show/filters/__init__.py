"""Filter rules: which frames of a call stack are hidden or collapsed."""

from tracelloc.show.filters.filters import REVEALED, Filters, NamedStack, StackLine
from tracelloc.show.filters.rules import Action, Match, On, Rule

__all__ = ["REVEALED", "Action", "Filters", "Match", "NamedStack", "On", "Rule", "StackLine"]
