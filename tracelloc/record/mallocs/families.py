"""The known allocator interfaces: function names and their signatures. Data only.

A signature is a kind and the positions of the relevant arguments. The probes get both
in each probe's cookie (``probes/event.h``).

Sources: malloc(3), posix_memalign(3); C23, 7.24.3; jemalloc(3); gperftools' tcmalloc.h;
mimalloc.h of mimalloc 2; for mangled operators the Itanium C++ ABI, 5.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from itertools import product
from typing import Final

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass, field, replace
from tracelloc.heap.usable import LIBC_FAMILY
from tracelloc.model.process import Space
from tracelloc.record import abi

# Upper limit (exclusive) of a fixed size of all blocks of a function.
SIZES: Final = 1 << 64 - abi.COOKIE_SIZE_SHIFT
ALLOCATOR_PROGRAM: Final = "allocator_call"
MAPPING_PROGRAM: Final = "mapping_call"
# BPF programs on functions; the first two also run at their returns.
FREE_PROGRAM: Final = "free_call"


class FunctionKind(Enum):
    """The effect of a function: its code in probes' cookies, and the roles of its arguments."""

    ALLOC = abi.FunctionCode.ALLOC, "size"
    CALLOC = abi.FunctionCode.CALLOC, "count, size"
    POSIX_MEMALIGN = abi.FunctionCode.POSIX_MEMALIGN, "out, size"  # Returns an errno
    REALLOC = abi.FunctionCode.REALLOC, "block, size"  # If it fails, the old block stays live
    REALLOCF = abi.FunctionCode.REALLOCF, "block, size"  # If it fails, the old block is freed
    REALLOCARRAY = abi.FunctionCode.REALLOCARRAY, "block, count, size"
    # In place, and done if the result is at least `size`.
    RESIZE = abi.FunctionCode.RESIZE, "block, size"
    FREE = abi.FunctionCode.FREE, "block"  # Calls no other function that frees
    OUTER_FREE = abi.FunctionCode.OUTER_FREE, "block"  # May call another function that frees
    MAP = abi.FunctionCode.MAP, "size"  # Like mmap
    UNMAP = abi.FunctionCode.UNMAP, "start, size"
    REMAP = abi.FunctionCode.REMAP, "start, old size, size, flags"
    SBRK = abi.FunctionCode.SBRK, "increment"  # Returns the old end

    def __init__(self, code: abi.FunctionCode, roles: str) -> None:
        self.code = code
        self.roles = tuple(roles.split(", "))  # In the order of a signature's positions
        self.frees = self.name in ("FREE", "OUTER_FREE")
        self.returns = not self.frees  # Whether the result is read; frees are reported at entry
        # The BPF program for the function's entry and return
        self.program = FREE_PROGRAM if self.frees else ALLOCATOR_PROGRAM
        if self.name in ("MAP", "UNMAP", "REMAP", "SBRK"):
            self.program = MAPPING_PROGRAM


@dataclass(frozen=True, slots=True)
class Signature:
    """How to read the calls of an allocator function: its kind, and which argument is what."""

    kind: FunctionKind
    # Positions of the arguments that `FunctionKind.roles` names, counted from 1, up to 6. A
    # position of 0 for the size means `size_bytes`.
    positions: tuple[int, ...]
    # Whether a C++ exception may leave the function. It then gets no return probe: an exception
    # can't unwind past a return probe and would end the program (`std::terminate`).
    throws: bool = False
    size_bytes: int = 0  # Size of all blocks of the function, below `SIZES`

    @property
    def throwing(self) -> Signature:
        return replace(self, throws=True)

    @property
    def behind_one(self) -> Signature:
        """The signature of a function with one more argument before the others."""
        return replace(self, positions=tuple(position + 1 for position in self.positions))

    @property
    def registers(self) -> tuple[str, ...]:
        """The registers of this machine that the program reads at the entry."""
        registers = native().argument_registers
        return tuple(registers[position - 1] for position in self.positions if position)

    @property
    def cookie(self) -> int:
        """The probes' cookie for the function (``COOKIE_`` in ``probes/event.h``)."""
        cookie = self.kind.code | (abi.COOKIE_THROWS if self.throws else 0)
        for role, position in enumerate(self.positions):
            cookie |= position << abi.COOKIE_ARGUMENT_SHIFT + role * abi.COOKIE_ARGUMENT_BITS
        return cookie | self.size_bytes << abi.COOKIE_SIZE_SHIFT


