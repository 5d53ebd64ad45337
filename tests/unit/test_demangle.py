"""Demangling against GNU's and LLVM's tools and rustc's own documented examples."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from tests.harness import Builder
from tracelloc.demangle import LONGEST_NAME, demangle


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("malloc", "malloc"),
        ("", ""),
        ("i", "i"),
        ("_start", "_start"),
        ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
        (
            "_ZN36_$LT$T$u20$as$u20$core..any..Any$GT$7type_id17h95b5b8c2f0c5a0b4E",
            "<T as core::any::Any>::type_id",
        ),
        (
            "_ZN3std2rt10lang_start17h0123456789abcdefE.llvm.1234ABCD",
            "std::rt::lang_start",
        ),
        ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
        ("_RNCNvCs1234_7mycrate4main0B3_", "mycrate::main::{closure#0}"),
        ("_RNvCs1234_7mycrate3foo.llvm.998877", "mycrate::foo"),
        ("_Z3fooi", "foo(int)"),
        ("_ZN4shop5ShelfIhLi777EE4fillEv", "shop::Shelf<unsigned char, 777>::fill()"),
        ("_Znwm", "operator new(unsigned long)"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi@@GLIBCXX_3.4", None),
        ("_ZN3foo3barEv.cold", "foo::bar() [clone .cold]"),
        # Not what they look like: left as they are.
        ("_R", "_R"),
        ("_ZN", "_ZN"),
        ("_ZN99999fooE", "_ZN99999fooE"),
        ("_RNvB_1a", "_RNvB_1a"),
        ("_Zzzz", "_Zzzz"),
    ],
)
def test_known_names(mangled: str, name: str | None) -> None:
    if name is None:
        name = "std::vector<int, std::allocator<int> >::push_back(int const&)"
    assert demangle(mangled) == name


def symbols(path: Path) -> list[str]:
    text = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    return sorted({line.split()[-1] for line in text.splitlines()})


def test_cpp_equals_cxxfilt(builder: Builder) -> None:
    names = [name for name in symbols(builder.cpp("chain")) if name.startswith("_Z")]
    expected = subprocess.run(
        ["c++filt"], input="\n".join(n.split("@")[0] for n in names), capture_output=True,
        text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert len(names) > 8
    assert [demangle(name) for name in names] == expected


@pytest.mark.parametrize("mangling", ["legacy", "v0"])
def test_every_rust_symbol_of_a_program_is_read(builder: Builder, mangling: str) -> None:
    flags = [] if mangling == "legacy" else ["-C", "symbol-mangling-version=v0"]
    names = [n for n in symbols(builder.rust("chain", *flags)) if n.startswith(("_ZN", "_R"))]
    assert len(names) > 300
    unread = [name for name in names if demangle(name) == name]
    # rust-demangler has no words for a few (higher-ranked binders): below one in a hundred.
    assert len(unread) <= len(names) // 100
    assert not any("{closure:#" in demangle(name) for name in names)


def test_hostile_names(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = [
        "_RNvB_1a",
        "_R" + "I" * 5000,
        "_ZN" + "1a" * 6000 + "E",
        "_Z" + "P" * 8000 + "i",
        "_ZN3foo17h0123456789abcdefE" * 500,
        "_RMC0TFGmEuE",
        "_RNvC\x00\x1b[31m",
        "_Z" + "1a" * LONGEST_NAME,
        "_ZN\udcff17h0123456789abcdefE",
    ]
    for name in hostile:
        assert isinstance(demangle(name), str)
    assert demangle("_Z" + "1a" * LONGEST_NAME) == "_Z" + "1a" * LONGEST_NAME
    assert capsys.readouterr() == ("", "")


def test_threads_do_not_mix_names() -> None:
    """The library works in module globals."""
    pairs = {f"_RNvCs1234_{len(w)}{w}3foo": f"{w}::foo" for w in ("mycrate", "other", "a", "bcd")}
    wrong: list[str] = []

    def read(mangled: str) -> None:
        for _ in range(300):
            demangle.cache_clear()
            if demangle(mangled) != pairs[mangled]:
                wrong.append(mangled)

    threads = [threading.Thread(target=read, args=(name,)) for name in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
