"""The arithmetic of the preloaded library's own sampling: it has no mathematical library."""

from __future__ import annotations

import ctypes
import math
import subprocess

import pytest

from tracelloc import probes

MEAN = 524288.0
STUBS = """
#include "preloaded/otel.h"
double share(double x) { return otel_share(x); }
double logarithm(u64 number) { return otel_log(number); }
u64 gap(void) { return otel_gap(); }
u64 mean_gap(u64 n)
{
    u64 sum = 0;

    for (u64 at = 0; at < n; at++)
        sum += otel_gap();
    return sum / n;
}
int remember(u64 address) { return otel_remember(address); }
int known(u64 address)
{
    u64 *set = otel_said.sets[(otel_hash(address) >> 24) % OTEL_SETS];

    for (u32 way = 0; way < OTEL_WAYS; way++)
        if (set[way] == address)
            return 1;
    return 0;
}
void begin(void) { otel_begin(); }
void listen(int alloc, int free) { otel_words.alloc = alloc; otel_words.free = free; }
void release(u64 address) { otel_note_free(address); }
u64 words(void) { return otel_words.all; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("otel") / "otel.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-Wno-unused", "-fsanitize=undefined",
         "-fno-sanitize-recover=all", "-x", "c", "-", "-I", probes.directory(), "-o", out],
        input=STUBS, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = ctypes.CDLL(str(out))
    found.share.restype = found.logarithm.restype = ctypes.c_double
    found.share.argtypes = [ctypes.c_double]
    found.gap.restype = found.mean_gap.restype = found.words.restype = ctypes.c_uint64
    for function in (found.logarithm, found.remember, found.known, found.release, found.mean_gap):
        function.argtypes = [ctypes.c_uint64]
    return found


def test_what_a_block_stands_for(library: ctypes.CDLL) -> None:
    for size in (1, 8, 64, 100, 4096, 70_000, 524_288, 3 << 20, 40 << 20, 1 << 40):
        x = size / MEAN
        assert math.isclose(library.share(x), -math.expm1(-x), rel_tol=1e-12), size


def test_logarithms(library: ctypes.CDLL) -> None:
    for number in (1, 2, 3, 12345, 1 << 20, 1 << 52, (1 << 53) - 1, 0x1ABCDEF012345):
        expected = math.log((number | 1) / (1 << 53))
        assert math.isclose(library.logarithm(number), expected, rel_tol=1e-12, abs_tol=1e-15)
    assert library.logarithm(0) == library.logarithm(1)


def test_gaps(library: ctypes.CDLL) -> None:
    """The mean of a million has an error of 0.1 %; a share of e^-1 is above it."""
    assert abs(library.mean_gap(1_000_000) / MEAN - 1) < 0.006
    gaps = [library.gap() for _ in range(50_000)]
    assert min(gaps) >= 1
    assert abs(sum(gap > MEAN for gap in gaps) / len(gaps) - math.exp(-1)) < 0.012


def test_the_table(library: ctypes.CDLL) -> None:
    library.listen(1, 1)
    assert not library.remember(0x7F0000000000)  # forked children would have it as well
    library.begin()
    blocks = [0x7F0000000000 + 4096 * n for n in range(3000)]
    said = [block for block in blocks if library.remember(block)]
    assert len(said) > 2900
    assert all(library.known(block) for block in said)
    for block in said[::2]:
        library.release(block)
    assert [library.known(block) for block in said] == [n % 2 for n in range(len(said))]
    # Nobody listens any more: the first call forgets them all, and is idle from then on.
    library.listen(0, 0)
    assert library.words() != 0
    library.release(said[1])
    assert not any(library.known(block) for block in said)
    assert library.words() == 0
