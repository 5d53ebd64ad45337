"""tracelloc, of which one part fails once a file is there: ``python -m tests.sabotage PART FILE``.

Fault injection: nothing else about it is made up.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracelloc.command import cli
from tracelloc.command.reports import Reports
from tracelloc.record.session.follower import Follower
from tracelloc.record.session.session import Session
from tracelloc.record.session.stackjudge import StackJudge
from tracelloc.record.session.tracee import Tracee

PARTS: dict[str, list[tuple[type, str]]] = {
    "pump": [(Session, "_drain_now")],
    "follower": [(Follower, "_handle")],
    "upkeep": [(Tracee, "take_samples"), (StackJudge, "go_on")],
    "reports": [(Reports, "_tick")],
    "last report": [(Reports, "_report")],
    "beginning": [(Session, "begin_upkeep")],
}


def sabotage(owner: type, name: str, flag: Path) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def part(*arguments: Any, **more: Any) -> Any:
        if flag.exists():
            raise ValueError("made up")
        return whole(*arguments, **more)

    setattr(owner, name, part)


if __name__ == "__main__":
    for each in PARTS[sys.argv[1]]:
        sabotage(*each, Path(sys.argv[2]))
    sys.exit(cli.main(sys.argv[3:]))
