"""``pytest --tracelloc``, run by an ordinary user on tests of known truth."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.commands import outcome
from tests.harness import PATIENCE_S, PRELOADED, TARGETS, as_nobody, made_once
from tests.schema import Schema
from tracelloc.model.events import (
    EVENT_KIND_MASK,
    EVENT_SIZE_BITS,
    EVENT_SIZE_MASK,
    EventKind,
    PartMark,
)
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.process.procfs import Process
from tracelloc.record.sources.preloaded.preloadedsource import PreloadedSource
from tracelloc.record.sources.preloaded.sharedarea import area_mappings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")

TESTS = """
import ctypes
import gc
import sys
import threading
import unittest
import weakref

import numpy
import pytest

import pyleak

libc = ctypes.CDLL(None)
libc.malloc.restype = None  # an int of the address would look like a pointer
kept = []
done = threading.Event()
limited = pytest.mark.limit_leaks("0 B")

def not_copied(stack):
    return all(frame.function != "copy_of" for frame in stack.frames)

def encode(count):
    for _ in range(count):
        pyleak.encode("x" * 9999)

def lose(size):
    for _ in range(20):
        libc.malloc(size)

def test_nothing():
    pass

class TestCase(unittest.TestCase):
    @limited
    def test_method(self):
        lose(5000)

def test_lost():
    lose(1000)

@limited
def test_extension():
    encode(50)

@pytest.mark.limit_leaks("200000 B")
def test_tolerated():
    encode(20)

@pytest.mark.limit_leaks("0 B", filter_fn=not_copied)
def test_filtered():
    encode(30)

@limited
def test_cycle():
    ring = [bytearray(10_000)]
    ring.append(ring)

@pytest.fixture
def ring():
    ring = unittest.TestCase()
    ring.ring = ring
    return [ring]

def test_fixture(ring):
    gone = weakref.ref(ring.pop())
    gc.collect()
    assert gone() is None

def test_reference():
    for _ in range(20):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(bytearray(8191)))

@limited
@pytest.mark.limit_memory("128 TiB")
def test_container():
    for _ in range(20):
        pyleak.parse("the collector's list has it")

@limited
@pytest.mark.limit_memory("24 MiB")
def test_small():
    numpy.ones(2 << 20)

@pytest.mark.limit_memory("24 MiB")
def test_large():
    numpy.ones(4 << 20)

@limited
@pytest.mark.limit_memory("15 EiB")
def test_kept():
    kept.append(numpy.ones(1 << 17))

def test_threads():
    begun = threading.Barrier(4)

    def run():
        begun.wait()
        while not done.is_set():
            bytearray(1 << 16)

    for _ in range(3):
        threading.Thread(target=run, daemon=True).start()
    begun.wait()
    lose(3000)

@pytest.mark.limit_memory("0 B")
def test_wrong():
    done.set()  # now that the test before has been checked
    assert kept == 1

@pytest.mark.limit_memory("much")
def test_marker():
    pass
"""
# Size and number of lost blocks; none in the other tests.
LEAKED = {
    "lost": (1000, 20), "extension": (10_000, 50), "tolerated": (10_000, 20),
    "filtered": (10_000, 30), "reference": (8192, 20), "threads": (3000, 20),
    "TestCase::test_method": (5000, 20),
}  # fmt: skip
FAILED = {"extension", "large", "TestCase::test_method", "wrong", "marker"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A directory of nobody with the tests, and with the extension that they use."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shutil.chown(directory, 65534, 65534)
        shutil.copy(TARGETS / "pyleak.c", directory)

        def build(out: Path) -> None:
            include = sysconfig.get_path("include")
            command = [
                "gcc",
                "-O1",
                "-g",
                "-shared",
                "-fPIC",
                f"-I{include}",
                "pyleak.c",
                "-o",
                out,
            ]
            subprocess.run(command, check=True, cwd=directory, timeout=PATIENCE_S)

        made_once(directory / "pyleak.abi3.so", build)
        (directory / "test_memory.py").write_text(TESTS)
        yield directory


def run(folder: Path, *options: str, status: int) -> subprocess.CompletedProcess[str]:
    """Runs pytest as nobody, with no plug-in that is not needed."""
    done = outcome(*as_nobody("-p", "no:cacheprovider", *options, module="pytest"), cwd=folder)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def figures(path: Path) -> dict[str, dict[str, Any]]:
    """The figures of a file, by the names of the tests."""
    content = json.loads(path.read_text())
    Schema().check(content, "pytest")
    tests = content["tests"]
    return {one["test"].split("::", 1)[1].removeprefix("test_"): one for one in tests}


def measured(
    folder: Path, name: str, text: str, *options: str, status: int = 0
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Runs the tests in a text. Returns pytest's output, and the figures."""
    place = Path("build", name)  # Other tests do not collect it
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place / f"test_{name}.py").write_text(text)
    options = "--tracelloc", "--tracelloc-json", f"{name}.json", *options
    done = run(folder, *options, str(place / f"test_{name}.py"), status=status)
    return done.stdout, figures(folder / f"{name}.json")


