"""The readers, each as a function of some bytes; and what each may raise.

Whatever else comes out is a finding, as is a call that takes too much CPU time or memory.
"""

import io
import os
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from tests.commands import run
from tests.fuzz import pythonheap, sharedarea
from tests.unit.hostile import MadeSection, elf_bytes, in_memory, symbol_sections
from tracelloc.architecture import elf_architecture, native
from tracelloc.command.customallocators import parse_custom_allocators
from tracelloc.errors import MalformedError, TracellocError, UnsupportedError
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.cfi.walk import CfiError
from tracelloc.files.demangle import demangle
from tracelloc.files.dwarf.sourcelines import SourceLines
from tracelloc.files.elf import ElfFile, NotElfError, SymbolTable
from tracelloc.files.elf.debugfiles import debug_link, embedded_symbols
from tracelloc.files.elf.plt import plt_functions
from tracelloc.heap.stacks import Stacks
from tracelloc.model.events import Miss
from tracelloc.record.mallocs.discovery import MallocChoice, Module, allocators_in, discover
from tracelloc.record.mallocs.families import JEMALLOC_MARKERS, LIBC, OPERATORS, PROVIDERS
from tracelloc.record.probe_points.placement import plan_probes
from tracelloc.record.process.processlist import parse_stat
from tracelloc.record.process.procfs import AddressMap, Process, parse_maps
from tracelloc.record.runtimes.cpython.blocks import Addresses, References
from tracelloc.record.runtimes.cpython.codeobjects import CodeObjects, LineTable
from tracelloc.record.runtimes.cpython.interpreter import _CODE
from tracelloc.record.runtimes.cpython.pools import POOL_BYTES
from tracelloc.record.symbolization.modulesymbols import PerfMap, describe
from tracelloc.record.worker.client import AskedFile, FileReadError, FileWorker
from tracelloc.record.worker.codefilereader import CodeFileReader
from tracelloc.record.worker.questions import QUESTIONS, PackedMessage, receive
from tracelloc.record.worker.symbolfilereader import (
    CODE_DTYPE,
    KnownFiles,
    SymbolFileReader,
    miss_dtype,
)
from tracelloc.record.worker.targetfile import FileDecoder, TargetFile, WorkerFile
from tracelloc.record.worker.unwindtables import StackWalker, UnwindTables
from tracelloc.show.alerts.suppressions import read_patterns
from tracelloc.show.filters.rules import parse_rules
from tracelloc.show.importers import read_profile
from tracelloc.show.recording.momentcodec import (
    MomentParts,
    arrays_unpacked,
    decode,
    encode,
    packed,
)
from tracelloc.show.recording.parts import SnapshotEncoder, trace_of
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.show.recording.recordednames import NamesWriter, RecordedSymbols
from tracelloc.system.bounded import UnpackBudget
from tracelloc.text import printable

Reader = Callable[[bytes], object]
_PYTHON_HEAD_WORDS = 10  # Words of a `struct python_code` from `code` on, before what was copied
# Registers and the memory of a stack.
STACK = struct.pack("<8Q", 0x401010, 0x401008, 0x401010, 0, 0, 0, 0, 0).ljust(512, b"\x10")
PYTHON = struct.pack("<10Q", 0x1000, 7, 0x1000, 256, 0x1100, 64, 0x1140, 64, 0x1180, 64)


@contextmanager
def _one_line(*others: type[Exception]) -> Iterator[None]:
    """An error of ours says in one line what is wrong."""
    try:
        with suppress(*others):
            yield
    except TracellocError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may as well succeed


def _note(name: bytes, arguments: bytes) -> bytes:
    content = struct.pack("<QQQ", 0x1000, 0x2000, 0x3000) + b"otel_memory\0" + name + arguments
    head = struct.pack("<III", 8, len(content), 3) + b"stapsdt\0"
    return head + content + bytes(-len(content) % 4)


NOTES = _note(b"alloc\0", b"8@%rdi -4@-24(%rsp,%rax,4) 8@0x10+x(%rip)\0") + _note(
    b"free\0", b"8@%rax\0"
)


