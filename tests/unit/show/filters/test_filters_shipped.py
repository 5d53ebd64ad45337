"""The shipped rules, on names and stacks recorded from real programs.

tests/data/symbols holds one list per group, made by ``nm`` and tracelloc.files.demangle, or of
the stacks that ``tracelloc --no-filters --json`` saw. Each says of what. To record anew:
build a program that uses the library in many ways, with frame pointers, run it under
tracelloc or give it to nm, and keep some names for each rule and some that match none.
"""

import random
import time

from tests.harness import DATA
from tracelloc.files.demangle import LONGEST_NAME
from tracelloc.model.frames import Frame
from tracelloc.show.filters import Filters
from tracelloc.show.filters.files import shipped_rules
from tracelloc.show.filters.rules import On, Rule, function_name, trait_name
from tracelloc.show.presentation.facts import format_frame
from tracelloc.show.presentation.naming import stack_title

FILES = [
    # Of Debian's Python 3.11 and packages from PyPI.
    "<frozen importlib._bootstrap_external>",
    "<frozen runpy>",
    "/usr/lib/python3.11/asyncio/base_events.py",
    "/usr/lib/python3.11/threading.py",
    "/usr/lib/python3.11/concurrent/futures/thread.py",
    "/usr/lib/python3.11/multiprocessing/process.py",
    "/srv/venv/lib/python3.11/site-packages/_pytest/runner.py",
    "/srv/venv/lib/python3.11/site-packages/_pytest/assertion/rewrite.py",
    "/srv/venv/lib/python3.11/site-packages/pluggy/_callers.py",
    "/usr/lib/python3.11/unittest/case.py",
    "/srv/venv/lib/python3.11/site-packages/gunicorn/workers/sync.py",
    "/srv/venv/lib/python3.11/site-packages/uvicorn/server.py",
]
RULES = shipped_rules().rules
WHERE = (On.MODULE, On.FILE)
# What has no name of its own to be found in a list.
MODULES = [
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
    "/usr/lib/x86_64-linux-gnu/libc++.so.1.0",
    "/usr/lib/x86_64-linux-gnu/libc++abi.so.1",
    "/usr/bin/python3.11",
    "/usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0",
    "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so",
    "/usr/lib/x86_64-linux-gnu/libffi.so.8.1.2",
    "/srv/_cffi_backend.cpython-311-x86_64-linux-gnu.so",
]


def recorded(path: str) -> list[str]:
    lines = (DATA / path).read_text().splitlines()
    assert lines[0].startswith(("# Recorded: ", "# From memory: "))
    return lines[1:]


GROUPS = {path.stem: recorded(f"symbols/{path.name}") for path in DATA.glob("symbols/*.txt")}
OWN = GROUPS.pop("own")


def subject(rule: Rule, name: str) -> str | None:
    return trait_name(name) if rule.on is On.TRAIT else function_name(name)


def frame(name: str, module: str = "/opt/app") -> Frame:
    if name == "???":
        return Frame(1, None, None, None, None, module, 1)
    return Frame(1, name, name, 1, 2, module, 1)


FILTERS = Filters([shipped_rules()])


def hidden(name: str, filters: Filters = FILTERS) -> bool:
    return filters.apply([frame(name), frame("nobody's")]).hidden[0]


def test_each_group_has_a_list_and_every_rule_matches_what_it_is_for() -> None:
    assert {rule.group for rule in RULES if rule.group} == set(GROUPS)
    assert all(40 < len(names) < 150 for names in GROUPS.values())
    for rule in RULES:
        assert rule.why, rule
        names = [*GROUPS[rule.group or "rust"], *OWN]
        own = {On.MODULE: MODULES, On.FILE: FILES}
        subjects = own.get(rule.on) or [subject(rule, name) for name in names]
        matches = rule.tester()
        assert any(name is not None and matches(name) for name in subjects), rule


def test_no_rule_is_covered_by_the_others() -> None:
    """Each decides about something, so none is there in vain."""
    names = [name for names in GROUPS.values() for name in names] + OWN
    idle = []
    for rule in (rule for rule in RULES if rule.on not in WHERE):
        later = RULES[RULES.index(rule) + 1 :]
        tests = [(other, other.tester()) for other in later if other.on not in WHERE]

        def decides(name: str, rule: Rule = rule, tests: list = tests) -> bool:  # type: ignore[type-arg]
            own = subject(rule, name)
            if own is None or not rule.tester()(own):
                return False
            subjects = ((subject(other, name), matches) for other, matches in tests)
            return not any(s is not None and matches(s) for s, matches in subjects)

        if not any(decides(name) for name in names):
            idle.append(rule.pattern)
    assert idle == []


def in_file(file: str) -> Frame:
    return Frame(1, "run", f"run ({file}:1)", None, None, "[Python]", None, file=file, line=7)


def test_only_files_of_plumbing_are_collapsed() -> None:
    for file in FILES:
        stack = FILTERS.apply([in_file(file), in_file("/srv/app.py")])
        assert stack.labels[0], file
        assert not stack.hidden[1]
    for file in (
        "/srv/asyncio/base.py", "/srv/app/threading.py", "/srv/gunicorn.conf.py", "/srv/pytest.py",
        "/srv/unittest/case.py", "<string>", "/srv/importlib/a.py",
    ):  # fmt: skip
        stack = FILTERS.apply([in_file(file), in_file("/srv/app.py")])
        assert not any(stack.hidden), file
        assert not any(stack.all_labels)


