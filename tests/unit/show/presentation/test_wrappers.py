"""Wrappers of malloc that no rule knows, names of rows, and what would add missing names."""

from dataclasses import replace
from pathlib import Path

from tests.harness import wait_until
from tests.unit.leaks import watched
from tests.unit.reports import text_report
from tests.unit.show.presentation.test_untraced import runtimes
from tracelloc.model.codefiles import GENERATED, Unresolved
from tracelloc.model.frames import Frame
from tracelloc.show.filters import Filters, NamedStack, measured_wrappers
from tracelloc.show.filters.rules import Action, Rule
from tracelloc.show.presentation.naming import stack_title
from tracelloc.show.presentation.symboladvice import (
    SymbolAdvice,
    advice_text,
    generated_advice,
    lacking_files,
)


def frame(name: str) -> Frame:
    return Frame(16, name, name, 4, 16, "/opt/srv", 16, file="/src/srv.c", line=7)


def stack(*names: str, hidden: int = 1) -> NamedStack:
    frames = [frame(name) for name in names]
    return NamedStack(frames, [n < hidden for n in range(len(frames))])


def calls(
    count: int, *, sizes: int, name: str = "take_memory"
) -> list[tuple[NamedStack, int, int]]:
    return [
        (stack("malloc", name, f"caller_{n}", "main"), 16 << (n % sizes), 1) for n in range(count)
    ]


def test_wrappers_are_measured_and_hidden() -> None:
    assert measured_wrappers(calls(12, sizes=8)) == {"take_memory"}
    assert not measured_wrappers(calls(40, sizes=1, name="new_session"))
    assert not measured_wrappers(calls(7, sizes=8))
    own = (stack("malloc", "take_memory", "caller_0", "main"), 1 << 20, 9)
    assert not measured_wrappers([*calls(12, sizes=8), own])
    nameless = [
        (
            NamedStack([frame("take"), Frame(9, None, None, None, None, None, None)], [False] * 2),
            n,
            1,
        )
        for n in range(40)
    ]
    assert not measured_wrappers(nameless)
    assert not measured_wrappers([(stack("malloc", "f", "f", "f"), 8, 1)] * 20)
    frames = [frame(name) for name in ("take_memory", "caller", "main")]
    filters = Filters()
    version = filters.version
    filters.hide_measured(frozenset({"take_memory"}))
    assert filters.version > version
    assert list(filters.apply(frames).hidden) == [True, False, False]
    assert list(filters.copy().apply(frames).hidden) == [True, False, False]
    filters.add(Rule("take_memory", action=Action.SHOW))
    assert list(filters.apply(frames).hidden) == [False] * 3

    # Static functions of a stripped program, below an exported one that wraps malloc.
    def nameless(module: str) -> Frame:
        return Frame(9, None, None, None, None, module, 9)

    filters = Filters()
    filters.hide_measured(frozenset({"take_memory"}))
    own = "/opt/srv"
    called = [nameless(own), nameless(own), frame("take_memory"), nameless(own), frame("main")]
    assert filters.apply(called).hidden == [True, True, True, False, False]
    # Elsewhere, or inside a function that stays, they may be anything.
    elsewhere = [nameless("/opt/lib.so"), frame("take_memory"), frame("caller")]
    assert filters.apply(elsewhere).hidden == [False, True, False]
    inside = [nameless(own), frame("caller"), frame("take_memory")]
    assert filters.apply(inside).hidden == [False, False, True]
    filters.add(Rule("tokio_poll", action=Action.HIDE, group="tokio"))
    noise = [nameless(own), frame("tokio_poll"), frame("main")]
    assert filters.apply(noise).hidden == [False, True, False]


def test_names_of_rows() -> None:
    assert stack_title(stack("malloc", "f", "g"), 1) == "f ← g"
    assert stack_title(stack("malloc", "f", "g"), 1, with_line=True) == "f (srv.c:7) ← g"

    # Of a stripped program's functions, the exported one says more than addresses inside it.
    def nameless(offset: int, module: str = "/opt/srv") -> Frame:
        return Frame(9, None, None, None, None, module, offset)

    def title(*frames: Frame) -> str:
        return stack_title(NamedStack(frames, [False] * len(frames)), 1, with_line=True)

    assert title(nameless(16), nameless(32), frame("exported"), nameless(48), frame("main")) == (
        "exported (via +0x10) ← main"
    )
    # Another file's names say nothing of them.
    assert title(nameless(16, "/opt/plugin.so"), frame("load")) == "plugin.so+0x10 ← load"
    assert title(nameless(16), nameless(32)) == "srv+0x10"


