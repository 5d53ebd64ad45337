"""Shared fixtures: compiled target programs, and whether this machine can trace."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.harness import Builder, Target
from tracelloc.capture import system
from tracelloc.errors import TracellocError

# Nobody's own filters have a say in what tests see.
os.environ["XDG_CONFIG_HOME"] = "/nonexistent"
# Nor what earlier runs have found out. Root could make any other directory.
os.environ["XDG_CACHE_HOME"] = "/dev/null"


def _cannot_trace() -> str | None:
    try:
        system.check_all()
    except TracellocError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without BPF those tests are skipped with the reason; where it must work, they fail."""
    reason = _cannot_trace()
    if reason is None or os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("bpf"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """Compiles the programs in ``tests/targets``, each once per session."""
    return Builder(tmp_path_factory.mktemp("targets"))


@pytest.fixture
def targets() -> Iterator[list[Target]]:
    """Targets started by a test; whatever is left of them is killed at its end."""
    started: list[Target] = []
    yield started
    for target in started:
        target.kill()
