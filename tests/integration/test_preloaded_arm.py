"""The preloaded library of 64-bit Arm, in emulated programs (QEMU's user mode), read from here.

The shared memory is the same on all processors. What takes part in no test here: signals' frames,
memory that is not a stack (QEMU has no process_vm_readv), and the order of memory accesses, which
QEMU makes that of this machine.
"""

import json
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import c_values, run
from tests.harness import FRAME_POINTERS, ROOT, TARGETS, Target
from tests.unit.armfiles import LIBRARIES
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.elf.file import ElfFile
from tracelloc.model.events import EVENT_DTYPE, EVENT_SIZE_BITS, EventKind
from tracelloc.record import abi
from tracelloc.record.kernel.rowtable import RowMemory, RowTable
from tracelloc.record.kernel.spacecontrol import SpaceControl
from tracelloc.record.process.procfs import Process, parse_maps
from tracelloc.record.sources.preloaded import ringmerge
from tracelloc.record.sources.preloaded.ringmerge import slots_of
from tracelloc.record.sources.preloaded.sharedarea import SharedArea, area_mappings

pytestmark = pytest.mark.long

ARM = ("clang", "--target=aarch64-linux-gnu", "-mno-outline-atomics")
EMULATOR = {"aarch64": ["qemu-aarch64", "-L", LIBRARIES.parent], "x86_64": ["qemu-x86_64"]}
COMPILER = {"aarch64": ARM, "x86_64": ("gcc",)}


class Machine:
    """Compiles the library and targets for a processor, and starts them under an emulator."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self._directory = name, directory
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        (module,) = (
            each for each in project["tool"]["setuptools"]["ext-modules"]
            if each["name"].endswith(".libtracelloc")
        )  # fmt: skip
        flags = *module["extra-compile-args"], "-fPIC", "-shared", *module["extra-link-args"]
        self.library = directory / f"{name}.so"
        source = ROOT / "probes/preloaded/library.c"
        run(*COMPILER[name], *flags, "-DPRELOAD_EMULATED", "-o", self.library, source)

    def c(self, name: str) -> Path:
        """``tests/targets/NAME.c``."""
        out = self._directory / f"{name}-{self.name}"
        flags = "-O1", "-g", "-fno-builtin", "-pthread", *FRAME_POINTERS
        run(*COMPILER[self.name], *flags, "-o", out, TARGETS / f"{name}.c")
        return out

    def command(self, program: Path, *arguments: object) -> list[Any]:
        preload = "-E", f"LD_PRELOAD={self.library}"
        return [*EMULATOR[self.name], *preload, program, *arguments]


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine("aarch64", tmp_path_factory.mktemp("arm"))


class Reader:
    """Takes what a program reports, all stacks walked by the program itself, until ``end``."""

    def __init__(self, pid: int, sample_bytes: int | None = None) -> None:
        process = Process(pid)
        mappings = list(parse_maps(process.maps_text()).values())
        self.area = SharedArea(process, area_mappings(mappings)[0], 1)
        self.area.set_up(
            max_frames=64, sizes=(0, None), sample_bytes=sample_bytes, max_stall_s=600,
            clears=False,
        )  # fmt: skip
        # The clocks of both machines differ.
        self.area._field("clock", np.uint32)[0] = ringmerge.CLOCK_COUNTER
        self.area.space["image"][0] = self.area.space["lineage"][0] = 1
        words = SpaceControl(self.area.space, 0)
        table = RowTable(RowMemory(self.area.rows), words.publish_tag, words.generation)
        # By file: (start, end, address in the file) of its mappings
        self.files: dict[str, list[tuple[int, int, int]]] = {}
        for each in mappings:
            is_emulators = each.start >> 40
            if is_emulators or not each.path.startswith("/") or each.deleted:
                continue
            elf = ElfFile(Path(each.path).read_bytes())
            start = elf.address_of(each.offset)
            if start is None:
                continue
            sites, rows = Cfi(elf).all_rows(1 << 20)
            inside = (sites >= start) & (sites < start + each.end - each.start)
            places = sites[inside] - np.uint64(start) + np.uint64(each.start)
            if len(places):
                assert table.insert(places, rows[inside], table.generation)
            self.files.setdefault(each.path, []).append((each.start, each.end, start))
        self.stacks: dict[int, tuple[int, list[int]]] = {}
        self.misses: list[int] = []  # Addresses without a row
        self.unmatched = 0
        # Size and stack by address: of live blocks, and of those that were resized
        self.live: dict[int, tuple[int, int]] = {}
        self._resized: dict[int, tuple[int, int]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._pump)
        self.area.switch_on()
        self._thread.start()

    def _pump(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._is_over.wait(0.01)
            for event in self.area.take_events():
                self._count(*(int(event[name]) for name in ("address", "size_tag", "stack_id")))
            for _, sent in self.area.records.take_stacks():
                for stack_id, flags, frames in sent.rows():
                    self.stacks[stack_id] = flags, list(frames)
            self.misses += [m.missing for m in self.area.records.take_misses(1024)]

    def _count(self, address: int, size_tag: int, stack_id: int) -> None:
        kind = size_tag >> EVENT_SIZE_BITS & 15
        if kind == EventKind.ALLOC:
            self.unmatched += address in self.live
            self.live[address] = size_tag & (1 << EVENT_SIZE_BITS) - 1, stack_id
        elif kind == EventKind.RESTORE:
            self.live[address] = self._resized[address]
        else:
            self.unmatched += address not in self.live
            self._resized[address] = self.live.pop(address, (0, 0))

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.area.close()

    def names(self, program: Path, frames: list[int]) -> list[str]:
        """The program's functions by frame, innermost first; "" for code of others."""
        symbols = [line.split() for line in run("nm", "-S", "--defined-only", program).splitlines()]
        functions = [
            (int(words[0], 16), int(words[1], 16), words[3]) for words in symbols if len(words) == 4
        ]
        found = []
        for frame in frames:
            inside = [
                frame - start + address
                for start, end, address in self.files[str(program)]
                if start < frame <= end
            ]
            found.append(
                next((n for at, size, n in functions if inside and at < inside[0] <= at + size), "")
            )
        return found