def test_generated_code_without_names_comes_after_what_it_called() -> None:
    def generated(address: int) -> Frame:
        return Frame(address, None, None, None, None, None, None, Unresolved.ANONYMOUS)

    frames = [frame("node::Buffer"), generated(32), generated(48)]
    stack = NamedStack(frames, [False] * 3, ["node", None, None])
    assert stack_title(stack, 1) == "[node] ← [JIT code]"
    create = "node::Buffer::(anonymous namespace)::Create"
    names = "node::Get", "v8::Get", create, "Builtins_CallApiCallback"
    inner = [*map(frame, names), generated(32), generated(48), frame("main")]
    runs = ["node", "V8", "node", "V8", None, None, None]
    called = NamedStack(inner, [False] * 7, runs)
    assert stack_title(called, 1) == "node::Buffer::Create ← [JIT code]"
    node = runtimes("/usr/bin/node")
    advice = generated_advice(node, stack)
    assert "no names of generated code: start node with --perf-basic-prof" in advice
    assert generated_advice((), stack) is None
    (java,) = runtimes("/usr/lib/jvm/libjvm.so")
    option = "-XX:+PreserveFramePointer"
    missing = f"frames of compiled Java code may be missing: start it with {option}"
    naming = f"no names of generated code: {java.naming}"
    assert generated_advice((java,), stack) == f"{naming}; {missing}"
    named = NamedStack([replace(frame("Reports.main"), module=GENERATED)], [False])
    assert generated_advice((java,), named) == missing
    assert generated_advice((replace(java, frames_option=""),), stack) == naming
    assert generated_advice(node, NamedStack([frame("remember")], [False])) is None
    perl = NamedStack([frame("Perl_sv_setsv_flags"), frame("Perl_runops_standard")], [False] * 2)
    told = "Perl subroutines are not named: these functions are the interpreter's"
    assert generated_advice((), perl) == told


APP, LIBRARY = "/usr/bin/redis-server", "/usr/lib/libfoo.so.1"


def of_file(symbol: str | None, module: str, file: str | None = None) -> Frame:
    return Frame(16, symbol, symbol, 4, 16, module, 16, file=file, line=None if file is None else 7)


def shown(*frames: Frame) -> NamedStack:
    return NamedStack(list(frames), [False] * len(frames))


def test_advice_on_missing_lines(tmp_path: Path) -> None:
    found = lacking_files(
        shown(
            of_file("f", APP), of_file(None, LIBRARY), of_file(None, APP),
            of_file("m", "/opt/own", "a.c"), of_file(None, "/usr/lib/libc.so.6"),
            of_file(None, "[vdso]"),
        )
    )  # fmt: skip
    assert found == {APP: True, LIBRARY: True}
    assert lacking_files(shown(of_file("main", APP, "server.c"))) == {}
    assert advice_text(APP, nameless=False, hint="apt install x-dbgsym") == (
        "no source lines of redis-server: apt install x-dbgsym"
    )
    assert advice_text(APP, nameless=True, hint=None).endswith(
        "no names or source lines of redis-server: build it with -g, don't strip it"
    )
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "redis-tools.list").write_text(f"/usr/bin\n{APP}\n")
    advice = SymbolAdvice()
    found = wait_until(lambda: advice.advice_for(1, tmp_path, shown(of_file("f", APP))))
    assert found.startswith("no source lines of redis-server: apt install redis-tools-dbgsym")
    assert advice.advice_for(1, tmp_path, shown(of_file("f", APP, "a.c"))) is None
    found = watched(400.0)
    lines = list(text_report(found.snapshot(), found.namer, 2))
    assert [line for line in lines if "no source lines" in line] == [
        "==> no source lines of app: compile it with -g"
    ]
