"""Fixtures of unit tests."""

from collections.abc import Iterator

import pytest

from tests.chrome import Chrome
from tests.unit.stage import stage

__all__ = ["stage"]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that a module's tests share."""
    with Chrome(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
