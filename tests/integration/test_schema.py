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
    if kind == "top":
        found = lines("top", "--json", "--count", 1)
    elif kind == "census":
        words = "objects", "-p", targets.start(PYTHON, TARGETS / "objects.py").pid, "--json"
        found = lines(*words, "--every", "100ms", "--count", 3) + lines(*words, "--holders", 2)
    else:
        name = {"leaks": "lostheap", "heap": "heapusage"}.get(kind, "holdings")
        words = "-p", targets.cpp(name).pid, "--json"
        contents = ["--contents"] if kind in ("heap", "leaks") else []
        found = lines(kind, *words, *contents, status=3 if kind == "leaks" else 0)
        if kind == "holders":
            (heap,) = lines("heap", *words)
            found += lines(kind, heap["sizes"][0]["usable_bytes"], *words)
    assert found
    for one in found:
        schema.check(one, kind)
    unseen = map(".".join, schema.keys(kind) - schema.seen)
    assert [name for name in unseen if not re.match(UNSEEN[kind], name)] == []
