"""An operator's story: the pod that will be killed, why, and what has changed since yesterday."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import harness
from tests.integration.test_groups import ControlGroup

pytestmark = [pytest.mark.bpf, pytest.mark.long]

LOGS = Path("/var/log/containers")
LIMIT = 64 << 20
SIZE = 2000


@pytest.fixture
def pod() -> Iterator[tuple[ControlGroup, str]]:
    """The group of a container with a limit, and the name that kubelet leaves for it."""
    group, name = ControlGroup(), f"web-{os.getpid()}"
    group.limit(LIMIT)
    missing = [path for path in (LOGS, *LOGS.parents) if not path.exists()]
    LOGS.mkdir(parents=True, exist_ok=True)
    link = LOGS / f"{name}_shop_nginx-{group.id}.log"
    link.symlink_to("0.log")
    yield group, f"shop/{name}/nginx"
    link.unlink()
    for path in missing:
        path.rmdir()
    harness.wait_until(lambda: not (group.path / "cgroup.procs").read_text())
    group.remove()


def record(name: str, target: harness.Target, blocks: int, file: Path) -> None:
    with harness.started(
        "record", "--group", name, "--duration", "4s", "-o", file, module="tracelloc",
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as recorder:  # fmt: skip
        harness.await_line(recorder.stderr, "tracing")
        target.ask(f"alloc {blocks} {SIZE}")
        recorder.communicate(timeout=harness.PATIENCE_S)
    assert recorder.returncode == 0


def test_from_the_pod_to_the_flame_graph(
    builder: harness.Builder, pod: tuple[ControlGroup, str], tmp_path: Path
) -> None:
    group, name = pod
    target = harness.Target([builder.c("lineage")])
    group.take(target.pid)
    try:
        record(name, target, 100, tmp_path / "yesterday.rec")

        # Which pod will be killed, and when?
        with harness.started(
            "top", "--json", "--count", 2, "--interval", "12s", module="tracelloc",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as top:  # fmt: skip
            harness.read_line(top.stdout, "top")
            target.ask(f"alloc 5000 {SIZE}")
            groups = json.loads(harness.read_line(top.stdout, "top"))["groups"]
        (container,) = (each for each in groups if each["name"] == f"container {name}")
        assert [container[key] for key in ("namespace", "pod", "container")] == name.split("/")
        assert container["limit_bytes"] == LIMIT
        assert 0 < container["limit_in_s"] < 600
        assert container["growing_kind"] == "anonymous"

        # Which part of its memory is it? A trace within bounds, and yesterday beside it.
        heap = json.loads(
            harness.run_tracelloc("heap", "-p", target.pid, "--json", status=0).stdout
        )
        assert heap["in_use_bytes"] > 5000 * SIZE
        record(name, target, 7000, tmp_path / "today.rec")
    finally:
        target.kill()
    recordings = tmp_path / "yesterday.rec", tmp_path / "today.rec"
    changes = harness.run_tracelloc("diff", *recordings, status=0).stdout
    assert re.search(r"\+6,900\b|\+13\.\d MiB", changes), changes
    harness.run_tracelloc("report", recordings[1], "-o", tmp_path / "heap.html", status=0)
    assert "lineage" in (tmp_path / "heap.html").read_text()
    harness.run_tracelloc("report", *recordings, "-o", tmp_path / "stacks.csv", status=0)
    header, first, *_ = (tmp_path / "stacks.csv").read_text().splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert (row["bytes"], row["allocations"]) == (str(7000 * SIZE), "7000")
    assert [row[key] for key in ("namespace", "pod", "container")] == name.split("/")
