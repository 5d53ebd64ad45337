"""Demangling against GNU's reader and known names, and of names made to do harm."""

import functools
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.commands import outcome, run
from tests.harness import PATIENCE_S, Builder
from tests.unit.names import names_in
from tracelloc.files import demangle as module
from tracelloc.files.demangle import (
    LONGEST_NAME,
    cache,
    cxxnames,
    demangle,
    with_arguments,
    without_arguments,
)
from tracelloc.system.confined import OWN_USERS
from tracelloc.text import LONGEST_TEXT, printable

Helper = cxxnames._Helper
HANGS = "_Z4llvm4orINS_IXsreTrtD"  # Keeps libstdc++ 12 in a loop for ever


@pytest.fixture(params=["pyderust", "rust-demangler"])
def rust(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both readers of Rust's names, one after the other; the second one reads legacy names only."""
    if request.param != "pyderust":
        monkeypatch.setitem(sys.modules, "pyderust", None)
    cache.clear()
    yield request.param
    cache.clear()


def expected(rust: str, name: str, readable: str) -> str:
    """What is shown of a name by that reader."""
    return name if rust != "pyderust" and name.startswith(("_R", "__R")) else readable


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    """A helper of the test's own, to be struck at will."""
    helper = Helper()
    monkeypatch.setattr(cxxnames, "_helper", helper)
    cache.clear()
    yield helper
    helper.close()
    cache.clear()


@pytest.mark.parametrize(("mangled", "name"), [("", ""), *names_in("mangled")])
def test_known_names(rust: str, mangled: str, name: str) -> None:
    assert demangle(mangled) == expected(rust, mangled, name)


@functools.cache
def symbols(path: Path, *options: str) -> tuple[str, ...]:
    lines = run("nm", *options, path).splitlines()
    return tuple(sorted({line.split()[-1] for line in lines if line.strip()}))


def gnu(names: list[str]) -> list[str]:
    asked = "\n".join(name.split("@")[0] for name in names)
    return run("c++filt", "--no-verbose", input=asked).splitlines()


def library(name: str) -> Path:
    return Path(run("g++", f"-print-file-name={name}").strip()).resolve()


def test_cpp_equals_cxxfilt(builder: Builder) -> None:
    names = list(symbols(builder.cpp("chain")) + symbols(library("libstdc++.so.6"), "-D"))
    names = [name for name in names if name.startswith("_Z")][::2]
    assert len(names) > 2500
    different = [(n, e) for n, e in zip(names, gnu(names), strict=True) if demangle(n) != e]
    # Another version of the same code may word one in a thousand differently.
    assert len(different) <= len(names) // 1000, different[:5]


@functools.cache
def rust_libraries() -> tuple[str, ...]:
    """Names of the compiler itself and of the standard library."""
    asked = "sysroot", "target-libdir"
    root, target = (Path(run("rustc", "--print", what).strip()) for what in asked)
    paths = [*root.glob("lib/**/librustc_driver-*.so"), *target.glob("libstd-*.so")]
    assert paths
    return tuple(name for path in paths for name in symbols(path.resolve(), "-D"))


@pytest.mark.long
def test_v0_equals_cxxfilt() -> None:
    names = [name for name in rust_libraries() if name.startswith("_R")][::20]
    pairs = zip(names, gnu(names), strict=True)
    assert len(names) > 100
    different = [(name, demangle(name), text) for name, text in pairs if demangle(name) != text]
    assert different == []


def base62(number: int) -> str:
    """Rust's way: ``_`` is 0, ``0_`` is 1."""
    digits, rest = "", number - 1
    while rest >= 0 and (rest or not digits):
        digits = DIGITS[rest % 62] + digits
        rest //= 62
    return digits + "_"


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def rust_bomb(levels: int, first: str = "TllE", around: str = "TE") -> str:
    """Each tuple names the one before twice."""
    text = "INvC1a1f" + first
    at = len(text) - len(first)
    for _ in range(levels):
        start = len(text)
        text += around[0] + f"B{base62(at)}" * 2 + around[1:]
        at = start
    return f"_R{text}E"


def cpp_bomb(levels: int) -> str:
    """Each parameter names the type before twice."""
    digits = DIGITS[:10] + DIGITS[36:]
    steps = ((digits[n // 36] if n >= 36 else "") + digits[n % 36] for n in range(levels))
    return "_Z1f1AIiiE" + "".join(f"S_IS{step}_S{step}_E" for step in steps)


HOSTILE = [
    rust_bomb(4000 // 8), rust_bomb(500, "TE"), rust_bomb(500, "FEu", "FEu"), rust_bomb(60, "Kj1_"),
    "_RNvB_1a", "_R" + "I" * 5000, "_RINvC1a1f" + "R" * 8000 + "lE",
    "_RINvC1a1f" + "DNtC1a1T" * 900 + "EL_E", "_RINvC1a1fFGzzzzzzzzz_EuE", "_RINvC1a1fFGZZZ_EuE",
    "_RNvC1au200000" + "a" * 9000, "_RNvC1au9999_" + "z" * 9999, "_R" + "NvC1a" * 3000,
    "_RMC0TFGmEuE", "_RNvC\x00\x1b[31m", "_RNvC1a1\x1b", "_RNvC1a1b.\x1b[31m",
    "_ZN4\x1b[3117h0123456789abcdefE", "_ZN5$u1b$17h0123456789abcdefE", "_ZN" + "1a" * 6000 + "E",
    "_ZN" + "9" * 9000 + "17h0123456789abcdefE", "_ZN" + "1a" * 6000 + "17h0123456789abcdefE",
    "_ZN3foo17h0123456789abcdefE" * 500, "_ZN\udcff17h0123456789abcdefE", "_Z" + "P" * 8000 + "i",
    "_Z1f" + "P" * 1000 + "i", "_Z1f" + "1AI" * 330 + "i", "_Z1f\n3foov", "_Z1\udcffv",
    "_Z1\ud800v", "_Z" + "1a" * LONGEST_NAME, "_R" + "a" * (1 << 20), HANGS, cpp_bomb(30),
]  # fmt: skip


def test_hostile_names(rust: str, fresh: Helper, capfd: pytest.CaptureFixture[str]) -> None:
    for name in HOSTILE:
        begin = time.process_time()
        text = demangle(name)
        assert time.process_time() - begin < 3, name[:50]
        assert len(text) <= max(LONGEST_TEXT, len(name))
        assert text == name or printable(text) == text or "\udcff" in name
        assert printable(printable(text)) == printable(text)
        assert printable(text).isprintable()
    assert demangle("_Z3fooi") == "foo(int)"
    assert capfd.readouterr() == ("", "")


def test_what_takes_long_ends_the_helper(fresh: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxxnames, "MOST_STRIKES", 2)
    assert cxxnames.read("_Z3fooi") == "foo(int)"
    first = fresh._process
    assert cxxnames.read(HANGS) is None
    if first.poll() is None:
        pytest.skip("this C++ library does not hang")
    assert cxxnames.read("_Z3fooj") == "foo(unsigned int)"
    assert cxxnames.read(cpp_bomb(30)) is None
    # Enough of that: nobody is asked any more.
    assert cxxnames.read("_Z3fooi") is None
    assert fresh._process is None


def test_an_interrupted_question(fresh: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cxxnames.read("_Z3fooi") == "foo(int)"

    class Interrupted:
        def register(self, *_: object) -> None: ...

        def poll(self, *_: object) -> None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cxxnames.select, "poll", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            cxxnames.read("_Z3fooj")
    assert cxxnames.read("_Z3barv") == "bar()"


def test_helper_lives_no_longer_than_we() -> None:
    code = (
        "import os, sys; from tracelloc.files import demangle\n"
        "from tracelloc.files.demangle import cxxnames\n"
        "demangle.demangle('malloc'); demangle.demangle('_RNvC1a1b')\n"
        "assert cxxnames._helper._process is None\n"
        "assert demangle.demangle('_Z3fooi') == 'foo(int)'\n"
        "print(cxxnames._helper._process.pid, flush=True)\n"
    )
    for end in ("pass", "os.kill(os.getpid(), 9)"):
        done = outcome(sys.executable, "-c", code + end)
        assert done.stderr == ""
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{int(done.stdout)}").exists() and time.monotonic() < deadline:
            if Path(f"/proc/{int(done.stdout)}/stat").read_text().split()[2] == "Z":
                break  # dead; whoever inherited it has not looked yet
            os.sched_yield()
        assert time.monotonic() < deadline


def test_without_a_helper_names_stay(fresh: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    assert demangle("_Z3fooi") == "_Z3fooi"
    monkeypatch.setattr(sys, "executable", None)
    assert demangle("_Z3fooj") == "_Z3fooj"


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CACHED", 1000)
    cache.clear()
    for number in range(200):
        assert demangle(f"_RNvC1a5f{number:04}") == f"a::f{number:04}"
        assert sum(len(a) + len(b) for a, b in cache._known.items()) == cache._size <= 1000
    assert "_RNvC1a5f0199" in cache._known
    cache.clear()


def test_threads_do_not_mix_names(rust: str) -> None:
    """rust-demangler works in module globals, the helper answers in turn."""
    words = ("mycrate", "other", "a", "bcd")
    pairs = {f"_RNvCs1234_{len(w)}{w}3foo": f"{w}::foo" for w in words}
    pairs |= {f"_ZN{len(w)}{w}17h0123456789abcdefE": w for w in words}
    pairs |= {f"_Z{len(w)}{w}v": f"{w}()" for w in words}
    pairs = {name: expected(rust, name, text) for name, text in pairs.items()}
    wrong: list[str] = []

    def read(mangled: str) -> None:
        for _ in range(100):
            cache.clear()
            if demangle(mangled) != pairs[mangled]:
                wrong.append(mangled)

    with ThreadPoolExecutor(len(pairs)) as pool:
        list(pool.map(read, pairs))
    assert wrong == []


def test_the_helper_has_no_rights(fresh: Helper) -> None:
    assert cxxnames.read("_Z3fooi") == "foo(int)"
    status = Path(f"/proc/{fresh._process.pid}/status").read_text()
    for line in (
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        *(f"Cap{x}:\t{0:016x}" for x in ("Prm", "Eff", "Amb")),
    ):
        assert f"\n{line}\n" in status
    if not os.getuid():
        own = f"\t{OWN_USERS + os.getpid()}" * 4
        assert f"\nUid:{own}\n" in status


@pytest.mark.parametrize(
    ("symbol", "plain", "expected"),
    [
        (
            "_ZN5alloc7raw_vec19RawVec$LT$T$C$A$GT$8grow_one17h29c3f5dfd3db8655E",
            "grow_one<shop::Item, alloc::alloc::Global>",
            "alloc::raw_vec::RawVec<shop::Item, alloc::alloc::Global>::grow_one",
        ),
        (
            "_ZN5alloc5boxed12Box$LT$T$GT$3new17h37956819f0155631E",
            "new<alloc::vec::Vec<(u8, shop::Item), alloc::alloc::Global>>",
            "alloc::boxed::Box<alloc::vec::Vec<(u8, shop::Item), alloc::alloc::Global>>::new",
        ),
        # There are fewer than the name has parameters, or none in it.
        (
            "_ZN5alloc7raw_vec19RawVec$LT$T$C$A$GT$8grow_one17h29c3f5dfd3db8655E",
            "grow_one<shop::Item>",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
        ),
        ("_ZN4shop4main17h37956819f0155631E", "main<u8>", "shop::main"),
        ("_ZN4shop4main17h37956819f0155631E", "main", "shop::main"),
        ("_ZN4shop4mainEv", "main<u8>", "shop::main()"),
    ],
)
def test_older_rust_names_with_arguments(symbol: str, plain: str, expected: str) -> None:
    whole = with_arguments(symbol, plain)
    assert without_arguments(whole) == symbol
    assert demangle(whole) == expected
