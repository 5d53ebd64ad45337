"""Programs that report allocations by themselves, against their own books."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import TARGETS, Builder, Targets, Tracelloc, run_tracelloc, wait_until
from tests.integration.test_attach import WAYS
from tests.integration.test_record import Recorder, reports
from tests.unit.otlpmessages import decoded_file, sums
from tests.unit.test_docs import DOCS

pytestmark = [pytest.mark.bpf, pytest.mark.long]

Books = dict[str, list[float]]
NOP5 = '-DUSDT_NOP=".byte 0x0f, 0x1f, 0x44, 0, 0\\n"'


def assert_equal(report: dict, books: Books) -> None:
    """Bytes are exact; halves of blocks are rounded."""
    assert report["sample_bytes"] == 0
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    found = {}
    for entry in report["top_allocators"]:
        names = [frame["symbol"] for frame in entry["stack"]]
        assert names[0].startswith("by_"), names
        assert {"work", "start_thread"} & set(names), names
        found[names[0]] = [entry["allocations"], entry["bytes"]]
    *_, allocations = (books.pop("all"),)
    assert set(found) == {site for site, (count, _) in books.items() if count}
    for site, (count, size_bytes) in found.items():
        assert size_bytes == books[site][1], site
        assert abs(count - books[site][0]) <= 0.5, site
    assert report["live_bytes"] == sum(size for _, size in books.values())
    assert report["allocated_bytes"] == allocations[1]
    assert abs(report["allocations"] - allocations[0]) <= 0.5 * len(found)
    assert report["partial_allocations"] == report["unmatched_frees"] == 0


@pytest.mark.parametrize("attach", WAYS)
def test_books(targets: Targets, attach: str) -> None:
    target = targets.c("reporter", 4, 20_000)
    options = ["--source", "usdt", "--json", "--top", 100, "--attach", attach]
    tracer = Tracelloc("-p", target.pid, *options)
    # Each place that an alloc probe has raises the counter.
    assert target.ask("counters") in ("4 1", "1 1")
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert target.ask("counters") == "0 0"
    assert "malloc libraries: otel_memory in" in "".join(tracer.messages)
    assert_equal(tracer.last(), books)
    sizes = [entry["size_bytes"] for entry in tracer.last()["top_allocations"]]
    assert max(sizes) <= 6002, "sizes are those of the blocks"


def test_more_than_the_ring_holds(targets: Targets) -> None:
    target = targets.c("reporter", 4, 60_000)
    options = ["--source", "usdt", "--json", "--top", 100, "--events-size", "4k"]
    tracer = Tracelloc("-p", target.pid, *options)
    books = json.loads(target.ask("run"))
    assert tracer.final_report()["overflow_map_events"] > 0
    assert_equal(tracer.last(), books)


def test_counters_drop_when_we_are_killed(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100)
    options = ["-p", target.pid, "--source", "usdt", "--json"]
    tracer = Tracelloc(*options)
    target.ask("run")
    assert target.ask("counters") != "0 0"
    tracer.kill()
    # Processes that it was starting may have its descriptors for a moment longer.
    wait_until(lambda: target.ask("counters") == "0 0")
    assert json.loads(target.ask("run"))


def test_forked_children_live(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100)
    tracer = Tracelloc("-p", target.pid, "--source", "usdt", "--json")
    target.ask("run")
    assert target.ask("fork") == "20"
    assert tracer.stop() == 0
    # What children do is not the parent's.
    assert tracer.last()["unmatched_frees"] == 0
    assert target.ask("fork") == "20"


def test_when_there_is_nothing_else(targets: Targets) -> None:
    """A static program without symbols."""
    target = targets.c("reporter", 2, 1000, flags=("-static", "-s"))
    tracer = Tracelloc("-p", target.pid, "--json", "--top", 100)
    books = json.loads(target.ask("run"))
    assert tracer.stop() == 0
    assert "its own reports are used instead" in "".join(tracer.messages)
    report = tracer.last()
    assert report["live_bytes"] == sum(size for site, (_, size) in books.items() if site != "all")


def test_harmful_places_and_programs_without_probes_are_refused(targets: Targets) -> None:
    target = targets.c("reporter", 1, 100, flags=(NOP5,))
    result = run_tracelloc("-p", target.pid, "--source", "usdt", "--text", status=1)
    assert "a nop of five bytes or more" in result.stderr
    assert "leave --source out" in result.stderr
    assert target.ask("counters") == "0 0"
    target = targets.c("chain")
    result = run_tracelloc("-p", target.pid, "--source", "usdt", "--text", status=1)
    assert "has no probes otel_memory:alloc or pytorch:malloc; leave --source out" in result.stderr


def test_programs_that_are_started(builder: Builder, tmp_path: Path) -> None:
    """From the first allocation on, with the children that they fork."""
    path = tmp_path / "reports"
    command = [builder.c("reporter"), 2, 1000]
    options = "--source", "usdt:otel_memory", "--follow", "--json", "--interval", "1h"
    orders = tmp_path / "orders"
    orders.write_text("run\nfork\n")
    with orders.open() as stream:
        result = run_tracelloc(*options, "--report", path, "--", *command, stdin=stream)
    assert result.returncode == 0, result.stderr
    _, books, whole = result.stdout.splitlines()
    assert whole == "20"
    live = sum(size for site, (_, size) in json.loads(books).items() if site != "all")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    parent, *children = [one for one in found if one.get("pid")][-21:]
    assert len(children) == 20
    for one in (parent, *children):
        assert (one["live_bytes"], one["unmatched_frees"], one["lost_events"]) == (live, 0, 0)
    # 100 blocks that stand for three each.
    assert {child["frees"] for child in children} == {300}


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in of PyTorch's library for GPUs."""
    library = tmp_path_factory.mktemp("cuda") / "libc10_cuda.so"
    run("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, TARGETS / "cudastandin.c")
    return library


def devices_of(report: dict) -> dict[str, dict[str, list[int]]]:
    """Sums by device, as in the books of tensors.py; stacks end with functions of Python, a GPU."""
    found: dict[str, dict[str, list[int]]] = {}
    for entry in report["top_allocators"]:
        *names, device = [frame["symbol"] for frame in entry["stack"]]
        assert names[:2] in (["report_malloc", "standin_malloc"], ["standin_malloc", "ffi_call"])
        (function,) = {"weights", "activations", "gradients"} & set(names)
        assert names.index(function) < names.index("train") < names.index("<module>")
        number = device.removeprefix("[GPU ").removesuffix("]")
        found.setdefault(function, {})[number] = [entry["allocations"], entry["bytes"]]
    return found


@pytest.mark.parametrize("attach", WAYS)
def test_tensors(targets: Targets, cuda: Path, attach: str) -> None:
    """From the middle of the run on, by device and function of Python."""
    target = targets.start("/usr/bin/python3", TARGETS / "tensors.py", cuda)
    assert target.ask("counters") == "0 0"
    options = ["--source", "usdt", "--json", "--top", 99, "--attach", attach]
    tracer = Tracelloc("-p", target.pid, *options)
    assert target.ask("counters") == "1 1"
    target.ask("20")
    books = json.loads(target.ask("1000"))
    assert tracer.stop() == 0
    assert target.ask("counters") == "0 0"
    report = tracer.last()
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    found = devices_of(report)
    for function, by_device in books.items():
        for device, (count, size_bytes) in by_device.items():
            expected = [count, size_bytes] if count else None
            assert found.get(function, {}).get(device) == expected, (function, device)
    assert report["live_bytes"] == sum(size for one in books.values() for _, size in one.values())
    # That of the block from before.
    assert report["unmatched_frees"] == 1
    assert (report["sample_bytes"], report["space"], report["memory"]) == (None, "gpu", {})
    assert "what PyTorch's allocator caches is not visible" in "".join(tracer.messages)
    assert (report["allocations"], report["frees"]) == (1020 * 2 + 8, 1020 * 2 - 16)


def test_names_of_providers(targets: Targets, cuda: Path, tmp_path: Path) -> None:
    target = targets.start("/usr/bin/python3", TARGETS / "tensors.py", cuda)
    options = ["-p", target.pid, "--text"]
    result = run_tracelloc(*options, "--source", "usdt:otel_memory", status=1)
    assert "no probes otel_memory:alloc, only those of" in result.stderr
    assert "pytorch" in result.stderr
    result = run_tracelloc(*options, "--source", "usdt:pytorhc", status=2)
    assert "--source=usdt:pytorhc: no such provider; did you mean 'pytorch'?" in result.stderr


OWN = """
[[provider]]
name = "pytorch"
alloc = { probe = "malloc", pointer = 1, size = 3 }
free = { probe = "free", pointer = 1 }
"""


def test_providers_of_files(targets: Targets, cuda: Path, tmp_path: Path) -> None:
    """One of the same name takes precedence: here, without devices."""
    target = targets.start("/usr/bin/python3", TARGETS / "tensors.py", cuda)
    (tmp_path / "own.toml").write_text(OWN)
    options = ["--source", "usdt:pytorch", "--allocators", tmp_path / "own.toml", "--json"]
    tracer = Tracelloc("-p", target.pid, *options)
    books = json.loads(target.ask("20"))
    report = tracer.final_report()
    assert report["live_bytes"] == sum(size for one in books.values() for _, size in one.values())
    symbols = {frame["symbol"] for each in report["top_allocators"] for frame in each["stack"]}
    assert "weights" in symbols
    assert not {"[GPU 0]", "[GPU 1]"} & symbols


CALLS = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
blocks = [ctypes.c_void_p() for _ in range(9)]
for block in blocks:
    assert cuda.cudaMalloc(ctypes.byref(block), ctypes.c_ulong(1 << 30)) == 0
assert cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_ulong(1 << 41)) == 2
for block in blocks[:4]:
    cuda.cudaFree(block)
