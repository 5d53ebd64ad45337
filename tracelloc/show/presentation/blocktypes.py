"""Types of blocks: C++ classes read from memory, or types in allocating functions' names.

A template names the type in its arguments: ``std::vector<Session, …>::push_back`` allocates
``Session[]``, ``std::make_shared<Session>`` a ``Session (shared)``, and
``<alloc::boxed::Box<Session>>::new`` a ``Session``. Only functions of the standard libraries
between malloc and the program's own code are asked. Rust's older symbols (not "v0") have ``T``
instead of the type, which says nothing.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from tracelloc.dataclass import dataclass
from tracelloc.model.figures import I64
from tracelloc.model.frames import Frame
from tracelloc.model.heapusage import HeapUsage
from tracelloc.model.verdicts import CODE_OF, Verdict
from tracelloc.show.filters.rules import function_name
from tracelloc.show.presentation.naming import Namer
from tracelloc.show.presentation.shortnames import NotUnderstoodError, closing_bracket
from tracelloc.snapshots.snapshot import Snapshot
from tracelloc.text import printable, split_arguments

_MOST_STACKS: Final = 1 << 14  # Stacks whose types are looked for: those with the most live bytes
_LONGEST: Final = 4096  # Letters of a name that are looked at

# What a template allocates: the number of the argument that is the type, and how it is written.
_ARRAY, _NODE, _TREE, _HASH, _SHARED = (
    "{}[]", "{} (list node)", "{} (tree node)", "{} (hash node)", "{} (shared)",
)  # fmt: skip
_PAIR: Final = -1  # Instead of an argument's number: the pair of the first two
_TEMPLATES: Final[Mapping[str, tuple[int, str]]] = {
    **dict.fromkeys(("std::vector", "std::_Vector_base"), (0, _ARRAY)),
    **dict.fromkeys(("std::deque", "std::_Deque_base"), (0, _ARRAY)),
    **dict.fromkeys(("std::list", "std::_List_base", "std::_List_node"), (0, _NODE)),
    **dict.fromkeys(("std::forward_list", "std::_Fwd_list_node", "std::list_node"), (0, _NODE)),
    **dict.fromkeys(("std::set", "std::multiset", "std::_Rb_tree_node"), (0, _TREE)),
    **dict.fromkeys(("std::tree", "std::tree_node"), (0, _TREE)),
    "std::_Rb_tree": (1, _TREE),
    **dict.fromkeys(("std::map", "std::multimap"), (_PAIR, _TREE)),
    **dict.fromkeys(("std::unordered_set", "std::unordered_multiset"), (0, _HASH)),
    **dict.fromkeys(("std::_Hash_node", "std::hash_table", "std::hash_node"), (0, _HASH)),
    "std::_Hashtable": (1, _HASH),
    **dict.fromkeys(("std::unordered_map", "std::unordered_multimap"), (_PAIR, _HASH)),
    "std::make_unique": (0, "{}"),
    **dict.fromkeys(("std::make_shared", "std::allocate_shared"), (0, _SHARED)),
    **dict.fromkeys(("std::_Sp_counted_ptr_inplace", "std::shared_ptr_emplace"), (0, _SHARED)),
    **dict.fromkeys(("alloc::vec::Vec", "alloc::raw_vec::RawVec"), (0, _ARRAY)),
    "alloc::collections::vec_deque::VecDeque": (0, _ARRAY),
    "alloc::collections::linked_list::LinkedList": (0, _NODE),
    "alloc::boxed::Box": (0, "{}"),
    **dict.fromkeys(("alloc::rc::Rc", "alloc::sync::Arc"), (0, _SHARED)),
    "hashbrown::raw::RawTable": (0, "{} (hash table)"),
    "hashbrown::map::HashMap": (_PAIR, "{} (hash table)"),
    "std::collections::hash::map::HashMap": (_PAIR, "{} (hash table)"),
    "alloc::collections::btree::map::BTreeMap": (_PAIR, _TREE),
    "alloc::collections::btree::node::LeafNode": (_PAIR, _TREE),
    "alloc::collections::btree::node::InternalNode": (_PAIR, _TREE),
    "alloc::collections::linked_list::Node": (0, _NODE),
    **dict.fromkeys(("alloc::rc::RcInner", "alloc::rc::RcBox"), (0, _SHARED)),
    "alloc::sync::ArcInner": (0, _SHARED),
}
_ALLOCATORS: Final = frozenset({
    "std::allocator", "std::new_allocator", "__gnu_cxx::new_allocator", "std::allocator_traits",
    "__gnu_cxx::__alloc_traits", "std::__allocated_ptr",
})  # fmt: skip
_STRINGS: Final[Mapping[str, str]] = {
    "std::basic_string": "std::string",
    "std::string": "std::string",
    "alloc::string::String": "String",
}
_STRING: Final = re.compile(rf"(?:{'|'.join(_STRINGS)})\b")
# Namespaces and underscores that differ between C++ libraries and their versions.
_OWN_NAMESPACES: Final = re.compile(r"\bstd::(?:__\w+::)*(?:__(?=[a-z]))?")
_LIBRARY: Final = re.compile(
    r"<*(?:&(?:mut )?|\[|\(|dyn |impl )*(?:std|__gnu_cxx|__cxxabiv1|core|alloc|hashbrown)::"
    r"|operator new|__rust_|__rdl_|__rg_|__rustc|_?(?:mi_|tc_|je_)?"
    r"(?:malloc|calloc|realloc|memalign|aligned_alloc|posix_memalign|reallocarray)\b|_int_malloc"
)
# C++ programs may have namespaces of these names: Rust's functions are not followed by `()`.
_OWN_CXX: Final = re.compile(r"(?:core|alloc|hashbrown)::.*\)(?: const)?$")
# A type's stand-in in Rust's older symbols.
_PARAMETER: Final = re.compile(r"[A-Z]\w?(?:,.*)?|impl .*|_|\?|dyn .*")
_RUST_SELF: Final = re.compile(r"(?:alloc::slice::)?<(?:impl )?\[(.+)\]>::")


@dataclass(frozen=True, slots=True)
class _Found:
    text: str
    is_whole: bool  # Whether functions further out have nothing to add


# How arguments begin that are usually left out.
_DEFAULTS: Final = (
    "std::allocator<", "std::char_traits<", "std::default_delete<", "std::less<", "std::hash<",
    "std::equal_to<", "alloc::alloc::Global", "std::alloc::Global",
)  # fmt: skip
# How Rust's types begin that hold another one, and are never named by a program.
_INNER: Final = ("alloc::rc::", "alloc::sync::ArcInner", "alloc::collections::")
_DEEPEST: Final = 20
_NOT_ASKED: Final = -1
_BYTES: Final = "u8[]"
_BUCKETS: Final = _Found("hash buckets", is_whole=True)
_PROGRAM: Final = _Found("", is_whole=True)  # For functions of the program itself
_POINTERS_TO_NODES: Final = re.compile(r"std::(?:_Hash_node_base|hash_node_base)\b.*\*$")


def type_in_names(frames: Iterable[Frame]) -> str | None:
    """Returns the type that a stack's functions, innermost first, name, or None; not printable."""
    plain: str | None = None
    for frame in frames:
        if frame.symbol is None:
            continue
        found = _type_in(frame.symbol)
        if found is _PROGRAM:
            break
        if found is None:
            continue
        if plain == _BYTES:
            # A string keeps its text in one.
            if found.text != _BYTES:
                return "String" if found.text == "String" else plain
        elif found.is_whole and found.text != _BYTES:
            return found.text
        plain = plain or found.text
    return plain


