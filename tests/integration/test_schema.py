"""What commands write as JSON, against the schema that ``tracelloc schema`` prints."""

import json
import re
from typing import Any

import pytest

from tests.harness import TARGETS, Targets, run_tracelloc
from tests.schema import Schema

PYTHON = "/usr/bin/python3"
# Keys of lists that may be empty here, and of failures: unit tests have these.
UNSEEN = {
    "heap": r"memory_account_runtime\.",
    "leaks": "-",
    "holders": r"suspects_holders_kept_by_block\.",
    "census": r"objects\.trouble",
    "top": r"top_group\.",
    "symbols": "-",
}


def lines(*words: object, status: int = 0) -> list[Any]:
    return list(map(json.loads, run_tracelloc(*words, status=status).stdout.splitlines()))


@pytest.mark.parametrize("kind", UNSEEN)
def test_json_of_commands_is_as_the_schema_says(targets: Targets, kind: str) -> None:
    schema = Schema()
    if kind == "census":
        target = targets.start(PYTHON, TARGETS / "objects.py")
        found = lines("objects", "-p", target.pid, "--json", "--every", "100ms", "--count", 3)
        found += lines("objects", "-p", target.pid, "--json", "--holders", 2)
    elif kind == "top":
        found = lines("top", "--json", "--count", 1)
    else:
        target = targets.cpp({"leaks": "lostheap", "heap": "heapusage"}.get(kind, "holdings"))
        words = {"heap": ["--contents"], "leaks": ["--contents"]}.get(kind, [])
        found = lines(kind, "-p", target.pid, "--json", *words, status=3 if kind == "leaks" else 0)
        if kind == "holders":
            (heap,) = lines("heap", "-p", target.pid, "--json")
            size = heap["sizes"][0]["usable_bytes"]
            found += lines(kind, size, "-p", target.pid, "--json")
    assert found
    for one in found:
        schema.check(one, kind)
    unseen = map(".".join, schema.keys(kind) - schema.seen)
    assert [name for name in unseen if not re.match(UNSEEN[kind], name)] == []
