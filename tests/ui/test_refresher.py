"""Which pictures the refresher makes."""

import itertools
import queue
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import PATIENCE_S
from tests.ui.source import shop
from tracelloc.model.snapshotrequest import SnapshotRequest
from tracelloc.snapshots.snapshot import TraceSnapshot
from tracelloc.ui.functions import FUNCTIONS
from tracelloc.ui.histogramviews import AGES, THREADS
from tracelloc.ui.picture import Picture
from tracelloc.ui.refresher import Refresher
from tracelloc.ui.stackviews import STACKS
from tracelloc.ui.view import Journal, Settings, TraceSource, View, ViewSelection


@pytest.mark.parametrize(("chosen", "taken"), [(FUNCTIONS, 1), (AGES, 1), (THREADS, 2)])
def test_a_key_during_a_snapshot(tmp_path: Path, chosen: View[object], taken: int) -> None:
    """The view before is not computed; a snapshot follows only if this one lacks something."""
    source, settings = shop(tmp_path), Settings(STACKS)
    take_snapshot, wanted = source.take_snapshot, []

    def take_and_press(what: SnapshotRequest) -> TraceSnapshot:
        wanted.append(what)
        trace = take_snapshot(what)
        refresher.ask(replace(settings, view=chosen))
        return trace

    source.take_snapshot = take_and_press  # type: ignore[method-assign]
    pictures = queue.Queue[Picture | BaseException]()
    with closing(Refresher(source, Journal(), pictures.put, pictures.put, None)) as refresher:
        refresher.start(settings)
        assert views_shown(refresher, pictures) == [chosen.name]
    assert len(wanted) == taken


def test_a_key_while_a_view_is_computed(tmp_path: Path) -> None:
    """The view that is left is not finished, and the one before is drawn again."""
    source, settings = shop(tmp_path), Settings(STACKS)

    def leave_at_once(_source: TraceSource) -> Callable[[ViewSelection], object]:
        return lambda _selection: refresher.ask(settings)

    pictures = queue.Queue[Picture | BaseException]()
    with closing(Refresher(source, Journal(), pictures.put, pictures.put, None)) as refresher:
        refresher.start(settings)
        assert views_shown(refresher, pictures) == ["stacks"]
        refresher.ask(replace(settings, view=replace(AGES, maker=leave_at_once)))
        assert views_shown(refresher, pictures) == ["stacks"]


@pytest.mark.parametrize("cpu_s", [0.0, 1.0])
def test_what_takes_long_is_done_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_s: float
) -> None:
    """A snapshot of millions of blocks, not only when the user asks for another view."""
    spent_s = itertools.count(0.0, cpu_s)
    monkeypatch.setattr(time, "thread_time", lambda: next(spent_s))
    pictures = queue.Queue[Picture | BaseException]()
    with closing(
        Refresher(shop(tmp_path), Journal(), pictures.put, pictures.put, 0.001)
    ) as refresher:
        refresher.start(Settings(STACKS))
        assert isinstance(pictures.get(timeout=PATIENCE_S), Picture)
        refresher.shown()
        if cpu_s:
            with pytest.raises(queue.Empty):
                pictures.get(timeout=0.5)
            refresher.ask(Settings(AGES))
        assert isinstance(pictures.get(timeout=PATIENCE_S), Picture)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_program_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_idle: bool
) -> None:
    """Pictures in which only the clock would move are made less often."""
    monkeypatch.setattr("tracelloc.ui.refresher._IDLE_PAUSE", 1_000_000)
    source = shop(tmp_path)
    take_snapshot, events = source.take_snapshot, itertools.count(0, 0 if is_idle else 1)

    def take(what: SnapshotRequest) -> TraceSnapshot:
        trace = take_snapshot(what)
        return replace(trace, processes=(replace(trace.root, events=next(events)),))

    source.take_snapshot = take  # type: ignore[method-assign]
    pictures = queue.Queue[Picture | BaseException]()
    with closing(Refresher(source, Journal(), pictures.put, pictures.put, 0.001)) as refresher:
        refresher.start(Settings(STACKS))
        for _ in range(2):
            assert isinstance(pictures.get(timeout=PATIENCE_S), Picture)
            refresher.shown()
        if is_idle:
            with pytest.raises(queue.Empty):
                pictures.get(timeout=0.5)
        else:
            assert isinstance(pictures.get(timeout=PATIENCE_S), Picture)


def views_shown(refresher: Refresher, pictures: queue.Queue[Picture | BaseException]) -> list[str]:
    """Views of all pictures until the refresher has made what it was asked for."""
    names = []
    while not refresher.is_settled:
        picture = pictures.get(timeout=PATIENCE_S)
        assert isinstance(picture, Picture), picture
        names.append(picture.settings.view.name)
        refresher.shown()
    assert pictures.empty()
    return names
