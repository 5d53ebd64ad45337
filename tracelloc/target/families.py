"""The allocator interfaces that are known: which names mean what. Data only.

Sources: malloc(3), posix_memalign(3); C23, 7.24.3; jemalloc(3); gperftools' tcmalloc.h;
mimalloc.h of mimalloc 2; for mangled operators the Itanium C++ ABI, 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from tracelloc.target.signatures import (
    ALLOC,
    ALLOC_2,
    CALLOC,
    CALLOC_2,
    FREE,
    NEW,
    NEW_2,
    NEW_N,
    NEW_N_2,
    NEW_REALLOC,
    NEW_REALLOCN,
    OUTER_FREE,
    POSIX_MEMALIGN,
    REALLOC,
    REALLOC_2,
    REALLOCARRAY,
    REALLOCARRAY_2,
    REALLOCF,
    REALLOCF_2,
    RESIZE,
    Kind,
    Signature,
)


@dataclass(frozen=True, slots=True)
class Family:
    """The functions of one allocator interface."""

    name: str
    functions: Mapping[str, Signature]
    markers: tuple[str, ...]
    """A file that defines none of these does not implement the family."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """Functions that can't be followed, and what that means."""
    by_user: bool = False
    """The user has named it."""


LIBC: Final = Family(
    name="malloc",
    functions={
        "malloc": ALLOC,
        "calloc": CALLOC,
        "realloc": REALLOC,
        "reallocf": REALLOCF,
        "reallocarray": REALLOCARRAY,
        "free": FREE,
        "cfree": FREE,
        "free_sized": FREE,
        "free_aligned_sized": FREE,
        "memalign": ALLOC_2,
        "aligned_alloc": ALLOC_2,
        "posix_memalign": POSIX_MEMALIGN,
        "valloc": ALLOC,
        "pvalloc": ALLOC,
        "__libc_malloc": ALLOC,
        "__libc_calloc": CALLOC,
        "__libc_realloc": REALLOC,
        "__libc_reallocarray": REALLOCARRAY,
        "__libc_free": FREE,
        "__libc_cfree": FREE,
        "__libc_memalign": ALLOC_2,
        "__libc_valloc": ALLOC,
        "__libc_pvalloc": ALLOC,
        "__posix_memalign": POSIX_MEMALIGN,
        "__libc_malloc_impl": ALLOC,
    },
    # A static program may free nothing, but then it still allocates.
    markers=("malloc",),
)
"""malloc and its kin. What begins with underscores is glibc's or musl's."""

_JEMALLOC_OWN: Final = {
    "mallocx": ALLOC,
    "rallocx": REALLOC,
    "xallocx": RESIZE,
    "dallocx": FREE,
    "sdallocx": FREE,
}
JEMALLOC_MARKERS: Final = ("mallocx", "sdallocx")
"""What names of jemalloc's end with, whatever prefix it was built with."""


def jemalloc(prefix: str) -> Family:
    """A jemalloc built with this prefix (``--with-jemalloc-prefix``), Rust's with ``_rjem_``.

    Without one, malloc and its kin are what they always are.
    """
    own = dict(_JEMALLOC_OWN)
    if prefix:
        own |= {n: s for n, s in LIBC.functions.items() if not n.startswith("_")}
    return Family(
        name="jemalloc",
        functions={prefix + name: signature for name, signature in own.items()},
        markers=tuple(prefix + name for name in JEMALLOC_MARKERS),
    )


_ALIGN: Final = "St11align_val_t"
_NOTHROW: Final = "RKSt9nothrow_t"


def _operators() -> dict[str, Signature]:
    """All ``operator new`` and ``operator delete`` that can be replaced (C++20, 17.6.3)."""
    functions = {}
    for letter, align in product("wa", ("", _ALIGN)):
        functions[f"_Zn{letter}m{align}"] = NEW
        # An exception inside is caught inside.
        functions[f"_Zn{letter}m{align}{_NOTHROW}"] = ALLOC
    for letter, size, align in product("la", ("", "m"), ("", _ALIGN)):
        functions[f"_Zd{letter}Pv{size}{align}"] = FREE
        functions[f"_Zd{letter}Pv{align}{_NOTHROW}"] = FREE
    return functions


OPERATORS: Final = Family(
    name="operator new",
    functions={
        **_operators(),
        "_Znwm12__hot_cold_t": NEW,
        "_Znam12__hot_cold_t": NEW,
        "__size_returning_new": NEW,
        "__size_returning_new_hot_cold": NEW,
        "__size_returning_new_aligned": NEW,
        "__size_returning_new_aligned_hot_cold": NEW,
    },
    markers=("_Znwm",),
)
"""C++'s own operators. The last six are tcmalloc's."""

_TCMALLOC_NEW: Final = ("", "_aligned")
_TCMALLOC_DELETE: Final = (
    *("", "_sized", "_aligned", "_sized_aligned"),
    *("_nothrow", "_aligned_nothrow"),
)