ALLOC: Final = Signature(FunctionKind.ALLOC, (1,))
ALLOC_2: Final = ALLOC.behind_one
CALLOC: Final = Signature(FunctionKind.CALLOC, (1, 2))
POSIX_MEMALIGN: Final = Signature(FunctionKind.POSIX_MEMALIGN, (1, 3))
REALLOC: Final = Signature(FunctionKind.REALLOC, (1, 2))
REALLOCF: Final = Signature(FunctionKind.REALLOCF, (1, 2))
REALLOCARRAY: Final = Signature(FunctionKind.REALLOCARRAY, (1, 2, 3))
RESIZE: Final = Signature(FunctionKind.RESIZE, (1, 2))
FREE: Final = Signature(FunctionKind.FREE, (1,))


@dataclass(frozen=True, slots=True)
class Family:
    """The functions of one allocator interface, by name, and what identifies it."""

    name: str
    functions: Mapping[str, Signature]
    # A file that defines none of these functions does not implement the family.
    markers: tuple[str, ...]
    # Functions that tracelloc can't trace, and the consequence of each.
    unseen: Mapping[str, str] = field(default_factory=dict)
    by_user: bool = False  # Whether the user has defined the family
    space: Space = Space.HOST  # Where the blocks are


def _named(names: Mapping[Signature, str]) -> dict[str, Signature]:
    return {name: signature for signature, many in names.items() for name in many.split()}


# malloc and related functions. Names with leading underscores are glibc's or musl's.
LIBC: Final = Family(
    name=LIBC_FAMILY,
    functions=_named(
        {
            ALLOC: "malloc valloc pvalloc __libc_malloc __libc_valloc __libc_pvalloc "
            "__libc_malloc_impl",
            CALLOC: "calloc __libc_calloc",
            REALLOC: "realloc __libc_realloc",
            REALLOCF: "reallocf",
            REALLOCARRAY: "reallocarray __libc_reallocarray",
            FREE: "free cfree free_sized free_aligned_sized __libc_free __libc_cfree",
            ALLOC_2: "memalign aligned_alloc __libc_memalign",
            POSIX_MEMALIGN: "posix_memalign __posix_memalign",
        }
    ),
    # A static program may never free, but it still allocates.
    markers=("malloc",),
)

_JEMALLOC_OWN: Final = _named(
    {ALLOC: "mallocx", REALLOC: "rallocx", RESIZE: "xallocx", FREE: "dallocx sdallocx"}
)
# Endings of jemalloc's function names, with any prefix.
JEMALLOC_MARKERS: Final = ("mallocx", "sdallocx")


def jemalloc(prefix: str) -> Family:
    """Returns jemalloc's family; ``prefix``: as ``--with-jemalloc-prefix`` (Rust: ``_rjem_``)."""
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
    functions = {}
    for letter, align in product("wa", ("", _ALIGN)):
        functions[f"_Zn{letter}m{align}"] = ALLOC.throwing
        # An exception inside a nothrow operator is caught there.
        functions[f"_Zn{letter}m{align}{_NOTHROW}"] = ALLOC
    for letter, size, align in product("la", ("", "m"), ("", _ALIGN)):
        functions[f"_Zd{letter}Pv{size}{align}"] = FREE
        functions[f"_Zd{letter}Pv{align}{_NOTHROW}"] = FREE
    return functions


# C++'s own operators. The last six are tcmalloc's.
OPERATORS: Final = Family(
    name="operator new",
    functions=_operators()
    | _named(
        {
            ALLOC.throwing: "_Znwm12__hot_cold_t _Znam12__hot_cold_t __size_returning_new "
            "__size_returning_new_hot_cold __size_returning_new_aligned "
            "__size_returning_new_aligned_hot_cold"
        }
    ),
    markers=("_Znwm",),
)

_TCMALLOC_NEW: Final = "tc_new tc_new_aligned tc_newarray tc_newarray_aligned"
_TCMALLOC_DELETE: Final = "", "_sized", "_aligned", "_sized_aligned", "_nothrow", "_aligned_nothrow"

# gperftools' own names; those at the address of malloc or an operator are the same function.
TCMALLOC: Final = Family(
    name="tcmalloc",
    functions=_named(
        {
            ALLOC: "tc_malloc tc_malloc_skip_new_handler tc_valloc tc_pvalloc "
            + " ".join(f"{name}_nothrow" for name in _TCMALLOC_NEW.split()),
            CALLOC: "tc_calloc",
            REALLOC: "tc_realloc",
            ALLOC_2: "tc_memalign",
            POSIX_MEMALIGN: "tc_posix_memalign",
            ALLOC.throwing: _TCMALLOC_NEW,
            FREE: "tc_free tc_free_sized tc_cfree "
            + " ".join(
                map("tc_delete{0[0]}{0[1]}".format, product(("", "array"), _TCMALLOC_DELETE))
            ),
        }
    ),
    markers=("tc_malloc",),
)

