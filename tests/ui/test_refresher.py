"""Which pictures the refresher makes."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S
from tests.ui.source import shop
from tracelloc.model.wanted import Wanted
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.ui.functions import FUNCTIONS
from tracelloc.ui.histogramviews import AGES, THREADS
from tracelloc.ui.picture import Picture
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.stackviews import STACKS
from tracelloc.ui.view import Journal, Settings, View


@pytest.mark.parametrize(
    ("chosen", "made"),
    [(FUNCTIONS, ["functions"]), (AGES, ["ages"]), (THREADS, ["stacks", "threads"])],
)
def test_a_key_during_a_snapshot(tmp_path: Path, chosen: View[object], made: list[str]) -> None:
    """The view before is not computed any more, unless the snapshot lacks what the next shows."""
    source, pictures = shop(tmp_path), queue.Queue[Picture | BaseException]()
    settings = Settings(STACKS)
    take_snapshot = source.take_snapshot

    def take_and_press(wanted: Wanted) -> TraceSnapshot:
        trace = take_snapshot(wanted)
        refresher.ask(replace(settings, view=chosen))
        return trace

    source.take_snapshot = take_and_press  # type: ignore[method-assign]
    refresher = Refresher(source, Journal(), pictures.put, pictures.put, None)
    refresher.start(settings)
    try:
        for name in made:
            picture = pictures.get(timeout=PATIENCE_S)
            assert isinstance(picture, Picture)
            assert picture.settings.view.name == name
            refresher.shown()
    finally:
        refresher.close()
    assert pictures.empty()