def check(found: dict[str, dict[str, Any]]) -> None:
    """Checks figures that are exact, and outcomes."""
    assert [test["problem"] for test in found.values() if "problem" in test] == []
    assert {name for name, test in found.items() if test["leaks"]} == LEAKED.keys()
    for name, (size_bytes, count) in LEAKED.items():
        leaks = [one for one in found[name]["leaks"] if one["type"] is None]
        blocks = sum(one["blocks"] for one in leaks)
        # Remains of pointers may make most of them look reachable, or kept by others of them.
        assert sum(one["bytes"] for one in leaks) in range(
            blocks * size_bytes, count * size_bytes + 1, size_bytes
        ), name
        assert 1 <= blocks <= count, name
        assert found[name]["live_bytes"] >= count * size_bytes
    # A marker that is wrong fails the test before it begins.
    assert {name for name, test in found.items() if test["outcome"] == "failed"} == FAILED - {
        "marker"
    }
    assert found["nothing"]["peak_bytes"] < 2048
    assert 0 <= found["large"]["peak_bytes"] - (32 << 20) < 4096
    assert 0 <= found["small"]["peak_bytes"] - (16 << 20) < 4096
    assert 0 <= found["kept"]["live_bytes"] - (1 << 20) < 4096
    assert found["cycle"]["peak_bytes"] > 10_000 > found["cycle"]["live_bytes"]
    assert 0 <= found["large"]["at_peak"][0]["bytes"] - (32 << 20) < 4096
    leak = found["extension"]["leaks"][0]
    line = TESTS_LINES["copy_of"]
    assert [(frame["function"], frame["line"]) for frame in leak["stack"][:2]] == [
        ("copy_of", line), ("encode", TESTS_LINES["encode"]),
    ]  # fmt: skip
    for name, text in (("lost", "lose(1000)"), ("TestCase::test_method", "lose(5000)")):
        own = found[name]["leaks"][0]["stack"][-2:]
        assert [frame["function"] for frame in own] == [
            "[python]", name.replace("::", ".") if "::" in name else f"test_{name}",
        ]  # fmt: skip
        assert own[1]["line"] == TESTS[: TESTS.index(text)].count("\n") + 1
    types = {leak["type"]: leak for leak in found["reference"]["leaks"]}
    assert types.keys() == {"bytearray", None}
    assert types["bytearray"]["bytes"] == 56 * types["bytearray"]["blocks"]


SOURCE = (TARGETS / "pyleak.c").read_text().splitlines()
TESTS_LINES = {
    "copy_of": next(n for n, line in enumerate(SOURCE, 1) if "malloc(" in line),
    "encode": next(n for n, line in enumerate(SOURCE, 1) if "copy_of(read" in line),
}


def test_figures_and_limits(folder: Path) -> None:
    done = run(folder, "--tracelloc", "--tracelloc-json", "out.json", status=1)
    assert done.stderr == ""
    check(figures(folder / "out.json"))
    text = done.stdout
    assert 'limit_memory("24 MiB"): the peak was 32.0 MiB (33,55' in text
    peak = text[text.index("the peak was 32.0 MiB") :].partition("____")[0]
    assert peak.count("allocated in") == 1, "stacks below 1 % of the limit are left out"
    found = r'limit_leaks\("0 B"\): nothing points to \d+ KiB \([345]\d0,000 bytes\) any more:'
    assert re.search(found, text)
    assert "limit_memory, limit_leaks: 'much' is not a size" in text
    place = rf"    copy_of in \S+/pyleak.abi3.so \(\S*pyleak.c:{TESTS_LINES['copy_of']}\)"
    assert re.search(place, text)
    (row,) = re.findall(r"^ *(\S+ \S+) +.*test_memory.py::test_large$", text, re.MULTILINE)
    assert row == "32.0 MiB"
    assert "memory of 15 tests (tracelloc)" in text