@functools.lru_cache(maxsize=1 << 14)
def _type_in(symbol: str) -> _Found | None:
    name = _OWN_NAMESPACES.sub("std::", function_name(symbol[:_LONGEST]))
    of_slice = _RUST_SELF.match(name)
    if of_slice is not None:
        return _written(of_slice[1], _ARRAY)
    if not _LIBRARY.match(name) or _OWN_CXX.match(name):
        return _PROGRAM
    head, arguments = _head(name.lstrip("<&"))
    if head in _ALLOCATORS and arguments:
        return _of_allocator(arguments[0])
    string = _STRING.match(head)
    if string is not None:
        is_wide = head == "std::basic_string" and arguments[:1] not in ([], ["char"])
        text = f"std::basic_string<{arguments[0]}>" if is_wide else _STRINGS[string[0]]
        return _Found(text, is_whole=True)
    if head == "std::_Hashtable" and ("::_M_rehash" in name or "buckets" in name):
        return _BUCKETS
    return _of_template(head, arguments)


def _of_template(head: str, arguments: Sequence[str]) -> _Found | None:
    number, form = _TEMPLATES.get(head, (0, ""))
    if not form or len(arguments) < (2 if number == _PAIR else number + 1):
        return None
    if number != _PAIR:
        return _written(arguments[number], form)
    key, value = arguments[:2]
    if _PARAMETER.fullmatch(key) or _PARAMETER.fullmatch(value):
        return None
    is_rust = "(hash table)" in form or head.startswith("alloc::")
    return _written(f"({key}, {value})" if is_rust else f"std::pair<{key} const, {value}>", form)


