"""The order of these tests, and a program that is watched for minutes beside all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Builder, Target, Tracelloc, made_once
from tracelloc.record.kernel.captureconfig import CaptureConfig

LONGEST_S = 1800  # The program ends by itself after this time, whatever becomes of the tests
# Modules with tests that take more than fifty seconds each.
LONGEST = {
    "test_package", "test_documented_commands", "test_run_leaks", "test_readme",
    "test_recording_week", "test_rights", "test_inference_server",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the long watch come last, when it has lasted long enough.

    The longest come first: begun late, they go on while the other workers have ended.
    """
    items.sort(key=lambda item: (_needs_long_watch(item), item.path.stem not in LONGEST))


def _needs_long_watch(item: pytest.Item) -> bool:
    return "long_watch" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def _begin_long_watch(request: pytest.FixtureRequest) -> None:
    """Begins it before the first test, if any test will ask for it."""
    asking = [item for item in request.session.items if _needs_long_watch(item)]
    if any(item.get_closest_marker("skip") is None for item in asking):
        request.getfixturevalue("long_watch")


@pytest.fixture(scope="session")
def long_watch(builder: Builder, shared: Path, _probes_compiled_once: None) -> Iterator[Tracelloc]:
    """Reports on ``specimens beside``, a few events a second, since the first test."""

    def compile_probes(out: Path) -> None:
        CaptureConfig().compile()
        out.touch()

    # All workers begin with it: one of them compiles the probes.
    made_once(shared / "compiled", compile_probes)
    with Target([builder.c("specimens"), "beside", str(LONGEST_S)]) as target, Tracelloc(
        "-p", target.pid, "--json", "--interval", "5s", "--top", 10,
    ) as tracer:  # fmt: skip
        target.say("go")
        yield tracer