def _elf(data: bytes) -> None:
    with suppress(NotElfError, UnsupportedError):
        elf = ElfFile(in_memory(data))
        code = CodeFileReader(elf)
        code.facts()
        functions, *_ = code.functions([*LIBC.functions, *OPERATORS.functions], JEMALLOC_MARKERS)
        places = [place for found in functions.values() for place in found][:16]
        for address, size in [(0x1000, 8), *places]:
            offset = elf.offset_of(address)
            if offset is not None:
                code.offsets([(offset, min(size, 1 << 16), ("rdi",)), (offset, 0, None)])
            code.exits(address)
            code.always_calls(address, [0x1000], ["malloc"])
        code.parts("malloc")
        table = elf.symbols
        for address in (0, 0x1000, 0x1008, 1 << 63):
            table.find(address)
            code.function_at(address)
        plt_functions(elf)
        debug_link(elf)
        elf.dynamic_names  # noqa: B018 - it is worked out
        elf.build_id  # noqa: B018
        elf.is_go  # noqa: B018
        elf.names_like("m*")
        with suppress(ValueError):
            code.usdt("otel_memory")
        inner = embedded_symbols(elf)
        if inner is not None:
            len(SymbolTable(inner.tables()))
            inner.close()
        elf.close()


def _stacks(data: bytes) -> None:
    """A stack in a file's code, with its registers and memory."""
    with suppress(NotElfError):
        elf = ElfFile(in_memory(data[512:]))
        machine = elf_architecture(elf.machine, elf.bits) or native()
        size_bytes = 8 * len(machine.miss_registers)
        registers = np.frombuffer(data[:size_bytes].ljust(size_bytes, b"\0"), np.uint64)
        head = np.zeros(1, miss_dtype(machine))
        head[0] = (registers, 0, int(registers[1]), 0, 512)
        code = np.array([(0x400000, machine.address_end, 0, 7, 0)], CODE_DTYPE)
        memory = data[:512].ljust(512, b"\0")
        files = KnownFiles(machine)
        files.by_number[7] = SymbolFileReader(elf)
        files.stacks(127, code, head, memory)
        elf.close()


def _addresses(elf: ElfFile) -> list[int]:
    found = [start for segment in elf.segments for start in (segment.address, segment.address + 5)]
    return [0x1004, *(address for address in found[:16] if address < 1 << 63)]


def _dwarf(data: bytes) -> None:
    with suppress(NotElfError):
        elf = ElfFile(in_memory(data))
        lines = SourceLines(elf)
        addresses = [*_addresses(elf), *range(0x401000, 0x401100, 16)]
        chains = lines.chains(addresses)
        assert lines.chains(addresses) == chains
        for frame in (frame for chain in chains for frame in chain):
            printable(frame.file or "")
        printable(lines.reason or "")
        lines.close()
        elf.close()


def _cfi(data: bytes) -> None:
    with suppress(NotElfError, UnsupportedError):
        elf = ElfFile(in_memory(data))
        cfi = Cfi(elf)
        addresses = [*_addresses(elf), *range(0x401000, 0x401100, 16)]
        for address in addresses:
            with suppress(CfiError):
                cfi.rules(address)
            cfi.is_start(address)
        cfi.all_rows(1 << 16)
        rows = cfi.rows(np.array(addresses, np.uint64))
        assert rows.tolist() == [cfi.row(address) for address in addresses]
        elf.close()