@pytest.fixture
def reading() -> Iterator[Any]:
    """Starts a target and reads what it reports; both are ended."""
    ends: list[Any] = []

    def begin(command: list[Any]) -> tuple[Target, Reader]:
        target = Target(command)
        ends.append(target.kill)
        reader = Reader(target.pid)
        ends.append(reader.end)
        return target, reader

    yield begin
    for end in reversed(ends):
        end()


def test_layout(tmp_path: Path) -> None:
    fields = {f"offsetof(struct preload_control, {name})": name for name in ringmerge.FIELDS}
    sizes = {
        "PRELOAD_BYTES": ringmerge.FILE_BYTES, "PRELOAD_AT_ROWS": ringmerge.AT_ROWS,
        "PRELOAD_AT_RECORDS": ringmerge.AT_RECORDS, "PRELOAD_AT_RINGS": ringmerge.AT_RINGS,
        "PRELOAD_RING_BYTES": ringmerge.RING_BYTES, "sizeof(struct event)": EVENT_DTYPE.itemsize,
        "sizeof(struct space)": abi.SPACE_DTYPE.itemsize, "PRELOAD_SLOTS_AT(9)": slots_of(9)[0],
        "MISS_REGISTERS": len(AARCH64.miss_registers),
    }  # fmt: skip
    found = c_values(
        tmp_path, "preloaded/area.h", [*fields, *sizes], COMPILER["aarch64"], EMULATOR["aarch64"]
    )
    assert {name: found[field] for field, name in fields.items()} == ringmerge.FIELDS
    assert {name: found[name] for name in sizes} == sizes


@pytest.mark.parametrize(
    ("threads", "seed", "slots"), [(4, 1, 3000), (1, 3, 500), (4, 5, 4), (300, 6, 3000)]
)
def test_books(arm: Machine, reading: Any, threads: int, seed: int, slots: int) -> None:
    """Blocks and bytes by function equal the program's own; all stacks reach their end."""
    program = arm.c("books")
    target, reader = reading(arm.command(program, threads, 24_000 // threads, seed, slots))
    books = {site: tuple(book) for site, book in json.loads(target.ask("run")).items() if book[0]}
    reader.end()
    assert not reader.area.is_damaged
    assert reader.area.counters().tolist() == [0] * len(reader.area.counters())
    assert (reader.misses, reader.unmatched) == ([], 0)
    found: dict[str, tuple[int, int]] = {}
    names_of = {n: reader.names(program, frames) for n, (_, frames) in reader.stacks.items()}
    for size, stack_id in reader.live.values():
        names = names_of[stack_id]
        assert reader.stacks[stack_id][0] == 0
        assert names[-3:] == ["take_turns_in_gang", "", ""]
        (site,) = (name for name in names if name.startswith("by_"))
        count, size_bytes = found.get(site, (0, 0))
        found[site] = count + 1, size_bytes + size
    assert found == books


def test_forks(arm: Machine, reading: Any) -> None:
    """Children report nothing, also those that go on in the middle of a call."""
    target, reader = reading(arm.command(arm.c("forkstorm"), 100))
    kept, bad = map(int, target.ask("go").split())
    reader.end()
    assert (bad, reader.misses, reader.unmatched) == (0, [], 0)
    assert [size for size, _ in reader.live.values()] == [40] * kept
    assert {flags for flags, _ in reader.stacks.values()} == {0}


def test_cost(arm: Machine, reading: Any, tmp_path: Path) -> None:
    """Reporting a block and its free takes about as many instructions as on x86-64."""
    plugin, out = tmp_path / "plugin.so", tmp_path / "count"
    run("gcc", "-shared", "-fPIC", "-o", plugin, ROOT / "tests/shim/instructions.c")

    def count(machine: Machine, program: Path, pairs: int, *, is_read: bool) -> int:
        emulator, *others = machine.command(program, pairs)
        command = [emulator, "-plugin", f"file={plugin},out={out}", *others]
        target, reader = reading(command) if is_read else (Target(command), None)
        assert target.ask("go") == "done"
        target.say("end")
        assert target.end() == 0
        if reader is not None:
            reader.end()
            assert (reader.misses, reader.unmatched, reader.live) == ([], 0, {})
        return int(out.read_text())

    costs = {}
    for machine in arm, Machine("x86_64", tmp_path):
        program = machine.c("pairs")
        costs[machine.name] = [
            (count(machine, program, 11_000, is_read=is_read) - fewer) / 10_000
            for is_read in (False, True)
            if (fewer := count(machine, program, 1000, is_read=is_read))
        ]
    idle, traced = zip(*costs.values(), strict=True)
    assert traced[0] - idle[0] < 1.3 * (traced[1] - idle[1])