print("done", flush=True)
sys.stdin.readline()
"""


def test_calls_of_cuda_as_documented(targets: Targets, cuda: Path, tmp_path: Path) -> None:
    library = tmp_path / "libcudart.so.12"
    library.write_bytes(cuda.read_bytes())
    shutil.copy(DOCS / "files" / "cuda.toml", tmp_path)
    target = targets.start("/usr/bin/python3", "-c", CALLS, library)
    options = ["--allocators", tmp_path / "cuda.toml", "--malloc", "gpu calls", "--json"]
    tracer = Tracelloc("-p", target.pid, *options)
    assert target.ask("go") == "done"
    report = tracer.final_report()
    assert (report["live_bytes"], report["live_allocations"]) == (5 << 30, 5)
    assert (report["allocations"], report["frees"], report["space"]) == (9, 4, "gpu")
    assert report["unmatched_frees"] == 0


def test_tensors_from_the_first_one_on(cuda: Path, tmp_path: Path) -> None:
    """The library comes when the program imports it."""
    path = tmp_path / "reports"
    options = ["--source", "usdt:pytorch", "--json", "--interval", "1h", "--report", path]
    command = ["/usr/bin/python3", TARGETS / "tensors.py", cuda]
    (tmp_path / "orders").write_text("100\ncounters\n")
    with (tmp_path / "orders").open() as orders:
        result = run_tracelloc(*options, "--top", 99, "--", *command, stdin=orders, status=0)
    _, books, counters = result.stdout.splitlines()
    assert counters == "1 1"
    report = json.loads(path.read_text().splitlines()[-1])
    # With the weights from before the first order, which are freed then.
    assert (report["allocations"], report["unmatched_frees"]) == (205, 0)
    assert report["live_bytes"] == sum(
        size for one in json.loads(books).values() for _, size in one.values()
    )
    result = run_tracelloc(*options, "--", "true")
    assert "ended before an allocator was found" in result.stderr


def test_two_copies_of_a_library(targets: Targets, cuda: Path, tmp_path: Path) -> None:
    copies = [tmp_path / f"libc10_cuda{number}.so" for number in range(2)]
    for copy in copies:
        copy.write_bytes(cuda.read_bytes())
    program = (
        "import ctypes, sys\n"
        "copies = [ctypes.CDLL(path) for path in sys.argv[1:]]\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    for number, copy in enumerate(copies * 5):\n"
        "        block = ctypes.c_void_p(0x7e0000000000 + (number << 20))\n"
        "        copy.standin_malloc(block, number % 3, ctypes.c_long(100), None)\n"
        "        if number < 4: copies[0].standin_free(block)\n"
        "    print([copy.standin_counters() for copy in copies], flush=True)\n"
    )
    target = targets.start("/usr/bin/python3", "-c", program, *copies)
    tracer = Tracelloc("-p", target.pid, "--source", "usdt", "--json")
    assert target.ask("go") == str([1 << 16 | 1] * 2)
    report = tracer.final_report()
    figures = [report[name] for name in ("allocations", "frees", "live_bytes", "unmatched_frees")]
    assert figures == [10, 4, 600, 0]
    assert target.ask("go") == "[0, 0]"


def test_devices_without_python(targets: Targets, tmp_path: Path) -> None:
    """The third argument of reporter's probes is taken for a device: its lowest bits."""
    own = OWN.replace("pytorch", "otel_memory").replace('"malloc"', '"alloc"')
    (tmp_path / "own.toml").write_text(own.replace("size = 3", "size = 2, device = 3"))
    target = targets.c("reporter", 2, 200)
    options = ["--source", "usdt:otel_memory", "--allocators", tmp_path / "own.toml", "--json"]
    tracer = Tracelloc("-p", target.pid, *options, "--top", 10_000)
    books = json.loads(target.ask("run"))
    report = tracer.final_report()
    assert {cause: n for cause, n in report["lost"].items() if n} == {}
    sums = {"by_one": [0, 0]}
    for entry in report["top_allocators"]:
        inner, *_, device = [frame["symbol"] for frame in entry["stack"]]
        assert re.fullmatch(r"\[GPU \d+\]", device)
        if inner == "by_one":
            sums[inner][0] += entry["allocations"]
            sums[inner][1] += entry["bytes"]
            size = entry["bytes"] // entry["allocations"]
            assert device == f"[GPU {size}]"
    assert sums["by_one"] == books["by_one"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="written in x86-64's assembly")
