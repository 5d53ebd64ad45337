"""What commands write as JSON, against the schema that ``tracelloc schema`` prints."""

import json

import pytest

from tests.harness import TARGETS, Targets, run_tracelloc
from tests.schema import Schema

PYTHON = "/usr/bin/python3"
# Keys of lists that are empty here: unit tests have these.
EMPTY = {
    "heap": {"memory_account_runtime"},
    "leaks": set(),
    "holders": {"suspects_holders_kept_by_block"},
    "census": set(),
    "top": {"top_group"},
    "symbols": set(),
}


def lines(*words: object, status: int = 0) -> list[object]:
    return list(map(json.loads, run_tracelloc(*words, status=status).stdout.splitlines()))


@pytest.mark.parametrize("kind", EMPTY)
def test_json_of_commands_is_as_the_schema_says(targets: Targets, kind: str) -> None:
    schema = Schema()
    if kind == "census":
        target = targets.start(PYTHON, TARGETS / "objects.py")
        found = lines("objects", "-p", target.pid, "--json", "--every", "100ms", "--count", 3)
        found += lines("objects", "-p", target.pid, "--json", "--holders", 2)
    elif kind == "top":
        found = lines("top", "--json", "--count", 1)
    else:
        target = targets.cxx("holding")
        words = {"heap": ["--contents"], "leaks": ["--contents"]}.get(kind, [])
        found = lines(kind, "-p", target.pid, "--json", *words, status=3 if kind == "leaks" else 0)
        if kind == "holders":
            found += lines(kind, "64", "-p", target.pid, "--json")
    assert found
    for one in found:
        schema.check(one, kind)
    unseen = {name for name in schema.keys(kind) - schema.seen if name[0] not in EMPTY[kind]}
    assert unseen == set()
