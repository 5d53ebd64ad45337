"""Holders of a growing stack's memory, found while a real program is traced."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from tests.harness import PATIENCE_S, Target, Targets, frames_of
from tests.sessions import tracing
from tracelloc.model.blocks import BlockHolders
from tracelloc.model.verdicts import CODE_OF, Verdict
from tracelloc.record.facets import holders, pointers
from tracelloc.record.facets.holders import HoldersFacet
from tracelloc.record.facets.pointers import PointersFacet
from tracelloc.record.session.session import Session
from tracelloc.record.symbolization.symbolizer import Symbolizer
from tracelloc.show.presentation.blockholders import retained_by_message
from tracelloc.snapshots.snapshot import Snapshot

pytestmark = pytest.mark.bpf

EACH = 500


@pytest.fixture
def target(targets: Targets) -> Target:
    return targets.cpp("hoarder")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches as often as possible, for blocks that are a second old."""
    for module, kind in ((pointers, PointersFacet), (holders, HoldersFacet)):
        monkeypatch.setattr(module, "OLD_NS", 1_000_000_000)
        monkeypatch.setattr(module, "_PAUSE_NS", 1_000_000_000)
        monkeypatch.setattr(kind, "share", 1e9)
    monkeypatch.setattr(holders, "_AGAIN_NS", 1_000_000_000)


def steps(session: Session, target: Target, command: str) -> Iterator[Snapshot]:
    """Snapshots while the program goes on, and its blocks are found to accumulate."""
    target.say("go")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert target.ask(f"{command} {EACH}") == "done"
        yield session.snapshot().root
        time.sleep(0.1)
    raise AssertionError("it was not searched")


def are_growing(one: Snapshot) -> bool:
    """Whether some stack grows, in the last findings."""
    growing = [CODE_OF[Verdict.GROWING], CODE_OF[Verdict.LEAKING]]
    return one.findings is not None and bool(np.isin(one.findings.codes, growing).any())


def held_in(session: Session, one: Snapshot, name: str) -> BlockHolders:
    """The holders of the blocks that a function has allocated."""
    symbolizer = Symbolizer(session.root.space)
    (found,) = (
        found
        for stack, found in one.holders.items()
        if name in {str(each.symbol) for each in frames_of(symbolizer, one.frames(stack))}
    )
    return found


@pytest.mark.usefixtures("hasty")
def test_who_holds_a_map_that_grows(target: Target) -> None:
    with tracing(target) as session:
        one = next(one for one in steps(session, target, "keep") if are_growing(one))
        # Now it waits. Blocks that it is inserting may lead to the map, too, so the search counts
        # that begins when all of them are old.
        kept = int(one.totals.live_count.max())
        found: BlockHolders | None = None
        deadline = time.monotonic() + PATIENCE_S
        while found is None or found.blocks.count != kept:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            one = session.snapshot().root
            found = held_in(session, one, "open_session()") if one.holders else None
        assert found.unreached.count == 0
        (path,) = found.paths
        assert path.root.name == "app::g_sessions"
        assert [step.class_name for step in path.steps] == ["", "app::Session"]
        assert path.steps[-1].count == found.blocks.count
        (keeper,) = found.keepers
        # The map, with a node for each session, is all that the program has.
        assert keeper.held == found.blocks
        assert keeper.retained.count >= 2 * found.blocks.count
        (sentence,) = retained_by_message(found, found.heap.time_s)
        assert sentence.startswith("held by app::g_sessions (hoarder")


@pytest.mark.usefixtures("hasty")
def test_no_search_for_what_is_proven_lost(target: Target) -> None:
    with tracing(target) as session:
        searches = None
        for one in steps(session, target, "lose"):
            now = session.root.heap.unreachable.searches
            if searches is None and are_growing(one):
                searches = now
            if searches is not None and now >= searches + 3:
                break
        assert session.root.heap.unreachable.last_counts()[1].any()
        assert not one.holders
        assert session.root.facets["holders"].result is None