def _proc(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    # The kernel writes the fields, the process the names: a line that parses must be one of ours.
    with suppress(ValueError):
        AddressMap(parse_maps(text).values()).find(0x401000)
    with suppress(ValueError):
        parse_stat(text)
    printable(text)


def _processes(data: bytes) -> None:
    """Names that a process gives itself, among the fields that the kernel writes."""
    name = data.replace(b"\n", b"\\n")[:15]
    path = data.replace(b"\n", b"\\012")
    stat = b"7 (" + name + b") S 1 7 7 0 -1 0 " + b"0 " * 44 + b"\n"
    found = parse_stat(stat.decode(errors="replace"))
    assert (found.state, found.command) == ("S", name.decode(errors="replace"))
    line = b"00400000-00401000 r-xp 00000000 fe:00 12 /" + path + b"\n"
    (mapping,) = parse_maps(line.decode(errors="surrogateescape")).values()
    assert (mapping.start, mapping.end, mapping.inode) == (0x400000, 0x401000, 12)
    assert printable(mapping.path).isprintable() or not mapping.path.isprintable()


def _perf_map(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        process = Path(directory) / "7"
        (process / "root/tmp").mkdir(parents=True)
        uid = os.getuid()
        (process / "status").write_text(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t7\n")
        (process / "root/tmp/perf-7.map").write_bytes(data)
        found = PerfMap(Process(7, Path(directory))).find_all(np.array([0x1000], np.uint64))
        for one in found:
            if one is not None:
                describe(one.name)


def _filters(data: bytes) -> None:
    with suppress(TracellocError):
        str(parse_rules(data.decode(errors="replace"), "rules.toml"))


def _allocators(data: bytes) -> None:
    with suppress(TracellocError):
        parse_custom_allocators(data.decode(errors="replace"), "allocators.toml")


def _profile(suffix: str) -> Reader:
    def read(data: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=suffix) as file:
            Path(file.name).write_bytes(data)
            with _one_line(MalformedError):
                read_profile(Path(file.name))

    return read


def _usdt(data: bytes) -> None:
    """Notes of USDT probes."""
    sections = [MadeSection(".note.stapsdt", data, kind=7), MadeSection(".stapsdt.base", b"\0")]
    elf = ElfFile(elf_bytes(sections))
    CodeFileReader(elf).usdt_providers()
    with suppress(ValueError):
        CodeFileReader(elf).usdt("otel_memory")
    elf.close()


def _recording(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".rec") as file, _one_line():
        Path(file.name).write_bytes(data)
        recording = RecordedTrace(Path(file.name))
        for index in range(len(recording.moments)):
            recording.trace_at(index)


def _moment(data: bytes) -> None:
    """What is behind the checksums, which keep nearly all damage out."""
    with suppress(MalformedError):
        RecordedSymbols().add((0, 0), packed(data), UnpackBudget())
    with suppress(MalformedError):
        arrays_unpacked(packed(data), np.int64, np.uint16, np.uint64, budget=UnpackBudget())
    with suppress(MalformedError):
        parts = decode(packed(data), MomentParts())
        trace_of(parts, lambda _: Stacks(), lambda _key, _time_ns: np.zeros(1, np.int64))


def _suppressions(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        with suppress(TracellocError):
            read_patterns([Path(file.name)])


def _names(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    if not text.startswith(("_Z", "__Z")):  # those are read by a process of their own
        demangle(text)
    describe(text)


def _answers(data: bytes) -> None:
    """What a worker answers that a file has taken over."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(data[:65536])
        one.shutdown(socket.SHUT_WR)
        try:
            message, attached = receive(other, 10.0)
        except OSError:
            return
    for question in QUESTIONS.values():
        with suppress(MalformedError):
            given = [ARGUMENTS[name] for name in question.types if name != "return"]
            question.answer(message, attached, given)
    worker = _TakenOver(message, attached)
    file = WorkerFile(worker, -1, "/file")
    _discovered(worker)
    for take in (
        file.describe, file.count, file.data_layout, lambda: file.symbols([0x1000, 0x2000]),
        lambda: FileDecoder(file, of_debug=False).chains([0x1000, 0x2000]),
        lambda: FileDecoder(file, of_debug=False).variables([0x1000, 0x2000]),
        lambda: file.decoder(of_debug=True),
    ):  # fmt: skip
        with suppress(FileReadError):
            take()


class _TakenOver(FileWorker):
    """A worker with one answer to all questions."""

    def __init__(self, message: object, data: bytes) -> None:
        super().__init__("names")
        self._said = message, data

    def exchange(self, file: AskedFile, question: PackedMessage) -> tuple[object, bytes]:
        return self._said


def _discovered(worker: FileWorker) -> None:
    """What is made of the same answer to other questions."""
    with suppress(FileReadError, NotElfError):
        file = TargetFile(os.memfd_create("file"), "/file", worker)
        module = Module(("0:0", 1), "/file", file.open_path, file)
        plan_probes(discover([module]))
        plan_probes(allocators_in([module], MallocChoice(providers=PROVIDERS)))
        for name in ("_r_debug", "malloc"):
            file.find_object(name)
            file.parts(name)
        file.names_like("m*")
        file.function_at(0x1000)
        UnwindTables(file).is_start(0x1000)
        file.close()
    walker = StackWalker(7, worker)
    stack = Miss(1, 0, 1, 0x1000, (0x1000,) * 8, 0x2000, bytes(64), 0)
    with suppress(FileReadError):
        walker.follow([stack], 127)


def _python(data: bytes) -> None:
    """Code objects of CPython's, in memory of which any part may be missing or wrong."""

    def read(address: int, size_bytes: int) -> bytes:
        return data[address % 4096 :][: min(size_bytes, 1 << 20)]

    codes = CodeObjects(_CODE, 0x4242424242424242, read)
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist()
    for code in words[:8]:
        codes.function(code)
        codes.text(code)
        codes.frame(code, words[-1])
    if len(words) >= _PYTHON_HEAD_WORDS:
        codes.note_copy(words[:256])
    lines = LineTable(data, 1)
    for offset in (-1, 0, 2, 1 << 20):
        lines.line(offset)


_POOL_WORDS, _POOL_HEADER_WORDS = POOL_BYTES // 8, 6


def _heap(data: bytes) -> None:
    """References in an image of CPython's heap whose pools, pieces and limits are anything.

    Raises AssertionError for what leads out of the image.
    """
    head = np.frombuffer(data[:64].ljust(64, b"\0"), np.uint8).astype(np.int64)
    pool_count, sizes = int(head[0]) % 3, 2 * (head[1 : 2 + int(head[2]) % 4] % 64 + 1)
    pool_words = pool_count * _POOL_WORDS
    piece_at = pool_words + np.cumsum(sizes) - sizes
    words = np.zeros(pool_words + int(sizes.sum()) + 8, np.uint64)
    given = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)[: len(words)]
    words[: len(given)] = given
    pools = Addresses()
    pools.add(np.arange(1, pool_count + 1, dtype=np.uint64) * np.uint64(POOL_BYTES), 0)
    starts = np.arange(1 << 20, (1 << 20) + 4096 * len(sizes), 4096, dtype=np.uint64)
    count = len(words) // 2 + 1
    flags = np.resize(np.frombuffer(data or b"\0", np.uint8), 2 * count)
    kinds, limits = flags[:count].copy(), flags.view(np.uint16)[:count].copy()
    references = References(
        words, pool_words, pools, starts, starts + 8 * sizes.astype(np.uint64), piece_at,
        kinds, limits,
    )  # fmt: skip
    known = np.flatnonzero(kinds[: len(words) // 2]) * 2
    within = (known < pool_words) & (known % _POOL_WORDS >= _POOL_HEADER_WORDS)
    known = known[within | np.isin(known, piece_at)]
    ends = np.append(piece_at, pool_words + sizes.sum())
    for start in known.tolist():
        end = ends[np.searchsorted(ends, start, side="right")] if start >= pool_words else 0
        if not end:
            first = start // _POOL_WORDS * _POOL_WORDS
            block = 2 * (int(words[first + 4]) >> 32) + 2
            end = min(first + _POOL_WORDS, start + block)
        assert 0 <= references.size(start) <= end - start
    parents, queue = np.zeros(count, np.uint32), np.zeros(count + len(known), np.uint32)
    queue[: len(known)] = known >> 1
    parents[known >> 1] = 1
    assert references.trace(parents, queue, 0, len(known)) <= len(queue)
    parents[:] = 0
    if len(piece_at):
        queue[0] = piece_at[0] >> 1
        assert references.trace(parents, queue, 0, 1) <= count + 1
    counts, last = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
    references.referrers(known, parents, counts, last)
    assert int(last.max()) < len(words)


def _answer(message: object) -> bytes:
    packed = PackedMessage(message)
    content = b"".join(packed.parts)
    return struct.pack("<II", len(packed.text), len(content)) + packed.text + content


WORDS = np.arange(0x1000, 0x1003, dtype=np.uint64)
# Arguments of all questions, by name.
ARGUMENTS = {
    "number": 7, "descriptor": None, "names": ["malloc"], "tails": ["alloc"], "pattern": "m*",
    "name": "malloc", "address": 0x1000, "addresses": [0x1000, 0x2000], "entry": 0x1000,
    "functions": [(0x1000, 16, ("rdi",)), (0x2000, 0, None)], "provider": "otel_memory",
    "frees": [0x1000], "sites": WORDS, "most": 8, "limit": 127, "mappings": (), "heads": [0],
    "memory": b"", "by_name": True, "of_debug": False, "of_threads": False,
}  # fmt: skip
# An answer to each kind of question.
ANSWERS = [
    _answer([["f", 0x1000, 16], None]),
    _answer([True, False, ["ab" * 20, "a.debug", 7]]),
    _answer([[[["f", "/a.c", 7, True]], []], [None, "/a.dwo"], "damaged"]),
    _answer([["alloc", 4096, 8192, [[8, 14, 255, 0, True, 0, 4, True], None], 1, False]]),
    _answer(
        [[[0, 64, 0x1000, True]], True, None, False, True, [".eh_frame"], [["a.so"], None], []]
    ),
    _answer([{"malloc": [[0x1000, 16]]}, {"alloc": ["malloc"]}, {"malloc": True}]),
    _answer([[[0x1000, 0x1010]], 64, 8]),
    _answer(["otel_memory", "libc"]),
    _answer([[0x1000, 0x1010], ""]),
    _answer([WORDS, "damaged"]),
    _answer([WORDS, WORDS, 0.5, None]),
    _answer([[[WORDS, 1, 0, False]], WORDS[:1], WORDS[:1]]),
]

READERS: dict[str, Reader] = {
    "elf": _elf, "usdt": _usdt, "dwarf": _dwarf, "cfi": _cfi, "proc": _proc,
    "processes": _processes, "perfmap": _perf_map, "filters": _filters, "allocators": _allocators,
    "pprof": _profile(".pb.gz"), "json": _profile(".json"), "folded": _profile(".folded"),
    "suppressions": _suppressions, "names": _names, "recording": _recording, "moment": _moment,
    "answers": _answers, "stacks": _stacks, "python": _python,
    "shared area": sharedarea.play, "heap": _heap, "python heap": pythonheap.play,
}  # fmt: skip

MAPS = b"""00400000-00401000 r-xp 00000000 fe:00 12    /bin/a
7f0000005000-7f0000006000 r-xp 00000000 00:01 77       /memfd:jit (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0        [stack]
"""
FILTERS = b"""[[rule]]
pattern = "std::*"
action = "hide"
group = "cxx"
why = "noise"
"""
ALLOCATORS = b"""[[allocator]]
name = "image pool"
module = "libimage.so*"
functions = [ { name = "pool_alloc", kind = "alloc", size = 2 }, { name = "f*", kind = "free" } ]
"""


def _program(directory: Path, *flags: str) -> bytes:
    """A small real program with symbols, call-frame information and DWARF."""
    source = directory / "small.c"
    source.write_text(
        "int leaf(int x) { return x * 3; }\n"
        "__attribute__((noinline)) int malloc_(int x) { return leaf(x) + 1; }\n"
        "void _start(void) { for (;;) malloc_(2); }\n"
    )
    program = directory / "small"
    command = ["gcc", "-O1", "-g", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-o"]
    run(*command, program, source, *flags)
    return program.read_bytes()


def _exports() -> dict[str, bytes]:
    """What tracelloc itself writes of a small profile."""
    from tests.unit.profiles import small
    from tracelloc.show.export import exporter_for
    from tracelloc.show.presentation.profile import Metric

    suffixes = {"pprof": "a.pb.gz", "json": "a.json", "folded": "a.folded"}
    found = {}
    for name, path in suffixes.items():
        content = io.BytesIO()
        content.writelines(exporter_for(path).write(small(), Metric.BYTES))
        found[name] = content.getvalue()
    return found


def _recorded(directory: Path) -> bytes:
    """A recording of a few moments."""
    from tests.unit.recordedtraces import namers, traces
    from tracelloc.show.recording.writer import RecordingWriter

    path = directory / "sound.rec"
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, max_bytes=1 << 30, max_s=1e9)
    for trace in traces(40.0):
        writer.add(trace, namers(40.0))
    writer.close()
    return path.read_bytes()


def _moments() -> list[bytes]:
    """Moments and names as they are before they are compressed."""
    from tests.unit.recordedtraces import namers, traces

    trace = traces(40.0)[-1]
    names = NamesWriter()
    names.add_addresses(address for index in range(3) for address in trace.root.frames(index))
    batch = names.batch(namers(40.0).namer_of(trace.root.target), 0.0)
    assert batch is not None
    moment = encode(SnapshotEncoder(lambda _: 0).parts(trace), MomentParts())
    return [zlib.decompress(moment), zlib.decompress(batch)]


def _heap_image() -> bytes:
    """Two pools and three pieces: what refers to itself, and sizes that are too large."""
    words = np.zeros(2 * _POOL_WORDS + 200, np.uint64)
    words[0] = 0x0303020101FF0102
    words[4] = words[_POOL_WORDS + 4] = np.uint64(0xFFFFFFFF00000000)
    words[6::5] = POOL_BYTES + 48
    words[7::11] = 2 * POOL_BYTES + 100
    words[2 * _POOL_WORDS :: 3] = 1 << 20
    return words.tobytes()


def seeds(reader: str, directory: Path) -> list[bytes]:
    """Sound inputs of a reader."""
    if reader in ("elf", "dwarf", "cfi", "stacks"):
        load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, 4096, 4096, 4096)
        made = elf_bytes(symbol_sections(["malloc", "free", "je_mallocx"]), programs=load)
        noted = elf_bytes([MadeSection(".gnu_debuglink", b"a.debug\0\0\0\0\0"),
                           MadeSection(".note.gnu.build-id", bytes(36))])  # fmt: skip
        files = [_program(directory), _program(directory, "-gdwarf-4"), made, noted]
        return [STACK + file for file in files] if reader == "stacks" else files
    if reader == "recording":
        return [_recorded(directory)]
    if reader == "moment":
        return _moments()
    fixed = {
        "proc": [MAPS, b"7 (a) b) S 1 7 7 0 -1 4194560 " + b"1 " * 44],
        "processes": [b"a) R 1 (b", b"/x\x0b1-2 r-xp 0 0:1 5 /l\xe2\x80\xa8"],
        "perfmap": [b"1000 10 one\n0x2000 20 two words\n", b"1000 10 JS:*f /a.js:1:2\n"],
        "filters": [FILTERS], "allocators": [ALLOCATORS], "answers": ANSWERS,
        "python": [PYTHON + struct.pack("<2Q", 1, 0x4242424242424242) * 30],
        "heap": [_heap_image()], "usdt": [NOTES],
        "shared area": sharedarea.honest(), "python heap": pythonheap.honest(),
        "suppressions": [b"# known\nleak:foo*\nleak:^a$\n"],
        "names": [b"_RNvCs1234_7mycrate3foo", b"_ZN3foo17h0123456789abcdefE", b"JS:*x /y.js:1:2"],
    }  # fmt: skip
    return fixed[reader] if reader in fixed else [_exports()[reader]]