@pytest.mark.long
def test_xdist(folder: Path) -> None:
    run(folder, "--tracelloc", "--tracelloc-json", "both.json", "-n", "2", status=1)
    check(figures(folder / "both.json"))


def test_without_search(folder: Path) -> None:
    """Tests with limits still have call stacks, the others figures."""
    options = "--tracelloc", "--tracelloc-no-search", "--tracelloc-json", "fast.json"
    run(folder, *options, status=1)
    found = figures(folder / "fast.json")
    limited = {"extension", "tolerated", "filtered", "TestCase::test_method"}
    assert {name for name, test in found.items() if test["leaks"]} == limited
    assert found["lost"]["live_bytes"] >= 20_000
    assert found["extension"]["leaks"][0]["stack"][0]["function"] == "copy_of"
    at_peak = found["large"]["at_peak"][0]
    assert 0 <= at_peak["bytes"] - (32 << 20) < 4096
    assert at_peak["stack"][-1]["function"] == "test_large"


def test_one_search_serves_all_tests(folder: Path) -> None:
    (folder / "counting.py").write_text(
        "from tracelloc.testing.measuring import Channel\n"
        "asked, ask = [], Channel.ask\n"
        "Channel.ask = lambda self, request: asked.append(request) or ask(self, request)\n"
        "def pytest_unconfigure():\n    print('searches:', asked.count(b'search'))\n"
    )
    text = (
        "import pytest\nimport pyleak\nkept = []\n"
        "@pytest.mark.parametrize('n', range(8))\n"
        "def test_one(n, subtests):\n"
        "    kept.append(bytearray(999))\n"
        "    with subtests.test():\n"
        "        for _ in range(20 * (n == 3)):\n"
        "            pyleak.encode('x' * 9999)\n"
    )
    (folder / "known.txt").write_text("leak:call_far_down\n")  # Beyond the end of tests' stacks
    options = "-p", "counting", "--tracelloc-suppressions", "known.txt"
    output, found = measured(folder, "many", text, *options)
    assert "searches: 1\n" in output
    assert "memory of 8 tests" in output
    assert "not measured" not in output
    leaks = {name: one["leaks"] for name, one in found.items()}
    assert [name for name, some in leaks.items() if some] == ["one[3]"]
    (leak,) = leaks["one[3]"]
    assert leak["bytes"] == leak["blocks"] * 10_000
    assert (leak["stack"][-1]["function"], leak["stack"][-1]["line"]) == ("test_one", 9)


