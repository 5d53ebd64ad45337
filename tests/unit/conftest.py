"""Fixtures of unit tests."""

import resource
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.chrome import Chrome
from tests.unit.stage import stage
from tracelloc.architecture import Architecture

__all__ = ["stage"]

OnMachine = Callable[..., None]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that a module's tests share."""
    with Chrome(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def own_memory() -> Iterator[None]:
    """Commands that tests call limit the memory of this process, which others need."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> OnMachine:
    """Has modules believe that this machine is another one: ``on_machine(AARCH64, module)``."""

    def pretend(machine: Architecture, *modules: ModuleType) -> None:
        for module in modules:
            monkeypatch.setattr(module, "native", lambda: machine)

    return pretend