def test_operands_of_every_kind(targets: Targets) -> None:
    target = targets.c("operands")
    tracer = Tracelloc("-p", target.pid, "--source", "usdt", "--json", "--top", 99)
    assert target.ask("go") == "done"
    report = tracer.final_report()
    assert "not probed" not in "".join(tracer.messages)
    outermost = {entry["bytes"]: entry["stack"][-1]["symbol"] for entry in report["top_allocators"]}
    assert not outermost.pop(107).startswith("[GPU")
    assert outermost == {100 + number: f"[GPU {number}]" for number in range(7)}


def test_recordings_of_tensors(targets: Targets, cuda: Path, tmp_path: Path) -> None:
    target = targets.start("/usr/bin/python3", TARGETS / "tensors.py", cuda)
    path = tmp_path / "heap.rec"
    recorder = Recorder(path, "-p", target.pid, "--source", "usdt")
    books = json.loads(target.ask("100"))
    assert recorder.end() == 0
    report = reports(path)[-1]
    live = sum(size for one in books.values() for _, size in one.values())
    assert (report["space"], report["live_bytes"]) == ("gpu", live)
    otlp = tmp_path / "heap.otlp"
    run_tracelloc("report", path, "-o", otlp, status=0)
    found = sums(decoded_file(otlp.read_bytes()))
    assert (found["gpu_inuse_space"], "inuse_space" in found) == (live, False)
