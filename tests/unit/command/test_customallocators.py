"""Allocators that the user names: what files may say, and what is wrong in them."""

from pathlib import Path

import pytest

from tests.harness import Builder
from tests.unit.references import module_of, target_file
from tracelloc.command.customallocators import (
    choose,
    load_custom_allocators,
    parse_custom_allocators,
)
from tracelloc.errors import TracellocError, UsageError
from tracelloc.model.process import Space
from tracelloc.record.mallocs.discovery import MallocChoice, Module, discover
from tracelloc.record.mallocs.families import FunctionKind, Provider, Signature
from tracelloc.system.invoker import invoker

GOOD = """
[[allocator]]
name = "slices"
module = "pool-*"
functions = [
    { name = "pool_take", kind = "alloc", size = 3 },
    { name = "pool_g*", kind = "free", block = 2 },
    { name = "chunk_take", kind = "calloc", throws = false },
    { name = "no_such_function", kind = "posix_memalign" },
    { name = "node_new", kind = "alloc", size_bytes = 112 },
    { name = "nodes_new", kind = "calloc", count = 2, size_bytes = 112, throws = false },
]
"""


def test_kinds_names_and_globs(builder: Builder, tmp_path: Path) -> None:
    (pool,) = parse_custom_allocators(GOOD, "pools.toml")
    assert [function.signature for function in pool.functions] == [
        Signature(FunctionKind.ALLOC, (3,), throws=True),
        Signature(FunctionKind.OUTER_FREE, (2,)),
        Signature(FunctionKind.CALLOC, (1, 2)),
        Signature(FunctionKind.POSIX_MEMALIGN, (1, 3), throws=True),
        Signature(FunctionKind.ALLOC, (0,), throws=True, size_bytes=112),
        Signature(FunctionKind.CALLOC, (2, 0), size_bytes=112),
    ]
    path = builder.c("pool")
    custom = parse_custom_allocators(GOOD, "pools.toml")
    (found,) = discover([module_of(path)], MallocChoice(custom=custom))
    assert [function.names for function in found.functions] == [
        ("pool_take",), ("pool_give",), ("chunk_take",),
    ]  # fmt: skip
    elsewhere = Module(("0", 1), "/lib/other.so", str(path), target_file(path))
    assert discover([elsewhere], MallocChoice(custom=custom)) == []
    who = invoker({"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert load_custom_allocators([], who) == ((), [])
    own = tmp_path / "tracelloc" / "allocators.toml"
    own.parent.mkdir()
    own.write_text(GOOD)
    own.chmod(0o600)
    custom, warnings = load_custom_allocators([], who)
    assert [pool.name for pool in custom] == ["slices"]
    assert warnings == []
    own.chmod(0o666)
    custom, warnings = load_custom_allocators([], who)
    assert custom == ()
    assert "other users can write it" in warnings[0]
    with pytest.raises(TracellocError, match="cannot be read: No such file"):
        load_custom_allocators([tmp_path / "missing.toml"], who)


def in_function(keys: str) -> str:
    return f"[[allocator]]\nfunctions = [{{name = 'f', {keys}}}]"


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
        (in_function("kind = 'fee'"), "kind cannot be 'fee'"),
        (in_function("kind = 'free', blok = 1"), "unknown key 'blok'; did you mean 'block'?"),
        (
            in_function("kind = 'free', block = 7"),
            "block must be the number of an argument, 1 to 6",
        ),
        (in_function("kind = 'free', size_bytes = 16"), "unknown key 'size_bytes'"),
        (in_function("kind = 'alloc', size_bytes = 1048576"), "a number of bytes, 1 to 1,048,575"),
        (in_function("kind = 'alloc', size_bytes = '8'"), "size_bytes must be a number of bytes"),
        (in_function("kind = 'alloc', size = 1, size_bytes = 8"), "size_bytes exclude each other"),
        (in_function("kind = 'alloc', throws = 1"), "throws must be true or false"),
        ("[[allocator", "x.toml:1: this is not TOML"),
    ],
)
def test_errors_name_file_line_and_key(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_custom_allocators(text, "x.toml")
    assert words in str(caught.value)


PROVIDER = """
[[provider]]
name = "render"
space = "gpu"
alloc = { probe = "made", pointer = 1, size = 3, device = 2 }
free = { probe = "ends", pointer = 2 }
"""


def test_providers_of_usdt_probes_and_gpus() -> None:
    found = parse_custom_allocators(GOOD + PROVIDER, "x.toml")
    render = found[1]
    assert isinstance(render, Provider)
    assert (render.name, render.alloc, render.free) == ("render", "made", "ends")
    assert render.arguments == {"pointer": 1, "size": 3, "device": 2}
    assert (render.freed, render.space) == (2, Space.GPU)
    chosen = choose(MallocChoice(), found, "usdt:render")
    assert chosen.providers == (render,)
    assert [one.name for one in choose(MallocChoice(), found, "usdt").providers] == [
        "otel_memory", "pytorch", "render",
    ]  # fmt: skip
    assert choose(MallocChoice(), found, "auto") == MallocChoice(custom=tuple(found[:1]))
    with pytest.raises(UsageError, match="did you mean 'render'"):
        choose(MallocChoice(), found, "usdt:rendr")
    found = parse_custom_allocators(GOOD + GOOD.replace('"slices"', '"gpu"\nspace = "gpu"'), "x")
    assert [one.name for one in choose(MallocChoice(), found, "auto").custom] == ["slices"]
    chosen = choose(MallocChoice(only="gpu"), found, "auto").custom
    assert [(one.name, one.space) for one in chosen] == [("slices", Space.HOST), ("gpu", Space.GPU)]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "render"', "", "x.toml:2: provider 1: name is missing"),
        ("size = 3", "size = 0", "alloc: size must be the number of an argument, 1 to 12"),
        ("size = 3, ", "", "alloc: size must be the number"),
        ("device", "gpu", "unknown key 'gpu'"),
        ('probe = "ends", ', "", "x.toml:6: provider 1: free must be a table such as"),
        ('"ends"', '"made"', "alloc and free must be different probes"),
        ('"gpu"', '"moon"', "x.toml:4: provider 1: space must be one of host, gpu"),
        ("pointer = 2", "pointer = 2, size = 1", "free: unknown key 'size'"),
        ("space", "place", "unknown key 'place'; did you mean 'space'"),
    ],
)  # fmt: skip
def test_errors_in_providers(old: str, new: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_custom_allocators(PROVIDER.replace(old, new), "x.toml")
    assert words in str(caught.value)