TCMALLOC: Final = Family(
    name="tcmalloc",
    functions={
        "tc_malloc": ALLOC,
        "tc_malloc_skip_new_handler": ALLOC,
        "tc_calloc": CALLOC,
        "tc_realloc": REALLOC,
        "tc_memalign": ALLOC_2,
        "tc_posix_memalign": POSIX_MEMALIGN,
        "tc_valloc": ALLOC,
        "tc_pvalloc": ALLOC,
        "tc_free": FREE,
        "tc_free_sized": FREE,
        "tc_cfree": FREE,
        **{f"tc_new{array}{kind}": NEW for array in ("", "array") for kind in _TCMALLOC_NEW},
        **{
            f"tc_new{array}{kind}_nothrow": ALLOC
            for array in ("", "array")
            for kind in _TCMALLOC_NEW
        },
        **{f"tc_delete{array}{k}": FREE for array in ("", "array") for k in _TCMALLOC_DELETE},
    },
    markers=("tc_malloc",),
)
"""gperftools' own names; where they lie with malloc and the operators, they are those."""

_MI_SIZED: Final = {
    "malloc": (ALLOC, ALLOC_2),
    "zalloc": (ALLOC, ALLOC_2),
    "malloc_small": (ALLOC, ALLOC_2),
    "zalloc_small": (ALLOC, ALLOC_2),
    "calloc": (CALLOC, CALLOC_2),
    "mallocn": (CALLOC, CALLOC_2),
    "realloc": (REALLOC, REALLOC_2),
    "rezalloc": (REALLOC, REALLOC_2),
    "reallocf": (REALLOCF, REALLOCF_2),
    "reallocn": (REALLOCARRAY, REALLOCARRAY_2),
    "recalloc": (REALLOCARRAY, REALLOCARRAY_2),
}
"""For ``mi_NAME`` and for ``mi_heap_NAME``, whose first argument is a heap."""
_MI_ALIGNED: Final = ("malloc", "zalloc", "calloc", "realloc", "rezalloc", "recalloc")
_MI_INLINED: Final = "it makes its block without calling another function: not counted"
_MI_WHOLE_HEAP: Final = "it frees all blocks of a heap at once: they stay counted"


def _mimalloc() -> dict[str, Signature]:
    functions = {}
    for name, (plain, with_heap) in _MI_SIZED.items():
        endings = ("", "_aligned", "_aligned_at") if name in _MI_ALIGNED else ("",)
        for ending in endings:
            functions[f"mi_{name}{ending}"] = plain
            functions[f"mi_heap_{name}{ending}"] = with_heap
    return functions


MIMALLOC: Final = Family(
    name="mimalloc",
    functions={
        **_mimalloc(),
        "mi_expand": REALLOC,
        "mi__expand": REALLOC,
        "mi_reallocarray": REALLOCARRAY,
        "mi_aligned_recalloc": REALLOCARRAY,
        "mi_aligned_offset_recalloc": REALLOCARRAY,
        "mi_memalign": ALLOC_2,
        "mi_aligned_alloc": ALLOC_2,
        "mi_posix_memalign": POSIX_MEMALIGN,
        "mi_valloc": ALLOC,
        "mi_pvalloc": ALLOC,
        # It is written in C, where an exception of the program's new_handler is not caught.
        "mi_new": NEW,
        "mi_new_aligned": NEW,
        "mi_new_nothrow": NEW,
        "mi_new_aligned_nothrow": NEW,
        "mi_new_n": NEW_N,
        "mi_new_realloc": NEW_REALLOC,
        "mi_new_reallocn": NEW_REALLOCN,
        "mi_heap_alloc_new": NEW_2,
        "mi_heap_alloc_new_n": NEW_N_2,
        "mi_free": FREE,
        "mi_free_size": FREE,
        "mi_free_aligned": FREE,
        "mi_free_size_aligned": FREE,
        "mi_cfree": FREE,
    },
    markers=("mi_malloc",),
    unseen={
        **{
            f"mi_{heap}{name}": _MI_INLINED
            for name, heap in product(("strdup", "strndup", "realpath"), ("", "heap_"))
        },
        "mi_reallocarr": _MI_INLINED,
        "mi_heap_destroy": _MI_WHOLE_HEAP,
    },
)
"""mimalloc's own names, which a program may call beside or instead of malloc."""

FAMILIES: Final = (LIBC, TCMALLOC, MIMALLOC)
"""Those with fixed names that stand for themselves."""


MAPPINGS: Final = Family(
    name="mmap",
    functions={
        "mmap": Signature(Kind.MAP, (2,)),
        "mmap64": Signature(Kind.MAP, (2,)),
        "munmap": Signature(Kind.UNMAP, (1, 2)),
        "mremap": Signature(Kind.REMAP, (1, 2, 3, 4)),
        "sbrk": Signature(Kind.SBRK, (1,)),
    },
    markers=("mmap",),
    unseen={"brk": "it does not say where the break was; what sbrk moves is seen"},
)
"""mmap(2) and its kin; traced if the user asks for it."""


def known_signatures() -> set[Signature]:
    """All that functions of these families may have, mappings left out."""
    families = (*FAMILIES, jemalloc("je_"), OPERATORS)
    return {OUTER_FREE} | {s for family in families for s in family.functions.values()}
