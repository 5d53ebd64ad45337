"""Addresses of code in stored stacks."""

from tracelloc.model.codefiles import Mapping
from tracelloc.record.process.codehistory import CodeHistory, as_stored

IDS = {1: "a", 2: "b", 3: "a"}  # Build IDs, by inode


def mapped(start: int, inode: int) -> Mapping:
    return Mapping(start, start + 0x1000, 0x2000, True, "08:01", inode, f"/{inode}.so", False)


def stored(history: CodeHistory, mapping: Mapping) -> int:
    """A return address in the mapping, as stored stacks have it."""
    shifts = history.shifts_of([mapping], lambda one: IDS[one.inode])
    (frame,) = as_stored((mapping.start + 0x10,), shifts)
    return frame


def test_places() -> None:
    history = CodeHistory()
    first = mapped(0x7000, 1)
    assert stored(history, first) == 0x7010
    # The same file elsewhere, and another one with its build ID.
    assert stored(history, mapped(0x9000, 1)) == stored(history, mapped(0xB000, 3)) == 0x7010
    assert history.find(0x7010) == first
    # Another file at its place; its address is below the artificial number.
    other = stored(history, mapped(0x7000, 2))
    assert other > 1 << 61
    assert other & (1 << 48) - 1 == 0x7010
    found = history.find(other)
    assert found is not None
    assert found.path == "/2.so"
    assert stored(CodeHistory(history), mapped(0x7800, 2)) == other
    assert history.find(0x9010) is None
    assert CodeHistory().shifts_of([mapped(0x7000, 1), mapped(0x9000, 3)], lambda _: "a") == []
