"""What most tests of the screen show."""

from pathlib import Path

import pytest

from tests.ui.source import FakeSource, shop


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """A small server with one leak."""
    return shop(tmp_path)
