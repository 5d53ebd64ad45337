"""What scripts rely on, against the list of the last release: things may be added, none removed.

A release writes the list again, with TRACELLOC_UPDATE_CONTRACT set (CONTRIBUTING).
"""

import os
from collections.abc import Iterator
from dataclasses import fields

import tracelloc
from tests.harness import DATA
from tests.schema import Schema
from tracelloc.command.api import TracedStack
from tracelloc.errors import NOT_EXECUTABLE_STATUS, NOT_FOUND_STATUS, TracellocError, UsageError
from tracelloc.show.alerts.rules import FAILED_STATUS

LIST = DATA / "contract.txt"


def contract() -> Iterator[str]:
    """A line for each thing: its kind and its name."""
    for name, schema in Schema().whole["$defs"].items():
        for key, kind in schema.get("properties", {}).items():
            yield f"json {name}.{key}: {kind.get('type', kind.get('$ref', 'object'))}"
    for path in (DATA / "recordings").glob("v*.rec"):
        with tracelloc.open(path):
            yield f"recording {path.stem}"
    statuses = {
        "error": TracellocError.exit_code, "usage": UsageError.exit_code, "failed": FAILED_STATUS,
        "not executable": NOT_EXECUTABLE_STATUS, "not found": NOT_FOUND_STATUS,
    }  # fmt: skip
    yield from (f"status {name}: {status}" for name, status in statuses.items())
    yield from (f"api {name}" for name in tracelloc.__all__)
    yield from (f"api Trace.{name}" for name in vars(tracelloc.Trace) if not name.startswith("_"))
    yield from (f"api stacks.{field.name}" for field in fields(TracedStack))


def test_nothing_of_the_last_release_is_gone() -> None:
    now = sorted(set(contract()))
    if os.environ.get("TRACELLOC_UPDATE_CONTRACT"):
        LIST.write_text("".join(f"{line}\n" for line in now))
    before = LIST.read_text().splitlines()
    assert len(before) > 300
    gone = sorted(set(before) - set(now))
    assert gone == [], "what stays is in tracelloc help api"
