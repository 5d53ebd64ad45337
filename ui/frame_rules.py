"""Filter rules made from a frame that the user points at."""

from __future__ import annotations

import re

from tracelloc.filters import Action, Match, On, Rule
from tracelloc.filters.functions import function_name
from tracelloc.symbols import Frame
from tracelloc.target.procfs import base_name


def rule_for(frame: Frame, *, collapse: bool) -> Rule | None:
    """Hides just this function, or takes its namespace (its file, in C) together.

    None if the frame has neither a name nor a module.
    """
    action = Action.COLLAPSE if collapse else Action.HIDE
    if frame.symbol is None:
        if frame.module is None:
            return None
        name = base_name(frame.module)
        label = name if collapse else None
        return Rule(f"/{name}", Match.SUFFIX, On.MODULE, action, label)
    name = function_name(frame.symbol)
    if not collapse:
        return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action)
    scope = re.match(r"<?((?:\w+::)+)", name)
    if scope is not None:
        return Rule(scope[1], Match.PREFIX, On.SYMBOL, action, scope[1].removesuffix("::"))
    return Rule(f"^{re.escape(name)}$", Match.REGEX, On.SYMBOL, action, name)
