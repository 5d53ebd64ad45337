"""Rows that are made before stacks need them: of what, and in which order."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.harness import PATIENCE_S
from tracelloc.model.codefiles import CodeModule, CodePlace, Mapping
from tracelloc.record.abi import ROW_SET_DTYPE
from tracelloc.record.kernel.rowtable import RowMemory, RowTable
from tracelloc.record.process.procfs import AddressMap
from tracelloc.record.unwinding.rowsahead import RowsAhead
from tracelloc.record.unwinding.unwinder import generated_regions
from tracelloc.record.worker.client import FileReadError

SIZE = 0x1000


def mapping(number: int, size: int = SIZE) -> Mapping:
    start = number << 20
    return Mapping(start, start + size, 0, True, "0:1", number, f"/lib/{number}", False)


@dataclass
class FakeSpace:
    """Files of which each has two call sites; whoever asks for a file's is told of first."""

    asked: list[int] = field(default_factory=list)
    on_ask: Callable[[int], None] = lambda _: None
    remembered: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def place(self, address: int) -> CodePlace[CodeModule]:
        number = address >> 20
        elf = SimpleNamespace(usdt_offsets=set(), address_of=lambda offset: offset)
        elf.build_id, elf.troubles = f"{number:08x}", self.troubles
        return CodePlace(mapping(number), SimpleNamespace(number=number, elf=elf), None, 0)

    def module_of(self, one: Mapping) -> Any:
        return self.place(one.start).module

    @property
    def files(self) -> Any:
        return SimpleNamespace(tables=lambda module: FakeTables(self, module.number))


@dataclass
class FakeTables:
    space: FakeSpace
    number: int
    passed_rows = None

    def all_rows(self, _most: int) -> tuple[Any, Any]:
        self.space.asked.append(self.number)
        self.space.on_ask(self.number)
        return np.array([0x10, 0x20], np.uint64), np.array([7, 8], np.uint64)

    def rows(self, sites: Any, *, ahead: bool) -> Any:
        assert ahead
        return np.full(len(sites), 9, np.uint64)


def make(space: FakeSpace) -> tuple[RowsAhead, RowTable]:
    table = RowTable(RowMemory(np.zeros(64, ROW_SET_DTYPE)), lambda *_: None)
    memory: Any = SimpleNamespace(recall=lambda _: np.empty(0, np.uint64))
    return RowsAhead(space, table, memory), table


def make_rows(ahead: RowsAhead, *mapped: Mapping) -> None:
    ahead.renew(AddressMap(mapped))
    ahead.begin(whole=False)
    ahead.await_all(PATIENCE_S)


def test_rows_of_files_and_again() -> None:
    space = FakeSpace()
    ahead, table = make(space)
    make_rows(ahead, mapping(1, 3 * SIZE), mapping(2), mapping(3, 2 * SIZE))
    assert space.asked == [2, 3, 1]
    assert len(table) == 6
    space = FakeSpace()

    def fail(number: int) -> None:
        if number == 2:
            raise FileReadError("the process that reads them took too long")

    space.on_ask = fail
    ahead, table = make(space)
    make_rows(ahead, *map(mapping, (1, 2, 3)))
    assert space.asked == [1, 2, 3]
    assert len(table) == 4
    assert space.troubles == [
        "its unwind tables can't be read (the process that reads them took too long)"
    ]
    space = FakeSpace()
    ahead, table = make(space)
    everything = np.array([0], np.uint64), np.array([1 << 47], np.uint64)

    def change(_number: int) -> None:
        if len(space.asked) == 1:
            table.renew(1, *everything)

    space.on_ask = change
    make_rows(ahead, mapping(1))
    assert space.asked == [1, 1]
    assert len(table) == 2
    # A library that is closed takes its rows along.
    space = FakeSpace()
    ahead, _ = make(space)
    for mapped in ([mapping(1)], [], [mapping(1)]):
        make_rows(ahead, *mapped)
    assert space.asked == [1, 1]


def test_what_is_mapped_meanwhile_gets_its_rows() -> None:
    """Nobody begins anew for it before those that were there have theirs."""
    looking, go_on = threading.Event(), threading.Event()
    space = FakeSpace()

    def wait(number: int) -> None:
        if number == 1:
            looking.set()
            assert go_on.wait(PATIENCE_S)

    space.on_ask = wait
    ahead, table = make(space)
    ahead.renew(AddressMap([mapping(1)]))
    ahead.begin(whole=False)
    assert looking.wait(PATIENCE_S)
    ahead.renew(AddressMap([mapping(1), mapping(2), mapping(3)]))
    ahead.begin(whole=False)
    go_on.set()
    ahead.await_all(PATIENCE_S)
    assert space.asked == [1, 2, 3]
    assert len(table) == 6


def test_nothing_begins_after_the_end() -> None:
    space = FakeSpace()
    ahead, _ = make(space)
    ahead.renew(AddressMap([mapping(1)]))
    ahead.stop()
    ahead.begin(whole=False)
    ahead.await_all(PATIENCE_S)
    assert space.asked == []


def test_regions_of_generated_code() -> None:
    """The program's own memory around the code counts as well; unmapped memory does not."""

    def own(start: int, end: int, *, executable: bool) -> Mapping:
        return Mapping(start, end, 0, executable, "00:00", 0, "", False)

    reserved = [
        own(0x100000, 0x101000, executable=False),
        own(0x101000, 0x12F000, executable=True),
        own(0x12F000, 0x148000, executable=False),
    ]
    assert generated_regions(reserved) == [0x10, 0x11, 0x12]
    alone = own(0x201000, 0x22F000, executable=True)
    assert generated_regions([*reserved, alone]) == [0x10, 0x11, 0x12, 0x21]
    file = Mapping(0x12F000, 0x148000, 0, True, "0:1", 7, "/lib/7", False)
    assert generated_regions([*reserved[:2], file]) == [0x10, 0x11]