# Names for `mi_NAME`, and for `mi_heap_NAME`, whose first argument is a heap.
_MI_SIZED: Final = _named(
    {
        ALLOC: "malloc zalloc malloc_small zalloc_small",
        CALLOC: "calloc mallocn",
        REALLOC: "realloc rezalloc",
        REALLOCF: "reallocf",
        REALLOCARRAY: "reallocn recalloc",
    }
)
_MI_ALIGNED: Final = ("malloc", "zalloc", "calloc", "realloc", "rezalloc", "recalloc")
_MI_INLINED: Final = "it allocates without calling another function: not counted"
_MI_WHOLE_HEAP: Final = "it frees all blocks of a heap at once: they stay counted"


def _mimalloc() -> dict[str, Signature]:
    functions = {}
    for name, signature in _MI_SIZED.items():
        endings = ("", "_aligned", "_aligned_at") if name in _MI_ALIGNED else ("",)
        for ending in endings:
            functions[f"mi_{name}{ending}"] = signature
            functions[f"mi_heap_{name}{ending}"] = signature.behind_one
    return functions


# mimalloc's own names, which a program may call in addition to or instead of malloc.
MIMALLOC: Final = Family(
    name="mimalloc",
    functions=_mimalloc()
    | _named(
        {
            REALLOC: "mi_expand mi__expand",
            REALLOCARRAY: "mi_reallocarray mi_aligned_recalloc mi_aligned_offset_recalloc",
            ALLOC_2: "mi_memalign mi_aligned_alloc",
            POSIX_MEMALIGN: "mi_posix_memalign",
            ALLOC: "mi_valloc mi_pvalloc",
            # mimalloc's C code does not catch an exception of the program's new_handler.
            ALLOC.throwing: "mi_new mi_new_aligned mi_new_nothrow mi_new_aligned_nothrow",
            CALLOC.throwing: "mi_new_n",
            REALLOC.throwing: "mi_new_realloc",
            REALLOCARRAY.throwing: "mi_new_reallocn",
            ALLOC_2.throwing: "mi_heap_alloc_new",
            CALLOC.behind_one.throwing: "mi_heap_alloc_new_n",
            FREE: "mi_free mi_free_size mi_free_aligned mi_free_size_aligned mi_cfree",
        }
    ),
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

FAMILIES: Final = (LIBC, TCMALLOC, MIMALLOC)


# mmap(2) and related calls; traced on request.
MAPPINGS: Final = Family(
    name="mmap",
    functions={
        "mmap": Signature(FunctionKind.MAP, (2,)),
        "mmap64": Signature(FunctionKind.MAP, (2,)),
        "munmap": Signature(FunctionKind.UNMAP, (1, 2)),
        "mremap": Signature(FunctionKind.REMAP, (1, 2, 3, 4)),
        "sbrk": Signature(FunctionKind.SBRK, (1,)),
    },
    markers=("mmap",),
    unseen={"brk": "it does not say where the break was; what sbrk moves is seen"},
)


@dataclass(frozen=True, slots=True)
class Provider(Family):
    """The probes with which a library reports allocations it has made and frees it will make."""

    functions: Mapping[str, Signature] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    alloc: str = "alloc"  # Name of the probe
    free: str = "free"
    # The number of each argument of `alloc`, counted from 1, by its role (`ROLES`).
    arguments: Mapping[str, int] = field(default_factory=dict)
    freed: int = 1  # The number of the argument of `free` that is the pointer
    note: str = ""  # What is not reported

    def arguments_of(self, probe: str) -> Mapping[str, int]:
        """Returns the numbers of a probe's arguments by role."""
        return self.arguments if probe == self.alloc else {"pointer": self.freed}


# ``otel_memory`` samples, with weights: design document 00003 of
# https://github.com/open-telemetry/opentelemetry-ebpf-profiler. ``pytorch`` reports the memory of
# tensors on GPUs (c10/cuda/CUDACachingAllocator.cpp).
PROVIDERS: Final = (
    Provider("otel_memory", arguments={"pointer": 1, "size": 2, "weight": 3}),
    Provider(
        "pytorch",
        alloc="malloc",
        arguments={"pointer": 1, "device": 2, "size": 3},
        space=Space.GPU,
        note="what PyTorch's allocator caches is not visible: only what tensors have",
    ),
)
