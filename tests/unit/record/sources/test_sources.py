"""Several sources read as one: what one of them does is not the others' trouble."""

from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.unit.events import A, records
from tests.unit.stage import FakeCapture
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.space import INJECTED_FILE
from tracelloc.record.sources.eventsource import Sources


class Failing(FakeCapture):
    """A source that can be replaced, and whose memory can't be read."""

    failure: Exception | None = None

    def take_events(self) -> Any:
        raise ValueError("a wild length")

    def fail(self, error: Exception) -> None:
        self.failure = error


def source(kind: type[FakeCapture] = FakeCapture, addresses: tuple[int, ...] = ()) -> Any:
    made = kind(CaptureConfig(follow=True, max_spaces=2))
    made.drain.records = [records([(A, at, 8, 1, 1)]) for at in addresses]
    return made


def test_sources_fail_alone_and_add_up() -> None:
    failing, probes = source(Failing), source(addresses=(1, 2))
    sources = Sources(probes)
    sources.add(failing)
    batch, has_stacks = sources.take_events()
    assert batch.events["address"].tolist() == [1, 2]
    assert has_stacks
    assert str(failing.failure) == "a wild length"
    probes = source()
    probes.take_events = Failing.take_events.__get__(probes)
    with pytest.raises(ValueError, match="a wild length"):
        Sources(probes).take_events()
    first, probes = source(addresses=(1,)), source(addresses=(2, 3))
    first.is_urgent = True
    sources = Sources(probes)
    sources.add(first)
    assert sources.are_urgent
    assert sources.take_events(only_urgent=True)[0].events["address"].tolist() == [1]
    first.drain.records = [records([(A, 9, 8, 1, 1)])]
    assert sources.take_events()[0].events["address"].tolist() == [9, 2, 3]
    assert len(sources.take_events()[0].events) == 0
    first, probes = source(), source()
    first.counts += np.uint64(2)
    probes.counts += np.uint64(3)
    sources = Sources(probes)
    sources.add(first)
    assert set(sources.counters().tolist()) == {5}
    sources.drop(first)
    assert set(sources.counters().tolist()) == {5}


def test_the_injected_library_has_no_relocations() -> None:
    """No loader would make them: an address that is read from memory is 0."""
    with INJECTED_FILE.open("rb") as file:
        sections = [section.name for section in ELFFile(file).iter_sections()]
    assert [name for name in sections if name.startswith(".rela")] == []