def _of_allocator(argument: str) -> _Found | None:
    """Returns the type of an ``allocator<T>``, which an outer frame may complete."""
    head, arguments = _head(argument)
    if head in _ALLOCATORS and arguments:
        return _of_allocator(arguments[0])
    if _POINTERS_TO_NODES.match(argument):
        return _BUCKETS
    if (
        argument.endswith(">")
        and head.startswith("std::")
        and head.endswith(("_node", "_inplace", "_emplace"))
    ):
        return _of_template(head, arguments)
    found = _written(argument, "{}")
    return found and _Found(found.text, is_whole=False)


def _written(argument: str, form: str) -> _Found | None:
    if form == "{}" and argument.startswith(_INNER):
        return _of_template(*_head(argument))
    if _PARAMETER.fullmatch(argument):
        return None
    return _Found(form.format(_without_defaults(argument)), is_whole=True)


def _without_defaults(name: str, depth: int = 0) -> str:
    """Returns a type's name without the arguments that source code usually leaves out."""
    begin = name.find("<")
    arguments = _arguments(name, begin) if begin > 0 and depth < _DEEPEST else []
    if not arguments:
        return name
    end = _end(name, begin)
    while len(arguments) > 1 and arguments[-1].startswith(_DEFAULTS):
        arguments.pop()
    inner = ", ".join(_without_defaults(each, depth + 1) for each in arguments)
    rest = _without_defaults(name[end:], depth + 1)
    if name[:begin] == "std::basic_string" and inner == "char":
        return f"std::string{rest}"
    return f"{name[:begin]}<{inner}>{rest}"


@functools.lru_cache(maxsize=4096)
def readable_class(name: str) -> str:
    """Returns a C++ class as a readable type: namespaces of libraries and defaults shortened."""
    name = _OWN_NAMESPACES.sub("std::", name[:_LONGEST])
    found = _of_template(*_head(name))
    return found.text if found is not None else _without_defaults(name)


def _head(name: str) -> tuple[str, list[str]]:
    """Splits ``a::b<c, d>::e`` into ``a::b`` and its arguments, which may be none."""
    begin = name.find("<")
    if begin < 0 or name.find("(", 0, begin) >= 0:
        return name.partition("(")[0], []
    if name.startswith("::<", begin - 2):
        return name[: begin - 2], _arguments(name, begin)
    return name[:begin], _arguments(name, begin)


def _arguments(name: str, begin: int) -> list[str]:
    """Returns the arguments in the bracket at ``begin``; none if it is never closed."""
    end = _end(name, begin)
    return split_arguments(name[begin + 1 : end - 1]) if end else []


def _end(name: str, begin: int) -> int:
    """Returns the position behind the bracket at ``begin``; 0 if it is never closed."""
    try:
        return closing_bracket(name, begin) + 1
    except NotUnderstoodError:
        return 0


def class_text(name: str) -> str:
    """Returns the type of blocks that begin with an object of a class, safe to print."""
    return printable(readable_class(name))


@dataclass(frozen=True, slots=True)
class TypeSum:
    """The live blocks of one type; figures are estimates if blocks are sampled."""

    name: str | None  # From the target; None for blocks of unknown type
    size_bytes: int
    count: int
    growth_bytes_per_min: int
    leaking_bytes: int  # Live bytes of stacks that leak
    stacks: tuple[int, ...]  # The call stacks that allocate it, most bytes first