def test_a_python_programs_row_begins_with_its_function() -> None:
    python = "/usr/bin/python3.11"
    inner = [frame("PyByteArray_Resize", python), frame("bytearray_iconcat", python)]
    filters = FILTERS
    named = filters.apply([*inner, in_file("/srv/ask.py"), frame("_start", python)])
    assert stack_title(named, 1, with_line=True) == "run (ask.py:7) ← [python]"
    assert named.labels[:2] == ["python", "python"]
    # Without frames of Python, the innermost functions tell most.
    unnamed = filters.apply([*inner, frame("main", python)])
    assert stack_title(unnamed, 1) == "PyByteArray_Resize ← bytearray_iconcat"
    # Packages' modules in C, and programs that embed Python, stay.
    for module in ("/srv/venv/lib/python3.11/site-packages/shop/_fast.so", "/opt/python3.11-shop"):
        own = filters.apply([frame("fill", module), in_file("/srv/ask.py")])
        assert stack_title(own, 1) == "fill ← run"
    # A library's function that ctypes has called
    ffi = [frame("ffi_call", MODULES[-2]), frame("_PyObject_MakeTpCall", python)]
    called = filters.apply([frame("make_label", "/srv/liblabel.so"), *ffi, in_file("/srv/ask.py")])
    assert stack_title(called, 1) == "make_label ← run"
    assert [part.label for part in called.parts()] == [None, "python", None]
    called = filters.apply([frame("make_label", "/srv/liblabel.so"), *ffi, frame("main", "/srv/a")])
    assert stack_title(called, 1) == "make_label ← [python]"


def test_a_programs_own_functions_and_what_only_looks_like_plumbing_stay() -> None:
    alike = [
        "main", "start", "clone_order", "malloc_wrapper", "malloc_stats_of", "mallocate",
        "tc_init", "uv_map", "mi_new_customer", "g_shop_new", "g_malloced", "Query::run()",
        "core::Engine::init(int)", "alloc::Pool::grow() const", "tracing::Span::begin(char const*)",
        "http::server::Connection::read(int)", "futures::Market::price() [clone .cold]",
        "stdx::vector<int>::push_back(int)", "new_customer", "app::std::run", "my::alloc::thing",
        "std::vector<int> shop::make<int>(int)", "v8engine::start()", "nodes::add(int)",
        "<tokio::net::TcpStream as shop::Link>::open", "shop::tokio::run", "method_call",
        "<shop::Wire as tokio::io::AsyncRead>::poll_read", "QShop::QShop(int)",
        "<shop::Job as core::future::future::Future>::poll", "PyShop_New", "_PyShop_Call",
    ]  # fmt: skip
    assert [name for name in (*OWN, *alike) if hidden(name)] == []


def test_rust_and_cpp_are_told_apart() -> None:
    for off, name, other in (
        ("rust", "std::thread::Builder::spawn", "std::thread::thread<int>(int)"),
        ("cpp", "std::thread::_State_impl<int>::_M_run()", "std::thread::spawn"),
        ("rust", "std::io::Write::write_fmt", "std::ios_base::Init::Init()"),
        ("cpp", "std::vector<int>::reserve(unsigned long)", "std::fs::read"),
    ):
        filters = Filters([shipped_rules()])
        assert [hidden(each, filters) for each in (name, other)] == [True, True]
        filters.set_group(off, False)
        assert [hidden(each, filters) for each in (name, other)] == [False, True]


def lines(filters: Filters, name: str) -> list[str]:
    stack = [frame(*line.split("\t")) for line in recorded(f"stacks/{name}.txt")]
    result = []
    for part in filters.apply(stack).parts():
        if part.frame is None:
            result.append(f"({part.count})")
        elif part.label is not None:
            result.append(f"[{part.label}] {part.count}")
        else:
            result.append(format_frame(part.frame).split("+0x")[0].split("(")[0])
    return result


def test_stacks_of_a_rust_server_and_a_cpp_program() -> None:
    """67 frames, six of which matter."""
    filters = Filters([shipped_rules()])
    stack = [
        "(4)", "shop::record_order", "shop::checkout::{{closure}}::{{closure}}", "(1)",
        "shop::checkout::{{closure}}", "(1)", "shop::handle::{{closure}}", "[hyper] 9",
        "[tokio] 39", "(8)", "??? in /lib/libc.so.6",
    ]  # fmt: skip
    assert lines(filters, "tokio") == stack
    filters.set_group("tracing", False)
    assert "<tracing::instrument::Instrumented<T> as core::future::future::Future>::poll" in lines(
        filters, "tokio"
    )
    for group in filters.groups:
        filters.set_group(group, False)
    assert len(lines(filters, "tokio")) == 67
    expected = ["(11)", "shop::Clerk::serve", "shop::Worker::operator", "(6)"]
    assert lines(FILTERS, "cpp") == expected


def test_reading_them_and_hostile_names_cost_little() -> None:
    """Reading takes 3 ms where this was written."""
    times = []
    for _ in range(5):
        start = time.process_time()
        Filters([shipped_rules()])
        times.append(time.process_time() - start)
    assert min(times) < 0.03
    hidden("first, so that nothing is compiled below")
    for unit in (
        "<", ">", "(", ")", "[", "<a as ", "<a as b>", " as ", "operator", ") const", "::", "a::",
        "decltype(", "(anonymous namespace)", "{closure#0}", "<&mut ", "->", "\x1b[31m", "core::",
        "<*const ", "__", "_", "g_", "std::hash<", "\udc80", "\n",
    ):  # fmt: skip
        rng = random.Random(len(unit))
        long = (unit * LONGEST_NAME)[:LONGEST_NAME]
        mixed = "".join(rng.choices([unit, "<", ">", " as ", "(", ")", "::", "a"], k=4000))
        start = time.process_time()
        for name in (long, f"<alloc::{long}", f"std::hash<{long}", mixed):
            hidden(name)
        assert time.process_time() - start < 0.5, unit
