"""Facts about tests that the plug-in of pytest reads from them."""

import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tracelloc.testing.measuring import _code_of


def code_of(**item: Any) -> object:
    return _code_of(cast(pytest.Item, SimpleNamespace(**item)))


def test_code_of_a_test() -> None:
    def test() -> None: ...

    @functools.wraps(test)
    def wrapped() -> None:
        test()

    def given() -> None: ...

    assert code_of(function=test) is test.__code__
    assert code_of(function=wrapped) is test.__code__
    given.hypothesis = SimpleNamespace(inner_test=wrapped)  # type: ignore[attr-defined]
    assert code_of(function=given) is test.__code__
    assert code_of() is None, "a doctest"
    assert code_of(function=functools.partial(test)) is None