class BlockTypes:
    """Finds the types of stacks' blocks, cached while names do not change. For one thread."""

    def __init__(self) -> None:
        self._version: tuple[int, int] | None = None  # Version of the names
        self._usage: HeapUsage | None = None
        self._classes: dict[int, str] = {}  # By stack, of the last usage
        self._types: list[str | None] = [None]
        self._numbers: dict[str | None, int] = {None: 0}
        # Per stack the number of its type, or `_NOT_ASKED`
        self._numbers_of = np.zeros(0, np.int64)
        # Stacks whose frames are still to come, or lost; they count as of unknown type
        self._frameless: set[int] = set()
        # Stacks of the last sums that have not been looked at: they count as of unknown type
        self.left = 0

    def sums(
        self, snapshot: Snapshot, namer: Namer, live_bytes: I64, live_count: I64,
        at_once: int | None = None,
    ) -> list[TypeSum]:  # fmt: skip
        """Returns live blocks by type. ``at_once``: the most new stacks, no wait for names."""
        order = np.argsort(-live_bytes, kind="stable")
        order = order[live_bytes[order] > 0]
        self._begin(snapshot, namer)
        first = order[:_MOST_STACKS]
        fresh = self._fresh(first)
        if fresh and at_once is None:
            namer.prepare(snapshot, fresh, namer.patience_s)
        self._look_for(snapshot, namer, fresh[:at_once])
        self.left = len(fresh) - len(fresh[:at_once])
        numbers = np.zeros(len(order), np.int64)
        numbers[: len(first)] = np.maximum(self._numbers_of[first], 0)
        leaks, findings = np.zeros(len(live_bytes), np.bool_), snapshot.findings
        if findings is not None:
            leaks = findings.whole_codes(len(leaks)) == CODE_OF[Verdict.LEAKING]
        by_type = np.argsort(numbers, kind="stable")
        found = []
        for rows in np.split(by_type, np.flatnonzero(np.diff(numbers[by_type])) + 1):
            if not len(rows):
                continue
            stacks = order[rows]
            found.append(
                TypeSum(
                    self._types[numbers[rows[0]]], int(live_bytes[stacks].sum()),
                    int(live_count[stacks].sum()), int(snapshot.growth_per_min[stacks].sum()),
                    int(live_bytes[stacks[leaks[stacks]]].sum()), tuple(stacks.tolist()),
                )
            )  # fmt: skip
        return sorted(found, key=lambda each: (-each.size_bytes, each.name or ""))

    def types_of(self, snapshot: Snapshot, namer: Namer, stacks: I64) -> list[str | None]:
        """Returns the type of each stack's blocks, by the names that are known now."""
        self._begin(snapshot, namer)
        self._look_for(snapshot, namer, self._fresh(stacks))
        return [self._types[max(number, 0)] for number in self._numbers_of[stacks].tolist()]

    def _begin(self, snapshot: Snapshot, namer: Namer) -> None:
        usage, more = snapshot.usage, len(snapshot.totals) - len(self._numbers_of)
        if usage is not self._usage:
            found = () if usage is None else usage.stack_classes
            self._classes = {each.stack: readable_class(each.name) for each in found}
        if namer.version != self._version or usage is not self._usage:
            self._version, self._usage = namer.version, usage
            self._numbers_of[:] = _NOT_ASKED
            self._frameless = set()
        come = {each for each in self._frameless if snapshot.frames(each)}
        self._numbers_of[list(come)] = _NOT_ASKED
        self._frameless -= come
        if more > 0:
            self._numbers_of = np.pad(self._numbers_of, (0, more), constant_values=_NOT_ASKED)

    def _fresh(self, stacks: I64) -> list[int]:
        fresh: list[int] = stacks[self._numbers_of[stacks] == _NOT_ASKED].tolist()
        return fresh

    def _look_for(self, snapshot: Snapshot, namer: Namer, stacks: Iterable[int]) -> None:
        peek, numbers = namer.symbols.peek, self._numbers
        for index in stacks:
            addresses, name = snapshot.frames(index), self._classes.get(index)
            if name is None and not addresses:
                self._frameless.add(index)
            # One by one, as the first few tell.
            frames = (frame for each in addresses for frame in peek((each,)))
            name = name or type_in_names(frames)
            number = numbers.setdefault(name, len(numbers))
            if number == len(self._types):
                self._types.append(name)
            self._numbers_of[index] = number
