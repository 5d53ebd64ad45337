"""Known language runtimes that manage their own heap, which probes on malloc do not see."""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tracelloc.model.codefiles import base_name
from tracelloc.model.process import Runtime
from tracelloc.record.mallocs.discovery import Module

_JVM: Final = Runtime(
    "Java",
    "the JVM keeps Java's objects in a heap of its own",
    "jcmd PID GC.class_histogram lists them; native memory of the JVM is traced",
    "jcmd PID GC.class_histogram",
    "jcmd PID Compiler.perfmap names compiled methods (JDK 17 and newer)",
    "-XX:+PreserveFramePointer",
)
_NODE: Final = Runtime(
    "JavaScript",
    "V8 keeps JavaScript's objects in a heap of its own",
    "a heap snapshot shows them (node --heapsnapshot-signal=SIGUSR2); buffers and native code are "
    "traced",
    "node --heapsnapshot-signal",
    "start node with --perf-basic-prof --interpreted-frames-native-stack",
)
_PHP: Final = Runtime(
    "PHP",
    "PHP's Zend allocator takes memory in chunks of 2 MiB",
    "start PHP with USE_ZEND_ALLOC=0 in its environment: each block then comes from malloc",
    "start it with USE_ZEND_ALLOC=0",
    collects=False,
)
_PYTHON: Final = Runtime(
    "Python",
    "Python keeps objects of up to 512 bytes in arenas of its own",
    "they are counted by type (the view Objects, --show objects, tracelloc objects -p PID); with "
    "PYTHONMALLOC=malloc in its environment, each comes from malloc and has a stack",
    "O or --show objects counts them",
    counts_objects=True,
    collects=False,
)
_PYTHON_WITHOUT_GIL: Final = replace(
    _PYTHON,
    heap="Python without the GIL keeps its objects in heaps of mimalloc's of its own",
    advice="tracelloc holders -p PID shows what keeps their blocks; they can't be counted by type",
    short_advice="tracelloc holders shows their blocks",
    counts_objects=False,
)
_DOTNET: Final = Runtime(
    ".NET",
    ".NET keeps its objects in a heap of its own",
    "dotnet-gcdump collect -p PID shows them; native memory is traced",
    "dotnet-gcdump collect -p PID",
    "start it with DOTNET_PerfMapEnabled=1 in its environment",
)
_RUBY: Final = Runtime(
    "Ruby",
    "Ruby keeps small objects in pages of slots",
    "ObjectSpace.trace_object_allocations shows them; larger strings and arrays are traced",
    "ObjectSpace.trace_object_allocations",
    moves=False,  # unless GC.compact is called
)
_ERLANG: Final = Runtime(
    "Erlang",
    "Erlang's allocators take memory in large carriers",
    "start it with ERL_FLAGS='+Mea min': blocks then come from malloc; "
    "recon_alloc:memory/1 shows the carriers",
    "start it with ERL_FLAGS='+Mea min'",
    "start it with ERL_FLAGS='+JPperf true'",
)
_KNOWN: Final = (
    (r"libjvm\.so", _JVM),
    (r"libart\.so", replace(_JVM, frames_option="")),
    (r"libcoreclr\.so", _DOTNET),
    (r"libruby(?:-?[\d.]+)?\.so[.\d]*|ruby[\d.]*", _RUBY),
    (r"libnode\.so[.\d]*|node|nodejs", _NODE),
    (r"libphp[\d.]*\.so|php(?:-fpm|-cgi)?[\d.]*", _PHP),
    (r"beam(?:\.smp|\.debug\S*)?", _ERLANG),
    (r"libpython[\d.]+t\.so[.\d]*|python[\d.]+t", _PYTHON_WITHOUT_GIL),
    (r"libpython[\d.]+\w*\.so[.\d]*|python[\d.]*\w?|pypy[\d.]*", _PYTHON),
)
_GO: Final = Runtime(
    "Go",
    "the Go runtime manages its memory",
    "Go's own profiler shows it (net/http/pprof); what C code asks for through cgo is traced",
    "use net/http/pprof",
)


# Other programs whose blocks come from malloc and are freed by a collector.
_COLLECTORS: Final = re.compile(
    r"(?:lib)?(?:lua|luajit)[-\d.]*(?:\.so[.\d]*)?|lib(?:guile|gc|ecl)(?:-[-\d.]+)?\.so[.\d]*|"
    r"guile[\d.]*"
)
_MOVING: Final = re.compile(r"lib(?:mono|monosgen|mozjs)(?:-[-\d.]+)?\.so[.\d]*|mono(?:-sgen)?")


def runtimes_of(modules: Iterable[Module], options: Callable[[], str] = str) -> tuple[Runtime, ...]:
    """Returns the runtimes in mapped files; asks for the process's ``options`` if need be."""
    found: dict[Runtime, None] = {}
    for module in modules:
        runtime = _by_name(base_name(module.path))
        if runtime is None and ".so" not in base_name(module.path) and module.elf.is_go:
            runtime = _GO
        if runtime is not None:
            is_set = bool(runtime.frames_option) and runtime.frames_option in options()
            found[replace(runtime, frames_option="") if is_set else runtime] = None
    return tuple(found)


def garbage_collection(paths: Iterable[str]) -> tuple[bool, bool]:
    """Returns (whether a process has a garbage collector, one that moves objects), by files."""
    found = [_collection(base_name(path)) for path in paths]
    return any(collects for collects, _ in found), any(moves for _, moves in found)


@functools.lru_cache(maxsize=1 << 12)
def _collection(name: str) -> tuple[bool, bool]:
    if (runtime := _by_name(name)) is not None:
        return runtime.collects, runtime.collects and runtime.moves
    moves = _MOVING.fullmatch(name) is not None
    return moves or _COLLECTORS.fullmatch(name) is not None, moves


@functools.lru_cache(maxsize=1 << 12)
def _by_name(name: str) -> Runtime | None:
    return next((runtime for names, runtime in _KNOWN if re.fullmatch(names, name)), None)


def runtime_name(name: str) -> str | None:
    """Returns the name of the runtime that a file with this name belongs to, if any."""
    runtime = _by_name(name)
    return None if runtime is None else runtime.name


def is_python_name(name: str) -> bool:
    """Whether a file's name is that of Python."""
    return runtime_name(name) == _PYTHON.name
