"""From "the pod was killed" to the line that leaks, in five commands."""

import json
import os
import re
import sysconfig
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import TARGETS, Builder, Targets, run_tracelloc, tracelloc_command

pytestmark = [pytest.mark.bpf, pytest.mark.long]

TITLE = f"VLLM::EngineCore_DP{os.getpid()}"  # Another run of the tests may have one, too
SOURCE = (TARGETS / "inference.py").read_text().splitlines()
LEAKS = next(n for n, line in enumerate(SOURCE, 1) if "unbox.run(" in line)
STRING_BYTES = 2200


def test_the_host_memory_of_an_inference_server(
    builder: Builder, targets: Targets, tmp_path: Path
) -> None:
    module = builder.cpp("unbox", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}")
    (tmp_path / "unbox.abi3.so").symlink_to(module)
    front = targets.start("/usr/bin/python3", TARGETS / "inference.py", tmp_path, TITLE)
    engine = int(front.hear())

    # Which process grows?
    top = run_tracelloc("top", "--text", "--count", 2, "--interval", "12s", "--top", 100).stdout
    (row,) = (line for line in top[top.rindex("==> ") :].splitlines() if f" {engine}  " in line)
    assert re.search(rf"\+\S+ [KM]iB .* anonymous +{TITLE} ", row)

    # Which part of its memory is it? malloc's blocks, not Python's objects.
    heap = json.loads(run_tracelloc("heap", "-n", TITLE, "--json").stdout)
    assert heap["pid"] == engine
    assert heap["in_use_bytes"] > heap["rss_bytes"] / 5

    # Does anything still point to them?
    found = json.loads(run_tracelloc("leaks", "-n", TITLE, "--json", status=3).stdout)
    lost = max(found["groups"], key=lambda group: group["bytes"])
    assert (lost["usable_bytes"], lost["structures"] > 500) == (40, True)  # std::string objects
    # Remains of pointers may lead to the contents of some.
    assert lost["bytes"] > 0.9 * STRING_BYTES * lost["structures"]

    # Which line allocates them?
    done = outcome(
        *tracelloc_command(
            "-p", front.pid, "--follow", "--text", "--fail-if", "leak", "--duration", "4m"
        ),
        timeout=300,
    )
    assert done.returncode == 3, done.stderr
    suspect = done.stdout[done.stdout.rindex(" suspect=leaking ") :].split("==> ")[0]
    assert re.search(r"unbox\+0x\S+ in \S+ \(\S*unbox\.cpp:\d+\)\n", suspect)
    assert f"Engine.step in [Python] ({TARGETS}/inference.py:{LEAKS})\n" in suspect

    # And the cache? It is full, and stays so.
    counted = json.loads(run_tracelloc("objects", "-n", TITLE, "--json").stdout)
    (prefixes,) = (one for one in counted["types"] if one["type"].endswith("Prefix"))
    assert prefixes["objects"] == 2000
