"""What unpacks to gigabytes is refused before it takes them: measured, in other processes."""

import gzip
import json
import os
import re
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.commands import outcome
from tests.harness import DATA
from tracelloc.errors import MalformedError
from tracelloc.record.worker import questions as channel
from tracelloc.show.recording.container import checksum
from tracelloc.show.recording.momentcodec import arrays_packed, arrays_unpacked, packed
from tracelloc.system.bounded import Inflater, UnpackBudget, inflated, json_bytes, parse_json

pytestmark = pytest.mark.long

RECORDING = DATA / "recordings/v1.rec"
MOST_RSS = 640 << 20  # Bytes: 512 MiB, and what Python and the modules take
MIB = 1 << 20


# What a process has had counts as its children's: so it has to be a small one that asks.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def measured(*arguments: str | Path) -> tuple[int, str, int]:
    """Exit status, standard error and peak resident bytes of tracelloc."""
    command = [sys.executable, "-c", MEASURE, sys.executable, "-m", "tracelloc", *arguments]
    done = outcome(*command, timeout=100)
    return done.returncode, done.stderr, int(done.stdout) << 10


def repeated(head: bytes, piece: bytes, count: int) -> bytes:
    """A zlib stream of a piece again and again, which is packed only once."""
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    # Nothing behind a full flush refers to what is before it.
    each = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    check = zlib.adler32(head)
    for _ in range(count):
        check = zlib.adler32(piece, check)
    return b"\x78\xda" + first + each * count + packer.flush() + struct.pack(">I", check)


def packed_parts(*parts: bytes) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join([*map(packer.compress, parts), packer.flush()])


def moment(head: object, *parts: bytes) -> bytes:
    text = json.dumps(head).encode()
    return packed_parts(struct.pack("<I", len(text)), text, *parts)


def put_moments(connection: sqlite3.Connection, data: bytes) -> None:
    for number, whole in connection.execute("SELECT number, whole FROM moments").fetchall():
        connection.execute(
            "UPDATE contents SET data = ?, crc = ? WHERE number = ?",
            (data, checksum(data, number, whole), number),
        )


def moment_of_zeros(connection: sqlite3.Connection) -> None:
    put_moments(connection, repeated(b"", bytes(MIB), 512))


def moment_of_lists(connection: sqlite3.Connection) -> None:
    size = 60 * MIB
    put_moments(connection, packed_parts(struct.pack("<I", size), b"[" * size))


def moment_of_tables(connection: sqlite3.Connection) -> None:
    """What its head says is there, too: 100 tables of 128 MiB."""
    tables = {str(number): [1, 16 * MIB, 0] for number in range(100)}
    head = {"facts": {"set": {}}, "processes": [[1, 0, {"set": {}}, tables]]}
    put_moments(connection, moment(head))


def put(
    connection: sqlite3.Connection, table: str, keys: Iterable[tuple[int, int]], data: bytes
) -> None:
    """Rows with these numbers and what their data belongs to."""
    for number, owner in keys:
        row = (number, owner, 0, checksum(data, owner, 0), data)
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", row)


def names_that_add_up(connection: sqlite3.Connection) -> None:
    """Each batch is small enough, and sound."""
    files = [[n, n + 1, 0, "0:0", 0, f"/{n:04000}", False, False, None, None] for n in range(8_000)]
    names = ["start", "end", "offset", "device", "inode", "path", "deleted", "has_module",
             "build_id", "reason"]  # fmt: skip
    text = json.dumps([[], [dict(zip(names, each, strict=True)) for each in files]])
    put(connection, "names", ((n, n) for n in range(1000, 1060)), packed(text.encode()))


def stacks_of_nothing(connection: sqlite3.Connection) -> None:
    count = 1 << 24
    data = arrays_packed(np.zeros(count, np.int64), np.zeros(count, np.uint16), np.zeros(0, "u8"))
    put(connection, "stacks", ((number, 7) for number in range(1000, 1050)), data)


def millions_of_moments(connection: sqlite3.Connection) -> None:
    first = connection.execute("SELECT * FROM moments LIMIT 1").fetchone()
    rows = ((1000 + n, first[1] + n, first[2] + n, *first[3:]) for n in range(600_000))
    connection.executemany("INSERT INTO moments VALUES (?, ?, ?, ?, ?)", rows)


