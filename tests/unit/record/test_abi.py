"""Both sides of the probes' interface: the C header compiled, the Python mirror compared."""

import re
from enum import EnumMeta
from pathlib import Path

import numpy as np
import pytest

from tests.commands import c_values
from tracelloc import probes
from tracelloc.model import events
from tracelloc.model.events import EVENT_FIELDS, PAIR_KEY_FIELDS, PAIR_SUMS_FIELDS, EventKind
from tracelloc.model.losses import Counter
from tracelloc.model.stacks import StackFlag
from tracelloc.record import abi
from tracelloc.record.mallocs.families import FunctionKind

HEADER = (probes.directory() / "event.h").read_text()


@pytest.fixture(scope="module")
def c_side(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes, offsets and values as the C compiler sees them."""
    wanted = [*EVENT_BITS]
    for prefix, enum in ENUMS:
        wanted += [prefix + member.name for member in enum]
    wanted += ["COUNTERS", "TAG_BITS", "ROW_SALT_BITS", "PYTHON_ENTRY", *COOKIE_BITS, *USDT_BITS]
    for struct, fields in STRUCTS.items():
        wanted.append(f"sizeof(struct {struct})")
        for name, _ in fields:
            wanted.append(f"offsetof(struct {struct}, {name})")
            wanted.append(f"sizeof(((struct {struct} *)0)->{name})")
    wanted += ["offsetof(struct stack, frames)", "offsetof(struct python_stack, code_id)"]
    wanted += [f"offsetof(struct python_code, {name})" for name in PYTHON_CODE]
    return c_values(tmp_path_factory.mktemp("abi"), "event.h", wanted)


ENUMS: list[tuple[str, EnumMeta]] = [
    ("EVENT_", EventKind), ("SPILL_", abi.SpillFlag), ("STACK_", StackFlag), ("COUNTER_", Counter),
    ("FORK_", abi.ForkFlag), ("FUNCTION_", abi.FunctionCode), ("RING_", abi.EventRingNumber),
    ("REPORTING_", abi.Reporting), ("PYTHON_", abi.PythonProgram),
]  # fmt: skip
EVENT_BITS = ("EVENT_SIZE_BITS", "EVENT_KIND_MASK", "EVENT_PARITY_BIT", "EVENT_LAP_BIT")
COOKIE_PARTS = "THROWS ARGUMENT_SHIFT ARGUMENT_BITS PLACE_SHIFT PLACE_MASK SIZE_SHIFT"
COOKIE_BITS = [f"COOKIE_{name}" for name in COOKIE_PARTS.split()]
USDT_BITS = ("USDT_PROBES", "USDT_NO_REGISTER", "WEIGHT_MANTISSA_BITS", "WEIGHT_BITS")
PYTHON_CODE = ("code", "pieces", "object", "name", "file", "lines")
STRUCTS = {
    "event": EVENT_FIELDS, "position": abi.POSITION_FIELDS, "spill_key": abi.SPILL_KEY_FIELDS,
    "spilled": abi.SPILLED_FIELDS, "pair_key": PAIR_KEY_FIELDS, "pair_sums": PAIR_SUMS_FIELDS,
    "stack": abi.STACK_HEAD_FIELDS, "control": abi.CONTROL_FIELDS, "miss": abi.MISS_FIELDS,
    "space": abi.SPACE_FIELDS, "python": abi.PYTHON_FIELDS,
    "usdt_argument": abi.USDT_ARGUMENT_FIELDS, "usdt_probe": abi.USDT_PROBE_FIELDS,
}  # fmt: skip


@pytest.mark.parametrize("struct", STRUCTS)
def test_layouts(c_side: dict[str, int], struct: str) -> None:
    dtype = np.dtype(STRUCTS[struct])
    for name, (kind, offset, *_) in dtype.fields.items():
        assert c_side[f"offsetof(struct {struct}, {name})"] == offset
        assert c_side[f"sizeof(((struct {struct} *)0)->{name})"] == kind.itemsize
    if struct == "stack":
        assert c_side["offsetof(struct stack, frames)"] == dtype.itemsize
    else:
        assert c_side[f"sizeof(struct {struct})"] == dtype.itemsize


def test_licences() -> None:
    for path in Path(probes.directory()).rglob("*.[ch]"):
        assert "SPDX-License-Identifier: (MIT OR GPL-2.0)" in path.read_text().splitlines()[0]


@pytest.mark.parametrize(("prefix", "enum"), ENUMS)
def test_values(c_side: dict[str, int], prefix: str, enum: EnumMeta) -> None:
    for member in enum:
        assert c_side[prefix + member.name] == member.value
    in_header = re.findall(rf"^\t({prefix}\w+) = \d+", HEADER, re.MULTILINE)
    assert in_header == [prefix + member.name for member in enum]


def test_constants(c_side: dict[str, int]) -> None:
    assert c_side["COUNTERS"] == len(Counter)
    for name in (*EVENT_BITS, *COOKIE_BITS, *USDT_BITS):
        assert c_side[name] == getattr(events if hasattr(events, name) else abi, name), name
    assert c_side["PYTHON_ENTRY"] == abi.PYTHON_ENTRY
    code = c_side["offsetof(struct python_code, code)"]
    pieces = [c_side[f"offsetof(struct python_code, {name})"] - code for name in PYTHON_CODE[2:]]
    assert tuple(pieces) == abi.PYTHON_PIECE_STARTS
    assert c_side["offsetof(struct python_code, pieces)"] == code + 2 * 8
    frames = c_side["offsetof(struct stack, frames)"]
    assert code == frames
    assert c_side["offsetof(struct python_stack, code_id)"] == frames
    assert c_side["TAG_BITS"] == abi.TAG_BITS
    assert c_side["ROW_SALT_BITS"] == abi.SALT_BITS
    maps = (probes.directory() / "maps.h").read_text()
    sizes = re.findall(r"^#define NEAR_SPACES (\d+)$", maps, re.MULTILINE)
    assert sizes == [str(abi.NEAR_SPACES)]
    codes = {kind.name for kind in abi.FunctionCode} - {"CACHE_DRAIN", "RETURN", "EXIT"}
    assert {kind.name for kind in FunctionKind} == codes
