"""What most tests of the screen show, and how those that are coroutines are run."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ui.source import FakeSource, shop
from tracelloc.record.session.terminal import ProgramTerminal


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    """A small server with one leak."""
    return shop(tmp_path)


@pytest.fixture
def terminal() -> Iterator[ProgramTerminal]:
    """What a program's output goes to; ``program_writes`` (``screens.py``) is the program."""
    terminal = ProgramTerminal(24, 80)
    yield terminal
    terminal.release()
    terminal.join()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
