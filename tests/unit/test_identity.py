"""Who a process is, from a made-up /proc."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tracelloc.architecture import native
from tracelloc.model.process import Target
from tracelloc.record.process.identity import forked_target, renamed_target, target_of
from tracelloc.record.process.procfs import Process

ID = "3f" * 32
POD = "0e7a1c52-9d3b-4f7e-8a61-2b9f0c4d5e6f"


@pytest.mark.parametrize(
    ("text", "expected", "pod"),
    [
        ("0::/\n", "", ""),
        (f"0::/system.slice/docker-{ID}.scope\n", ID, ""),
        (f"0::/kubepods/besteffort/pod{POD}/{ID}\n", ID, POD),
        (f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-{ID}.scope\n", ID, POD),
        (f"0::/kubepods/pod{POD}0/{ID}\n", ID, ""),
        (f"4:memory:/docker/{'e' * 64}/docker/{ID}\n0::/\n", ID, ""),
        (f"0::/x{ID}0\n", "", ""),
        ("\x1b\udcff", "", ""),
        (None, "", ""),
    ],
)
def test_targets(text: str | None, expected: str, pod: str, tmp_path: Path) -> None:
    directory = tmp_path / "42"
    (directory / "task/42").mkdir(parents=True)
    (directory / "comm").write_text("server\n")
    (directory / "exe").symlink_to("/opt/shop/bin/server (deleted)")
    if text is not None:
        (directory / "cgroup").write_bytes(text.encode(errors="surrogateescape"))
    target = target_of(Process(42, tmp_path), 3, 5)
    assert (target.pid, target.command, target.parent_pid) == (42, "server", 0)
    assert (target.exec_count, target.number) == (3, 5)
    assert target.executable == "/opt/shop/bin/server"
    assert (target.container_id, target.pod_uid) == (expected, pod)
    assert (target.host, target.machine) == (os.uname().nodename, native().short_name)


def test_a_child_and_what_it_executes(tmp_path: Path) -> None:
    """A child is in its parent's program until it executes another one."""
    parent = Target(41, "server", 1, 2, 5, executable="/opt/server", container_id=ID, host="box")
    directory = tmp_path / "42"
    (directory / "task/42").mkdir(parents=True)
    (directory / "comm").write_text("worker\n")
    (directory / "status").write_text("PPid:\t40\n")
    (directory / "exe").symlink_to("/opt/worker")
    process = Process(42, tmp_path)
    child = forked_target(process, replace(parent, has_ended=True), 6)
    expected = Target(42, "worker", 40, 0, 6, executable="/opt/server", container_id=ID, host="box")
    assert child == expected
    other = renamed_target(process, child, 1)
    assert other == replace(expected, exec_count=1, executable="/opt/worker")
    (directory / "comm").unlink()
    assert renamed_target(process, other, 2) == replace(other, exec_count=2)
