"""What is said where most of a process's growth can't be seen."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.snapshots import with_facets
from tests.unit.leaks import watched
from tests.unit.reports import text_report
from tests.unit.show.presentation.test_memory import MIB, with_memory
from tracelloc.model.losses import Counter
from tracelloc.model.objects import ObjectCensus, ObjectFindings
from tracelloc.model.process import Runtime
from tracelloc.record.mallocs.discovery import Module
from tracelloc.record.runtimes.known import garbage_collection, is_python_name, runtimes_of
from tracelloc.show.presentation.alerts import alert_of, implausible_sizes, untraced_growth
from tracelloc.snapshots.snapshot import Snapshot


def runtimes(*paths: str, is_go: bool = False) -> tuple[Runtime, ...]:
    elf: Any = SimpleNamespace(is_go=is_go)
    return runtimes_of(Module(("0", n), path, path, elf) for n, path in enumerate(paths))


@pytest.mark.parametrize(
    ("path", "collection"),
    [
        ("/opt/java/lib/server/libjvm.so", (True, True)), ("/usr/bin/node", (True, True)),
        ("/usr/bin/mono-sgen", (True, True)), ("/usr/bin/ruby3.1", (True, False)),
        ("/usr/bin/lua5.4", (True, False)),
        ("/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2", (True, False)),
        ("/usr/lib/x86_64-linux-gnu/libgc.so.1", (True, False)),
        ("/usr/lib/x86_64-linux-gnu/libgcc_s.so.1", (False, False)),
        ("/usr/bin/python3.11", (False, False)), ("/usr/bin/php8.2", (False, False)),
        ("/usr/sbin/nginx", (False, False)),
    ],
)  # fmt: skip
def test_who_collects_garbage_and_moves_objects(path: str, collection: tuple[bool, bool]) -> None:
    assert garbage_collection(["/usr/lib/libc.so.6", path]) == collection


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/opt/java/lib/server/libjvm.so", "Java"),
        ("/usr/share/dotnet/shared/libcoreclr.so", ".NET"),
        ("/usr/lib/libruby-3.1.so.3.1.2", "Ruby"),
        ("/usr/lib/x86_64-linux-gnu/libnode.so.108", "JavaScript"),
        ("/usr/bin/node", "JavaScript"),
        ("/usr/lib/apache2/modules/libphp8.2.so", "PHP"),
        ("/usr/bin/php8.2", "PHP"),
        ("/usr/sbin/php-fpm8.2", "PHP"),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "Erlang"),
        ("/usr/bin/python3.11", "Python"),
        ("/usr/lib/x86_64-linux-gnu/libpython3.11.so.1.0", "Python"),
        ("/usr/bin/python3.13t", "Python"),
    ],
)
def test_runtimes_are_known_by_their_files(path: str, name: str) -> None:
    assert [runtime.name for runtime in runtimes("/lib/libc.so.6", path)] == [name]


def test_python_without_the_gil_is_not_counted() -> None:
    for name, without in (
        ("python3.13", "python3.13t"), ("libpython3.13.so.1.0", "libpython3.13t.so.1.0"),
    ):  # fmt: skip
        assert is_python_name(name)
        assert is_python_name(without)
        found = runtimes(f"/opt/{name}") + runtimes(f"/opt/{without}")
        assert [runtime.counts_objects for runtime in found] == [True, False]
        assert ["PYTHONMALLOC" in runtime.advice for runtime in found] == [True, False]


def test_others_are_no_runtimes_and_one_says_how_its_heap_is_seen() -> None:
    assert runtimes("/lib/libc.so.6", "/usr/bin/nodemon", "/usr/bin/phpunit", "/opt/srv") == ()
    assert [runtime.name for runtime in runtimes("/opt/srv", is_go=True)] == ["Go"]
    assert runtimes("/opt/libcgo.so.1", is_go=True) == ()
    snapshot = replace(grown("anonymous", 100 * MIB), runtimes=runtimes("/usr/sbin/php-fpm8.2"))
    found = untraced_growth(snapshot)
    assert "USE_ZEND_ALLOC=0" in found.sentence
    assert found.short.endswith("of the growth: start it with USE_ZEND_ALLOC=0")


def grown(by: str, size_bytes: int) -> Snapshot:
    """The program of known truth, whose memory has grown by so much of a kind."""
    snapshot = with_memory(400.0)
    start = snapshot.memory.start
    now = replace(start, **{by: getattr(start, by) + size_bytes})
    return replace(snapshot, memory=replace(snapshot.memory, now=now))


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("anonymous", "--mmap traces mappings"),
        ("files", "is file pages, not heap"),
        ("shared", "is shared memory"),
    ],
)
def test_what_has_grown_instead_is_said_first(by: str, words: str) -> None:
    snapshot = grown(by, 100 * MIB)
    found = untraced_growth(snapshot)
    assert re.match(r"(9[6-9]|100) % of memory growth \(", found.sentence)
    assert words in found.sentence
    parts = found.clause.partition(": ")[2].split("; ")
    assert not any(one in other for one in parts for other in parts if one is not other)
    assert list(text_report(snapshot, watched(400.0).namer, 1))[1] == f"==> {found.sentence}"


@pytest.mark.parametrize(
    ("age_s", "trouble", "said"),
    [
        (30.0, None, None),
        (200.0, None, "its objects were last counted 3 m 20 s ago: a count takes 12 s"),
        (30.0, "too much memory", "Python's objects were not counted: too much memory"),
    ],
)
def test_old_or_missing_object_counts(age_s: float, trouble: str | None, said: str | None) -> None:
    snapshot = replace(grown("anonymous", 100 * MIB), runtimes=runtimes("/usr/bin/python3.11"))
    census = ObjectCensus(snapshot.time_s - age_s, 12.0, (), 0, 0, 0)
    snapshot = with_facets(snapshot, objects=ObjectFindings(census, census, trouble=trouble))
    found = untraced_growth(snapshot)
    assert ("counted" in found.sentence.partition("--show objects")[2]) == (said is not None)
    assert (said or "") in found.sentence


def test_sizes_and_growth_that_need_words_or_none() -> None:
    snapshot = grown("anonymous", 100 * MIB)
    counters = {**snapshot.losses.counters, Counter.IMPOSSIBLE_SIZES: 3}
    snapshot = replace(snapshot, losses=replace(snapshot.losses, counters=counters))
    lines = list(text_report(snapshot, watched(400.0).namer, 1))
    assert lines[1].startswith("==> 3 allocations with sizes that cannot be (the argument is a")
    assert lines[2].startswith("==> 99 % of memory growth")
    alert = alert_of(snapshot)
    assert (alert.clause, alert.short) != (alert.sentence, alert.clause)
    snapshot = watched(400.0).snapshot()
    live = snapshot.live_bytes

    def with_space(size_bytes: int) -> Snapshot:
        whole = with_memory(400.0)
        now = replace(whole.memory.now, space=size_bytes)
        return replace(snapshot, memory=replace(whole.memory, now=now))

    for plausible in (0, live // 2 + 1):
        assert implausible_sizes(with_space(plausible)) is None
    assert "of address space" in implausible_sizes(with_space(live // 2 - 1)).sentence
    assert untraced_growth(grown("anonymous", MIB)) is None
    assert untraced_growth(watched(400.0).snapshot()) is None
