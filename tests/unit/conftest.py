"""Fixtures of unit tests."""

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


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> OnMachine:
    """Has modules believe that this machine is another one: ``on_machine(AARCH64, module)``."""

    def pretend(machine: Architecture, *modules: ModuleType) -> None:
        for module in modules:
            monkeypatch.setattr(module, "native", lambda: machine)

    return pretend
