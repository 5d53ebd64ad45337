"""Who a process is, from a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracelloc.record.process.identity import target_of
from tracelloc.record.process.procfs import Process

ID = "3f" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/\n", ""),
        (f"0::/system.slice/docker-{ID}.scope\n", ID),
        (f"0::/kubepods/besteffort/pod{'a' * 36}/{ID}\n", ID),
        (f"4:memory:/docker/{'e' * 64}/docker/{ID}\n0::/\n", ID),
        (f"0::/x{ID}0\n", ""),
        ("\x1b\udcff", ""),
        (None, ""),
    ],
)
def test_targets(text: str | None, expected: str, tmp_path: Path) -> None:
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
    assert target.container_id == expected
    assert target.host == os.uname().nodename
