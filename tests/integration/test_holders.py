"""Who keeps the objects of a running Python program, against what it does."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests import distributions
from tests.harness import TARGETS, Target, Targets, run_tracelloc
from tracelloc.model.objects import Holders
from tracelloc.record.process.procfs import Process
from tracelloc.record.runtimes.cpython.census import CensusTaker
from tracelloc.record.runtimes.cpython.holders import (
    METHOD_CACHE,
    NATIVE,
    UNCOLLECTED,
    HolderSearch,
    ObjectAddresses,
)

PYTHON = "/usr/bin/python3"
ITEM = "__main__.Item"
PATHS = {
    "dict": ("__main__.UNBOUNDED[…]", "dict"),
    "class": ("__main__.Cache.entries[…]", "list"),
    "instance": ("__main__.CACHE.rows[…]", "list"),
    "slots": ("__main__.SLOTTED.second[…]", "list"),
    "deque": ("__main__.DEQUE[…]", "collections.deque"),
    "recent": ("__main__.RECENT[…]", "collections.deque"),
    "vast": ("__main__.VAST[…]", "collections.deque"),
    "dropped": ("__main__.CACHE.rows[…][…][…]", "list"),
    "text": ("__main__.TEXTS[…].item", "dict"),
    "wide": ("__main__.WIDE[…]", "list"),
    "set": ("__main__.SET{…}", "set"),
    "closure": ("__main__.add.__closure__[…][…]", "list"),
    "lru": ("__main__.cached.cache[…]", "dict"),
    "bounded": ("__main__.bounded.cache[…]", "functools._lru_list_elem"),
    "thread": ("__main__.LOCAL.items[…]", "list"),
    "context": ("__main__.VARIABLE.get()[…]", "list"),
    "generator": ("__main__.GENERATORS[…].generate() item", "generator"),
    "temporary": ("consume() (temporary).produce() rows[…]", "list"),
    "error": ("__main__.ERRORS[…].__traceback__.tb_frame → risky() rows", "frame"),
    "cause": ("__main__.CHAINED[…].__cause__.__traceback__.tb_frame → risky() rows", "frame"),
    "argument": ("__main__.ARGUMENTS[…].args[…]", "tuple"),
    "frame": ("__main__.FRAMES[…] → here() item", "frame"),
    "future": ("__main__.FUTURES[…].result()", "_asyncio.Future"),
    "partial": ("__main__.PARTIALS[…].args[…]", "tuple"),
    "method": ("__main__.METHODS[…].__self__", "method"),
    "property": ("__main__.PROPERTIES[…].fget", "property"),
    "callback": ("__main__.REFERENCES[…].__callback__.args[…]", "tuple"),
    "weak": ("__main__.STRONG[…][…]", "list"),
    "bound": ("__main__.BOUND[…].__self__[…]", "list"),
    "cycle": (UNCOLLECTED, "__main__.Cycle"),
    "native": (NATIVE, ""),
}


ENDS = {"task": ".worker() item", "local": "main() pending[…]"}


@pytest.mark.parametrize("part", range(4))
def test_what_is_new_is_found_where_it_is_kept(targets: Targets, part: int) -> None:
    """Arrays that lists have outgrown may be followed, too, until their memory is used again."""
    program = targets.start(PYTHON, TARGETS / "holders.py")
    with searching(program) as by:
        for kind in [*PATHS, "local", "task"][part::4]:
            name = "__main__.Wide" if kind == "wide" else ITEM
            for _ in range(3):
                found, more = new_holders(program, kind, name, by)
                assert (more, found.skipped_tables) == (300, 0), kind
                if is_found(kind, found):
                    break
            else:
                raise AssertionError((kind, found.holders))


@pytest.mark.nightly
@pytest.mark.parametrize("minor", [14, 15])
def test_holders_in_newer_pythons(targets: Targets, minor: int) -> None:
    target = targets.start(*distributions.python(minor), TARGETS / "holders.py")
    for kind in ("dict", "slots", "cycle", "local", "frame", "native"):
        with searching(target) as by:
            found, more = new_holders(target, kind, ITEM, by)
        assert more == 300
        assert is_found(kind, found), found.holders


@contextmanager
def searching(target: Target) -> Iterator[tuple[CensusTaker, HolderSearch]]:
    """Counts a program's objects, and searches for who keeps them."""
    process = Process(target.pid)
    with closing(HolderSearch(process)) as search:
        yield CensusTaker(process), search


def new_holders(
    program: Target, kind: str, name: str, by: tuple[CensusTaker, HolderSearch]
) -> tuple[Holders, int]:
    """Has 300 more items kept. Returns who keeps them, and how many more there are."""
    censuses, search = by
    first = censuses.take_census()
    before = ObjectAddresses(censuses.take_found())
    program.ask(f"{kind} 300")
    now = censuses.take_census()
    found = search.find(censuses.take_found(), [name], before)[name]
    counts = [{one.name: one.count for one in each.types} for each in (first, now)]
    return found, counts[1][name] - counts[0].get(name, 0)


def is_found(kind: str, found: Holders) -> bool:
    """Whether nearly all of the items are found where they are kept."""
    holder = found.holders[0]
    same = [holder]
    if kind in ENDS:
        # The event loop leads to a coroutine in several ways.
        same = [each for each in found.holders if each.path.endswith(ENDS[kind])]
    if not sum(each.count for each in same) > 0.9 * found.sample_count > 0:
        return False
    if kind == "local":
        # By the function that has the coroutine, while that waits.
        return holder.path.endswith("main() pending[…]") and holder.type_name == "list"
    return kind == "task" or (
        (holder.path, holder.type_name) == PATHS[kind]
        and holder.unresolved == 0
        and holder.is_bounded == (kind in ("bounded", "recent"))
    )