def test_functions_that_run_never_or_twice(folder: Path) -> None:
    """Leaks are those of the run that has lost them, whatever else plug-ins and tests do."""
    (folder / "dist").mkdir(exist_ok=True)  # Other tests do not collect it
    (folder / "dist" / "conftest.py").write_text(
        "import pytest\nfrom _pytest.runner import runtestprotocol\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_call(item):\n"
        "    if 'skipped' in item.name:\n        pytest.skip('before it begins')\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    for _ in range(2 * ('twice' in item.name)):\n"
        "        runtestprotocol(item, nextitem=nextitem)\n"
        "    return 'twice' in item.name or None\n"
    )
    (folder / "dist" / "test_runs.py").write_text(
        "import gc\nimport json\nimport os\nimport pytest\nimport pyleak\nruns = []\n"
        "def encode(size):\n    for _ in range(20):\n        pyleak.encode('x' * (size - 1))\n"
        "def test_first():\n    encode(1000)\n"
        "def test_skipped():\n    pass\n"
        "def test_second():\n    encode(2000)\n"
        "@pytest.mark.limit_leaks('0 B')\n"
        "def test_twice():\n"
        "    runs.append(1)\n    if len(runs) == 1:\n        encode(3000)\n"
        "def test_fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n        raise SystemExit\n"
        "    os.waitpid(child, 0)\n    encode(4000)\n"
        "def test_replaced(monkeypatch):\n    encode(5000)\n"
        "    monkeypatch.setattr(json, 'loads', None)\n"
        "    monkeypatch.setattr(gc, 'collect', None)\n"
    )
    run(folder, "--tracelloc", "--tracelloc-json", "runs.json", "dist/test_runs.py", status=1)
    found = json.loads((folder / "runs.json").read_text())["tests"]
    sizes = [{one["bytes"] // one["blocks"] for one in test["leaks"]} for test in found]
    names = [test["test"].partition("::test_")[2] for test in found]
    assert names == ["first", "second", "twice", "twice", "fork", "replaced"]
    assert sizes == [{1000}, {2000}, {3000}, set(), {4000}, {5000}]
    assert [test["outcome"] for test in found[2:4]] == ["failed", "passed"]


def test_new_blocks_are_cleared(folder: Path) -> None:
    """Remains of pointers would hide leaks, and remains of objects give them types."""
    text = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "for one in (libc.malloc, libc.realloc):\n    one.restype = ctypes.c_void_p\n"
        "def test_cleared():\n"
        "    for new in (libc.malloc, lambda size: libc.realloc(None, size)):\n"
        "        block = ctypes.c_void_p(libc.malloc(500))\n"
        "        ctypes.memset(block, 255, 500)\n"
        "        libc.free(block)\n"
        "        assert ctypes.string_at(new(500), 500) == bytes(500)\n"
    )
    measured(folder, "cleared", text)


def test_a_signal_while_tracelloc_answers(folder: Path) -> None:
    """A time limit may end the wait for a search: later tests have figures of their own."""
    text = (
        "import pytest\nimport pyleak\nimport signal\n"
        "def encode(size):\n    for _ in range(20):\n        pyleak.encode('x' * (size - 1))\n"
        "def end(_, frame):\n"
        "    while frame and frame.f_locals.get('request') != b'search':\n"
        "        frame = frame.f_back\n"
        "    if frame:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0)\n        pytest.fail('late')\n"
        "@pytest.mark.limit_leaks('0 B')\n"
        "def test_late():\n    encode(1000)\n    signal.signal(signal.SIGALRM, end)\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n"
        "@pytest.mark.limit_memory('1 MiB')\n@pytest.mark.parametrize('n', range(3))\n"
        "def test_later(n):\n    bytearray(100_000 * (n + 1))\n"
        "@pytest.mark.limit_leaks('0 B')\ndef test_last():\n    encode(2000)\n"
    )
    _, found = measured(folder, "late", text, status=1)
    peaks = [found[f"later[{n}]"]["peak_bytes"] // 100_000 for n in range(3)]
    assert peaks == [1, 2, 3]
    assert {name for name, test in found.items() if test["outcome"] == "failed"} == {"late", "last"}
    for name, size in (("late", 1000), ("last", 2000)):
        assert {one["bytes"] // one["blocks"] for one in found[name]["leaks"]} == {size}, name


def test_the_end_of_tracelloc(folder: Path) -> None:
    """Tests go on; limits that could not be checked fail theirs, and others say why."""
    text = (
        "import os\nimport pytest\nimport signal\n"
        "def test_first():\n    bytearray(100_000)\n"
        "def test_end():\n    os.kill(os.getppid(), signal.SIGKILL)\n"
        "@pytest.mark.limit_memory('1 MiB')\ndef test_memory():\n    pass\n"
        "@pytest.mark.limit_leaks('0 B')\ndef test_leaks():\n    pass\n"
        "@pytest.mark.parametrize('n', range(100))\ndef test_more(n):\n    bytearray(1 << 20)\n"
    )
    output, found = measured(folder, "ended", text, "-n", "1", status=1)
    assert found["first"]["peak_bytes"] > 100_000
    failed = {name for name, test in found.items() if test["outcome"] == "failed"}
    assert failed == {"memory", "leaks"}
    assert {test.get("problem") for test in found.values()} == {"tracelloc has ended"}
    assert 'limit_memory("1 MiB"): not checked: tracelloc has ended\n' in output
    assert 'limit_leaks("0 B"): not checked: tracelloc has ended\n' in output
    assert "and 94 more tests with such problems\n" in output


def test_a_test_that_closes_all_sockets(folder: Path) -> None:
    text = (
        "import os\nimport stat\n"
        "def test_first():\n    bytearray(100_000)\n"
        "def test_close():\n"
        "    for one in map(int, os.listdir('/proc/self/fd')):\n"
        "        if os.path.exists(f'/proc/self/fd/{one}') and stat.S_ISSOCK(os.fstat(one)[0]):\n"
        "            os.close(one)\n"
        "def test_last():\n    bytearray(100_000)\n"
    )
    _, found = measured(folder, "closed", text, "--tracelloc-no-search")
    assert found["first"]["peak_bytes"] // 100_000 == 1
    assert found["last"]["problem"] == "a test has closed the connection to tracelloc"


def test_a_worker_without_descriptors(folder: Path) -> None:
    """pytest-xdist sees the end of its streams, although tracelloc runs on."""
    text = "import os\ndef test_none():\n    os.closerange(3, 200)\n"
    output, _ = measured(folder, "none", text, "-n", "1", status=1)
    assert "crashed while running 'build/none/test_none.py::test_none'" in output


def test_reports_that_another_plugin_drops(folder: Path) -> None:
    """Figures of earlier tests that they would have carried come with later ones."""
    (folder / "dropping.py").write_text(
        "from _pytest.runner import runtestprotocol\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    if 'twice' in item.name:\n"
        "        runtestprotocol(item, log=False, nextitem=nextitem)\n"
    )
    text = (
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(5))\ndef test_first(n):\n    bytearray(100_000)\n"
        "@pytest.mark.limit_memory('1 MiB')\ndef test_twice():\n    bytearray(100_000)\n"
    )
    _, found = measured(folder, "dropped", text, "-n", "1", "-p", "dropping")
    assert [test["peak_bytes"] // 100_000 for test in found.values()] == [1] * 6


def test_without_the_option(folder: Path) -> None:
    """Markers are known and do nothing, and nothing is imported for them."""
    done = run(folder, "--strict-markers", "-q", status=1)
    assert "1 failed, 15 passed" in done.stdout
    (folder / "test_imports.py").write_text(
        "import sys\ndef test_imports():\n"
        "    ours = {name for name in sys.modules if name.startswith('tracelloc')}\n"
        "    assert ours == {'tracelloc', 'tracelloc.testing', 'tracelloc.testing.plugin'}\n"
    )
    done = run(folder, "test_imports.py", status=0)


BLOCKS = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.tracelloc_preload_part.argtypes = [ctypes.c_uint64] * 2
blocks = []
while line := input():
    if mark := int(line):
        libc.tracelloc_preload_part(mark, 7)
    for each in blocks:
        libc.free(ctypes.c_void_p(each))
    blocks = [libc.malloc(77_777) for _ in range(3)]
    print(*blocks, flush=True)
"""


def test_nothing_is_reported_before_the_first_test() -> None:
    """Then allocations during tests alone, with stacks if wanted, but all frees."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    command, variables = [sys.executable, "-c", BLOCKS], {"LD_PRELOAD": str(PRELOADED)}
    with subprocess.Popen(command, env=os.environ | variables, **pipes) as program:

        def replaced(mark: int) -> set[int]:
            program.stdin.write(f"{mark}\n")
            return set(map(int, program.stdout.readline().split()))

        old = replaced(0)
        process = Process(program.pid)
        source = PreloadedSource(CaptureConfig(), say=print, attach=Mock(), in_parts=True)
        mapping = area_mappings(process.maps().mappings)[0]
        source.connect(process, mapping, Mock(image=1))
        source.set_live(True)
        found = []
        for mark in (0, PartMark.PLAIN, PartMark.END, PartMark.STACKS, PartMark.END):
            new = replaced(mark)
            events = source.area.take_events()
            kinds = events["size_tag"] >> np.uint64(EVENT_SIZE_BITS) & np.uint64(EVENT_KIND_MASK)
            sizes = events["size_tag"] & np.uint64(EVENT_SIZE_MASK)
            is_mark, is_new = kinds == EventKind.PART, sizes == 77_777
            marks = list(zip(events["address"][is_mark], sizes[is_mark], strict=True))
            has_stacks = set((events["stack_id"][is_new] != 0).tolist())
            is_freed = old <= set(events["address"].tolist())
            found.append((marks, np.count_nonzero(is_new), has_stacks, is_freed))
            old = new
        program.stdin.write("\n")
    source.close()
    assert found == [
        ([], 0, set(), False),
        ([(PartMark.PLAIN, 7)], 3, {False}, True),
        ([(PartMark.END, 7)], 0, set(), True),
        ([(PartMark.STACKS, 7)], 3, {True}, True),
        ([(PartMark.END, 7)], 0, set(), True),
    ]