def about_everything(connection: sqlite3.Connection) -> None:
    rows = ((f"k{number}", "x" * MIB) for number in range(300))
    connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (moment_of_zeros, "a snapshot is damaged"),
        (moment_of_lists, "it would take more than 256 MiB of memory"),
        (moment_of_tables, "it would take more than 256 MiB of memory"),
        (names_that_add_up, "it would take more than 512 MiB of memory"),
        (stacks_of_nothing, "it would take more than 512 MiB of memory"),
        (millions_of_moments, "its list of snapshots is damaged"),
        (about_everything, "its description is too long"),
    ],
)
def test_recordings_that_swell(
    tmp_path: Path, spoil: Callable[[sqlite3.Connection], None], why: str
) -> None:
    path = tmp_path / "bomb.rec"
    shutil.copy(RECORDING, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        spoil(connection)
    status, said, rss = measured("report", path)
    assert (status, rss < MOST_RSS) == (1, True), (said, rss)
    assert re.fullmatch(f"tracelloc: error: .*: {why}.*\n", said)


def finish(stream: Inflater, size: int) -> None:
    stream.read(size)
    stream.finish()


def test_pieces() -> None:
    content = os.urandom(3 << 20) + bytes(3 << 20)
    data = zlib.compress(content)
    for size in (1, 7, 1000, 1 << 18, len(content)):
        stream = Inflater(data)
        count = min(500, len(content) // size)
        assert b"".join(stream.read(size) for _ in range(count)) == content[: size * count]
        if size * count == len(content):
            stream.finish()
        else:
            with pytest.raises(MalformedError, match="longer than it should be"):
                stream.finish()
    stream = Inflater(data)
    with pytest.raises(MalformedError, match="cut off"):
        stream.read(len(content) + 1)
    for cut in (0, 1, 5, len(data) // 2, len(data) - 1):
        stream = Inflater(data[:cut])
        with pytest.raises(MalformedError, match="cut off"):
            finish(stream, len(content))
    with pytest.raises(MalformedError, match="its compression is damaged"):
        Inflater(b"junk").read(1)
    assert Inflater(zlib.compress(b"")).read(0) == b""
    Inflater(zlib.compress(b"")).finish()
    assert inflated(data, len(content)) == content
    with pytest.raises(MalformedError, match="implausibly large"):
        inflated(data, len(content) - 1)


def test_estimates_and_budgets(tmp_path: Path) -> None:
    """It is not below what the values take, for what takes most."""
    for text in (b"[" + b"[]," * 20_000 + b"[]]", b"[" + b'{"a":[]},' * 20_000 + b"0]",
                 b"[" + b"1e9," * 20_000 + b"0]", "\"😀".encode() + b"x" * 100_000 + b'"',
                 b"[" + b'"ab",' * 20_000 + b"0]"):  # fmt: skip
        program = (
            "import json, sys, tracemalloc\n"
            "text = sys.stdin.buffer.read()\ntracemalloc.start()\nkept = json.loads(text)\n"
            "print(tracemalloc.get_traced_memory()[1] + len(text))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], input=text, stdout=subprocess.PIPE, check=True
        )
        assert int(done.stdout) < 1.4 * json_bytes(text), text[:20]
    with pytest.raises(MalformedError, match="it would take more than 1 MiB"):
        parse_json(b"[" + b"[]," * 20_000 + b"0]", MIB)
    with pytest.raises(MalformedError, match="nested too deeply"):
        parse_json(b"[" * 100_000)
    head = b'{"format": "tracelloc", "version": 1, "stacks": ['
    for name, piece, why in (
        ("large.json.gz", b" " * MIB, "it is larger than 256 MiB, unpacked"),
        ("lists.json.gz", b"[]," * (MIB // 3), "it would take more than 1024 MiB of memory"),
    ):
        path = tmp_path / name
        with gzip.open(path, "wb", compresslevel=1) as stream:
            stream.write(head)
            for _ in range(250 if "lists" in name else 300):
                stream.write(piece)
        status, said, rss = measured("diff", path, path)
        assert (status, rss < MOST_RSS) == (1, True), (said, rss)
        assert why in said
    status, _, rss = measured("report", RECORDING)
    assert (status, rss < 100 << 20) == (0, True)
    # They are refused for their size.
    assert zlib.decompress(repeated(b"head", b"[]," * 1000, 7)) == b"head" + b"[]," * 7000
    data = arrays_packed(np.arange(1000))
    budget = UnpackBudget(10_000)
    (found,) = arrays_unpacked(data, np.int64, budget=budget)
    assert found.tolist() == list(range(1000))
    assert budget.left_bytes == 2000
    with pytest.raises(MalformedError, match="it would take more than 0 MiB"):
        arrays_unpacked(data, np.int64, budget=budget)
    with pytest.raises(MalformedError, match="longer than it should be"):
        arrays_unpacked(packed(struct.pack("<I", 1) + bytes(9)), np.int64, budget=UnpackBudget())


def test_an_answer_that_swells() -> None:
    """A worker that a file has taken over answers with lists."""
    ours, its = socket.socketpair()
    program = (
        "import socket, sys\nfrom tracelloc.record.worker import questions as channel\n"
        "try:\n    channel.receive(socket.socket(fileno=int(sys.argv[1])), 60)\n"
        "except channel.ChannelError as error:\n    print(error)\n"
        # ru_maxrss would have what this process had before it executed the program.
        "status = open('/proc/self/status').read()\n"
        "print(status.partition('VmHWM:')[2].split()[0])"
    )
    with its, ours:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(its.fileno())],
            pass_fds=[its.fileno()], stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        text = b"[" + b"[]," * (20 << 20) + b"0]"
        assert len(text) < channel.LARGEST_TEXT
        ours.sendall(struct.pack("<II", len(text), 0))
        ours.sendall(text)
        said, _ = process.communicate(timeout=60)
    error, rss = said.splitlines()
    assert error == "its answer is not JSON"
    assert int(rss) << 10 < MOST_RSS