def test_a_table_that_has_moved_since_is_found(targets: Targets) -> None:
    """A list grows between the census and the search: its items are elsewhere by then."""
    target = targets.start(PYTHON, TARGETS / "holders.py")
    with searching(target) as (censuses, search):
        target.ask("class 500")
        censuses.take_census()
        target.ask("class 50000")
        target.ask("instance 50000")
        found = search.find(censuses.take_found(), [ITEM])[ITEM]
    assert found.holders[0].path == "__main__.Cache.entries[…]"
    assert found.holders[0].count > 0.9 * found.sample_count


def test_keepers_are_searched_for(targets: Targets) -> None:
    """The type that keeps a wanted one has holders, too, if it is one of those that grow."""
    target = targets.start(PYTHON, TARGETS / "holders.py")
    with searching(target) as (censuses, search):
        target.ask("class 500")
        censuses.take_census()
        found = search.find(censuses.take_found(), [ITEM], keepers=frozenset({"list", "set"}))
    assert list(found) == [ITEM, "list"]


def test_names_that_only_the_method_cache_keeps(targets: Targets) -> None:
    """They grow in number until its 4,096 entries are in use, which is no leak."""
    target = targets.start(PYTHON, TARGETS / "holders.py")
    with searching(target) as (censuses, search):
        censuses.take_census()
        before = ObjectAddresses(censuses.take_found())
        target.ask("name 2000")
        censuses.take_census()
        found = search.find(censuses.take_found(), ["str"], before)["str"]
    assert found.holders[0].path == METHOD_CACHE
    # Names whose entries others have taken are gone: how many depends on addresses.
    assert found.holders[0].count > 50
    assert found.is_bounded


def test_the_command(targets: Targets) -> None:
    """Text and JSON; what comes and goes has no holders."""
    program = targets.start(PYTHON, TARGETS / "holders.py")
    done = run_tracelloc(
        "objects", "-p", program.pid, "--every", "100ms", "--count", 2, "--json", "--holders", 3
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert len(first["holders"]) == 3
    assert second["holders"] == []
    for one in first["holders"]:
        assert one["samples"] == sum(holder["samples"] for holder in one["holders"])
    text = run_tracelloc("objects", "-p", program.pid, "--holders", 20).stdout
    assert "dict: holders (200 objects examined)" in text


STORE = """
import functools
class Order: pass
KEPT = []
@functools.cache
def cached(number): return Order()
@functools.cache
def listed(number): return [number]
def find(into=[]): into.append(Order())
"""
USERS = "from store import KEPT as ORDERS, cached as memo, listed, find as lookup"
FROM_HOME = {
    "ORDERS.append(Order())": ("store.Order", "store.KEPT[…]"),
    "memo(number)": ("store.Order", "store.cached.cache[…]"),
    "lookup()": ("store.Order", "store.find.__defaults__[…][…]"),
    "listed(number)": ("list", "store.listed.cache[…]"),
}


@pytest.mark.parametrize("statement", FROM_HOME)
def test_paths_begin_at_their_module(targets: Targets, tmp_path: Path, statement: str) -> None:
    """Three modules have it, under different names."""
    (tmp_path / "store.py").write_text(STORE)
    (tmp_path / "aaa.py").write_text(USERS)
    script = tmp_path / "main.py"
    script.write_text(
        f"import sys, aaa\n{USERS}, Order\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
        f"    for number in range(300): {statement}\n    print('done', flush=True)\n"
    )
    target = targets.start(PYTHON, script)
    name, path = FROM_HOME[statement]
    with searching(target) as by:
        found, _ = new_holders(target, "", name, by)
    assert (found.holders[0].path, found.holders[0].file) == (path, str(tmp_path / "store.py"))
    assert found.holders[0].count > 0.9 * found.sample_count


# What keeps nothing, although the word after its last item or digit has an address: candidates,
# and the bytes of their items. An integer's dictionary may be a part of it or not.
PADDED = {"tuple": "[((1, 2, 3, 4), 32)]", "int": "[(Number(1), 4), (Number(1 << 60), 12)]"}


@pytest.mark.parametrize("kind", PADDED)
def test_what_lies_behind_one_keeps_nothing(targets: Targets, tmp_path: Path, kind: str) -> None:
    """Memory is given out in units of 16 bytes: the rest has what was there before."""
    script = tmp_path / "main.py"
    script.write_text(
        "import ctypes, sys\nclass Item: pass\nclass Number(int): pass\nITEMS = [[]]\n"
        f"for padded, item_bytes in {PADDED[kind]}:\n"
        "    end = id(padded) + (type(padded).__basicsize__ + item_bytes + 7) // 8 * 8\n"
        "    if end % 16 == 8:\n        break\nelse:\n    sys.exit('nothing is padded')\n"
        "print('ready', flush=True)\nfor line in sys.stdin:\n    ITEMS[0].append(Item())\n"
        "    ctypes.c_size_t.from_address(end).value = id(ITEMS[0][0])\n"
        "    print('done', flush=True)\n"
    )
    target = targets.start(PYTHON, script)
    with searching(target) as by:
        found, _ = new_holders(target, "", ITEM, by)
    assert [holder.path for holder in found.holders] == ["__main__.ITEMS[…][…]"]
