"""Every reader on every kept case, then on damaged input for some seconds; see ``tests.fuzz``."""

import os
import random
import struct
import time
from pathlib import Path

import pytest

from tests.fuzz.readers import READERS, seeds
from tests.harness import DATA
from tests.unit.files.elf.test_hostile_files import bounded

KEPT = DATA / "fuzz"
ALL_SECONDS = float(os.environ.get("FUZZ_SECONDS", "12"))
pytestmark = [pytest.mark.timeout(ALL_SECONDS + 600), pytest.mark.long]
SECONDS = ALL_SECONDS / len(READERS)  # CPU time for each reader
# Fixed, so that what fails here fails there. `make fuzz` takes another each time.
SEED = int(os.environ.get("FUZZ_SEED", "1"))
ODD = (0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x0B, 0x1B, 0x22, 0x5B)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The input with some of it overwritten, repeated, moved or gone."""
    content = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(content) + 1)
        length = rng.choice([1, 2, 4, 8, 64])
        match rng.randrange(6):
            case 0:
                content[at : at + 1] = bytes([rng.choice((*ODD, rng.randrange(256)))])
            case 1:
                value = rng.choice([0, 1, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])
                content[at : at + 8] = struct.pack("<Q", value)
            case 2:
                del content[at : at + length]
            case 3:
                other = rng.randrange(len(content) + 1)
                content[at:at] = content[other : other + length]
            case 4:
                value = rng.choice([0, 0xFFFF, 0x7FFF, 0xFF00])
                content[at : at + 2] = struct.pack("<H", value)
            case 5:
                content[at:at] = content[at : at + length] * rng.choice([2, 100])
    return bytes(content[: 1 << 18])


@pytest.mark.parametrize("reader", READERS)
def test_kept_cases(reader: str) -> None:
    for path in sorted((KEPT / reader).glob("*")):
        with bounded(10.0):
            READERS[reader](path.read_bytes())


@pytest.mark.parametrize("reader", READERS)
def test_damaged_input(reader: str, tmp_path: Path) -> None:
    kept = [path.read_bytes() for path in sorted((KEPT / reader).glob("*"))]
    sound = seeds(reader, tmp_path)
    for data in sound:
        READERS[reader](data)
    rng = random.Random(SEED)
    end = time.process_time() + SECONDS
    rounds = 0
    while time.process_time() < end:
        data = damaged(rng.choice([*sound, *kept]), rng)
        try:
            with bounded(10.0, 1 << 30):
                READERS[reader](data)
        except BaseException:
            failing = tmp_path / "failing"
            failing.write_bytes(data)
            print(f"seed {SEED}: keep {failing} in {KEPT / reader}")
            raise
        rounds += 1
    assert rounds > 3
