"""Allocators that the user names: what files may say, and what is wrong in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import Builder
from tests.unit.test_elf import open_elf
from tracelloc.caller import caller
from tracelloc.command.pools import load_pools, parse_pools
from tracelloc.errors import UsageError
from tracelloc.target.allocators import Module, Selection, discover
from tracelloc.target.signatures import FunctionKind, Signature

GOOD = """
[[allocator]]
name = "slices"
module = "pool-*"
functions = [
    { name = "pool_take", kind = "alloc", size = 3 },
    { name = "pool_g*", kind = "free", block = 2 },
    { name = "chunk_take", kind = "calloc", throws = false },
    { name = "no_such_function", kind = "posix_memalign" },
]
"""


def test_kinds_positions_and_what_may_throw() -> None:
    (pool,) = parse_pools(GOOD, "pools.toml")
    assert [function.signature for function in pool.functions] == [
        Signature(FunctionKind.ALLOC, (3,), throws=True),
        Signature(FunctionKind.OUTER_FREE, (2,)),
        Signature(FunctionKind.CALLOC, (1, 2)),
        Signature(FunctionKind.POSIX_MEMALIGN, (1, 3), throws=True),
    ]


def test_names_and_globs_are_found_in_the_named_files(builder: Builder) -> None:
    path = builder.c("pool")
    pools = parse_pools(GOOD, "pools.toml")
    module = Module(("0", 1), str(path), str(path), open_elf(path))
    (found,) = discover([module], Selection(pools=pools))
    assert [function.names for function in found.functions] == [
        ("pool_take",), ("pool_give",), ("chunk_take",),
    ]  # fmt: skip
    elsewhere = Module(("0", 1), "/lib/other.so", str(path), open_elf(path))
    assert discover([elsewhere], Selection(pools=pools)) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allocator]]\nfunctions = []", "x.toml:2: allocator 1: functions must list"),
        ("[[alocator]]", "x.toml:1: unknown key 'alocator'"),
        ("allocator = 3", "x.toml:1: allocator must be written as [[allocator]]"),
        ("[[allocator]]\nmodul = 'x'", "x.toml:2: allocator 1: unknown key 'modul'"),
        ("[[allocator]]\nmodule = 3", "x.toml:2: allocator 1: module must be a string"),
        ("[[allocator]]\nfunctions = [3]", "functions, number 1 must be a table"),
        ("[[allocator]]\nfunctions = [{kind = 'free'}]", "functions, number 1: name is missing"),
        ("[[allocator]]\nfunctions = [{name = 'f'}]", "kind is missing; known are alloc, calloc"),
        ("[[allocator]]\nfunctions = [{name = 'f', kind = 'fee'}]", "kind cannot be 'fee'"),
        (
            "[[allocator]]\nfunctions = [{name = 'f', kind = 'free', blok = 1}]",
            "unknown key 'blok'; did you mean 'block'?",
        ),
        (
            "[[allocator]]\nfunctions = [{name = 'f', kind = 'free', block = 7}]",
            "block must be the number of an argument, 1 to 6",
        ),
        (
            "[[allocator]]\nfunctions = [{name = 'f', kind = 'free', block = true}]",
            "block must be the number of an argument, 1 to 6",
        ),
        (
            "[[allocator]]\nfunctions = [{name = 'f', kind = 'alloc', throws = 1}]",
            "throws must be true or false",
        ),
        ("[[allocator", "x.toml:1: this is not TOML"),
    ],
)
def test_errors_name_file_line_and_key(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pools(text, "x.toml")
    assert words in str(caught.value)


def test_the_users_own_file_is_read_if_only_they_can_write_it(tmp_path: Path) -> None:
    who = caller({"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert load_pools([], who) == ((), [])
    own = tmp_path / "tracelloc" / "allocators.toml"
    own.parent.mkdir()
    own.write_text(GOOD)
    own.chmod(0o600)
    pools, warnings = load_pools([], who)
    assert [pool.name for pool in pools] == ["slices"]
    assert warnings == []
    own.chmod(0o666)
    pools, warnings = load_pools([], who)
    assert pools == ()
    assert "other users can write it" in warnings[0]
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_pools([tmp_path / "missing.toml"], who)
