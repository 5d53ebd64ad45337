"""Short names: exact for each kind, and without surprises on whole libraries' names."""

import random
from pathlib import Path

import pytest

from tests.harness import Builder
from tests.unit.files.demangle.test_demangle import library, symbols
from tracelloc.files.demangle import demangle
from tracelloc.show.presentation.shortnames import shorten
from tracelloc.text import LONGEST_TEXT


@pytest.mark.parametrize(
    ("name", "short"),
    [
        # Rust, both schemes
        ("<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop", "<Vec<…> as Drop>::drop"),
        ("<alloc::vec::Vec<u8>>::push", "alloc::vec::Vec<…>::push"),
        ("<str>::len", "str::len"),
        ("<[alloc::vec::Vec<u8>]>::sort", "<[Vec<…>]>::sort"),
        ("<&mut F as core::ops::Fn<(A,)>>::call", "<&mut F as Fn<…>>::call"),
        ("core::fmt::num::<impl core::fmt::Display for u8>::fmt",
         "core::fmt::num::<impl Display for u8>::fmt"),
        ("core::ptr::drop_in_place::<alloc::vec::Vec<u8>>", "core::ptr::drop_in_place::<…>"),
        ("core::ptr::drop_in_place<alloc::vec::Vec<u8>>", "core::ptr::drop_in_place<…>"),
        ("a::f::<T>::{closure#0}::{closure#1}", "a::f::<…>::{closure#0}::{closure#1}"),
        ("a::f::{{closure}}", "a::f::{{closure}}"),
        ("<<A as b::B>::C as d::D>::f", "<<A as B>::C as D>::f"),
        ("<a::S<u8> as c::D<e::F>>::g::<h::I>", "<S<…> as D<…>>::g::<…>"),
        ("<fn(a::B) -> c::D<u8> as core::fmt::Debug>::fmt", "<fn(B) -> D<…> as Debug>::fmt"),
        ("<for<'a> fn(&'a a::B) as c::D>::e", "<for<'a> fn(&'a B) as D>::e"),
        ("<dyn for<'a> a::B<'a, Item = u8> + core::marker::Send>::e",
         "<dyn for<'a> B<…> + Send>::e"),
        ("f::<'<'>::g", "f::<…>::g"),
        ('f::<")>(\\"">::g', "f::<…>::g"),
        ("größe::länge::<&str>", "größe::länge::<…>"),
        # C++
        ("std::vector<std::string, std::allocator<std::string> >::push_back(std::string const&)",
         "std::vector<…>::push_back"),
        ("foo(std::function<int (int)>, int (*)(char))", "foo"),
        ("(anonymous namespace)::foo(int)", "(anonymous namespace)::foo"),
        ("char const* (anonymous namespace)::foo<int>(int)", "(anonymous namespace)::foo<…>"),
        ("std::enable_if<(1 > 2), X>::type foo<1>(int) &&", "foo<…>"),
        ("decltype ((x)+(y)) foo<int>(int)", "foo<…>"),
        ("decltype(auto) foo<int>(int)", "foo<…>"),
        ("A<(a<b)>::f(int)", "A<…>::f"),
        ("A<&(operator< <int>(int))>::f(int)", "A<…>::f"),
        ("bool operator< <int>(a::B<int> const&, int)", "operator< <…>"),
        ("operator<(A, B)", "operator<"),
        ("std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char const*)",
         "std::operator<< <…>"),
        ("A::operator->() const", "A::operator->"),
        ("A::operator->*(int)", "A::operator->*"),
        ("A<int>::operator()(int) const", "A<…>::operator()"),
        ("A::operator=(A&&)", "A::operator="),
        ("x::operator<=><int>(y)", "x::operator<=><…>"),
        ("A::operator[](unsigned long)", "A::operator[]"),
        ("operator new[](unsigned long, std::align_val_t)", "operator new[]"),
        ('operator"" _s(char const*)', 'operator"" _s'),
        ("A::operator bool() const", "A::operator bool"),
        ("A::operator std::vector<int>() const", "A::operator std::vector<…>"),
        ("foo(int)::{lambda(std::vector<int>)#1}::operator()(std::vector<int>) const",
         "foo::{lambda(std::vector<…>)#1}::operator()"),
        ("auto foo<int>(int)::{lambda(auto:1)#2}::operator()<char>(char) const",
         "foo<…>::{lambda(auto:1)#2}::operator()<…>"),
        ("f(int) const::S::g()", "f::S::g"),
        ("foo[abi:cxx11](int) [clone .cold]", "foo[abi:cxx11] [clone .cold]"),
        ("foo(int) (.cold)", "foo (.cold)"),
        ("foo(...)", "foo"),
        ("java.util.zip.Deflater.<init>", "java.util.zip.Deflater.<init>"),
        ("org.a.B.<clinit>", "org.a.B.<clinit>"),
        ("Object.<anonymous>", "Object.<anonymous>"),
        ("vtable for std::vector<int>", "vtable for std::vector<…>"),
        ("non-virtual thunk to A<int>::f(int) const", "non-virtual thunk to A<…>::f"),
        ("my_operator<int>(int)", "my_operator<…>"),
        # Left as they are: short, not understood, or no names at all
        *((name, name) for name in (
            "", "malloc", "main", "<unknown>", "[unknown]", "foo (deleted)", "foo(", "foo<bar",
            "foo>", ")(", "<", "f(]", "A::f<(>)", "void (*foo<int>(int))(char)",
            "typeinfo for int (*)(char)", "A::operator void (*)(int)()",
            "LazyCompile:~foo (file.js:12)", "-[NSObject init]", "std::vector<…>::push_back",
            "operator", "operator ", "operator<", "'<", '"<', "()", "<>", "{}<>",
        )),
    ],
)  # fmt: skip
def test_each_kind(name: str, short: str) -> None:
    assert shorten(name) == short
    assert shorten(short) == short


def names_of(path: Path, *options: str) -> list[str]:
    return sorted(map(demangle, symbols(path, *options)))


@pytest.mark.long
def test_whole_programs(builder: Builder) -> None:
    names = names_of(library("libstdc++.so.6"), "-D")
    names += names_of(builder.rust("names", "-C", "symbol-mangling-version=v0"))
    names += names_of(builder.rust("names"))
    assert len(names) > 5000
    unchanged = 0
    for name in names:
        short = shorten(name)
        assert len(short) <= len(name)
        assert shorten(short) == short
        # Its last words are still there.
        assert short.count("{closure") <= name.count("{closure")
        unchanged += short == name and "(" in name.replace("(anonymous namespace)", "")
    # Types of functions and conversions to them.
    assert unchanged <= len(names) // 200


def test_broken_names_do_no_harm() -> None:
    chance = random.Random(3)
    pieces = ["<", ">", "(", ")", "[", "]", "{", "}", "::", " ", "a", "operator", "->", " as ",
              "impl ", "'", '"', "\\", "operator<", " const", "decltype ", "\x1b", "\udcff",
              "…"]  # fmt: skip
    for _ in range(20_000):
        name = "".join(chance.choices(pieces, k=chance.randrange(1, 14)))
        short = shorten(name)
        assert len(short) <= len(name) + 3 * name.count("<")
        assert shorten(short) == short, name
    for bomb in ("<" * 60_000, "(" * 60_000, "a<" * 20_000 + ">" * 20_000, "<>" * 30_000,
                 "<" * 9000 + "a" + ">" * 9000 + "::f", '"\\' * 20_000 + "<",
                 "operator a" * 6000 + "(",
                 "x" * (LONGEST_TEXT + 1) + "()"):  # fmt: skip
        assert isinstance(shorten(bomb), str)
