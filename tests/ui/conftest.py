"""What most tests of the screen show, and how those that are coroutines are run."""

import asyncio
import inspect
from pathlib import Path

import pytest

from tests.ui.source import FakeSource, shop


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """A small server with one leak."""
    return shop(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
