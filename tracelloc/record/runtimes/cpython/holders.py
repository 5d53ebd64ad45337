"""Finds the holders of objects: paths to them from modules, classes and running functions.

References are followed from these roots, nearest first, through all memory that was read. Each
word that points to an object counts, except weak references and the collector's own lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Final

import numpy as np
import numpy.typing as npt

from tracelloc.dataclass import dataclass, replace
from tracelloc.errors import TargetError
from tracelloc.model.objects import Holder, Holders
from tracelloc.record.process.memory import U64
from tracelloc.record.process.procfs import Process
from tracelloc.record.process.space import AddressSpace
from tracelloc.record.runtimes.cpython.census import FoundObjects
from tracelloc.record.runtimes.cpython.frames import (
    FrameCodes,
    RunningFrame,
    interpreter_words,
    is_collecting,
    running_frames,
    thread_locals,
)
from tracelloc.record.runtimes.cpython.image import HeapImage
from tracelloc.record.runtimes.cpython.interpreter import (
    CPython,
    UncountedPython,
    UnsupportedRuntime,
    find_cpython,
)
from tracelloc.record.runtimes.cpython.paths import PathNames

SAMPLES: Final = 200  # Objects of a type whose holders are searched for
_ROOT: Final = 0xFFFFFFFF
_TYPE: Final = 1 << 31
_ATTRIBUTE: Final = 2  # Which word of a path from a module is that of the module's attribute
_MOST_HOMES: Final = 32  # Most objects whose modules are searched for
_MOST_CYCLE: Final = 1 << 12
_MOST_TABLES_KEPT: Final = 32  # Most tables of the holders of a type that are kept
_MOST_TABLES: Final = 3  # Most tables between two objects
_CONTEXT: Final = "_contextvars.Context"
CYCLE: Final = "a reference cycle that the garbage collector has not freed yet"
UNCOLLECTED: Final = "a reference cycle, while the garbage collector is off (gc.disable())"
NATIVE: Final = "C code"
METHOD_CACHE: Final = "the interpreter's method cache"
_MOST_CACHE_BYTES: Final = 1 << 20  # It ends within this distance of the interpreter's record


class HolderSearch:
    """Finds the holders of a process's Python objects, among the objects that a census found."""

    def __init__(self, process: Process, space: AddressSpace | None = None) -> None:
        """``space``: the process's address space, if another owner keeps it up to date."""
        self._space = AddressSpace(process) if space is None else space
        self._own_space = self._space if space is None else None

    def python(self) -> CPython | None:
        """Returns the process's interpreter; None if its version is not supported."""
        try:
            return find_cpython(self._refreshed())
        except UnsupportedRuntime:
            return None

    def has_python(self) -> bool:
        """Whether the process has CPython. Raises TargetError for one of an unsupported version."""
        try:
            python = find_cpython(self._refreshed())
            if python is not None and not python.known.has_objects:
                raise UncountedPython(python.title)
            return python is not None
        except UncountedPython as error:
            raise TargetError(
                f"{error}: its objects can't be counted",
                hint="they can from Python 3.11 on, in builds with the GIL",
            ) from error
        except UnsupportedRuntime:
            return True

    def _refreshed(self) -> AddressSpace:
        if self._own_space is not None:
            self._own_space.refresh()
        return self._space

    def find(
        self,
        found: FoundObjects,
        wanted: Sequence[str],
        before: ObjectAddresses | None = None,
        keepers: Set[str] = frozenset(),
    ) -> dict[str, Holders]:
        """Finds the holders of objects of some types; returns them by type name.

        ``before``: older objects, which are left out as long as there are others. ``keepers``:
        further types that are wanted if their objects keep wanted ones. Empty if the
        interpreter's version is not supported. Raises TargetError, PrivilegeError.
        """
        python = self.python()
        if python is None:
            return {}
        graph = _Graph(found, running_frames(python, FrameCodes(python)), python, wanted)
        holders: dict[str, Holders] = {}
        waiting = list(wanted)
        for name in waiting:
            holders[name] = graph.holders(name, before)
            keeper = holders[name].main_keeper(keepers - set(waiting))
            if keeper is not None:
                waiting.append(keeper)
        return holders

    def close(self) -> None:
        if self._own_space is not None:
            self._own_space.close()


class ObjectAddresses:
    """Addresses of a census's objects by type, to distinguish new objects later."""

    def __init__(self, found: FoundObjects) -> None:
        self._types = np.concatenate([found.objects.type, found.large.type])
        self._names = found.names
        in_pool = found.blocks.addresses_of(found.objects.at)
        self._addresses: U64 = np.concatenate([in_pool, found.large.addresses])

    def addresses_of_type(self, name: str) -> U64:
        """Returns addresses of objects of a type: those in pools, then others, both ascending."""
        numbers = range(int(self._types.max(initial=-1)) + 1)
        of = [number for number in numbers if self._names.name_of(number) == name]
        return self._addresses[np.isin(self._types, of)]


@dataclass(frozen=True, slots=True)
class ThreadRoot:
    """A thread as the root of its own objects."""

    title: str  # The thread in words
    is_namespace: bool  # Whether the entries of the root's dictionary are names


Root = str | ThreadRoot | RunningFrame


class _Graph:
    """The graph of all blocks that can be reached from roots, in a memory image."""

    def __init__(
        self,
        found: FoundObjects,
        frames: list[RunningFrame],
        python: CPython,
        wanted: Sequence[str],
    ) -> None:
        self._found = found
        self._image = HeapImage(found, frames, python.version)
        self._names = PathNames(self._image, python)
        self._python = python
        self._is_collected = is_collecting(python)
        self._method_cache = _MethodCache(python)
        self._parents = np.zeros(len(self._image.words) // 2 + 1, np.uint32)
        self._queue = np.empty(len(found.blocks.at) + len(self._image.piece_at) + 1, np.uint32)
        self._roots: dict[int, Root] = {}
        self._files: dict[str, str] = {}
        self._namespaces: dict[int, str] = {}  # Modules' names, by where their dictionaries begin
        self._homes: dict[int, tuple[str, list[int]]] = {}  # By object: where paths begin
        self._defining = [name.rpartition(".")[0] for name in wanted]
        self._end = 0
        self._addresses = ObjectAddresses(found)
        self._counts: npt.NDArray[np.uint32] | None = None
        self._last = self._parents
        self._follow(self._modules())
        self._follow(self._threads())
        target = self._image.references.target
        starts = ((target(frame.locals_address), frame) for frame in frames)
        self._follow({start: frame for start, frame in starts if start >= 0})

    def _follow(self, roots: Mapping[int, Root]) -> None:
        begin = self._end
        for start, root in roots.items():
            if not self._parents[start >> 1] or isinstance(root, str):
                self._roots[start] = root
                self._parents[start >> 1] = _ROOT
                self._queue[self._end] = start >> 1
                self._end += 1
        self._end = self._image.references.trace(self._parents, self._queue, begin, self._end)

    def _modules(self) -> dict[int, str]:
        found, names = self._found, self._names
        roots: dict[int, str] = {}
        numbers = [n for n in range(len(found.types.known)) if found.names.name_of(n) == "module"]
        for row in np.flatnonzero(np.isin(found.objects.type, numbers)).tolist():
            start = int(found.blocks.at[found.objects.block[row]])
            dictionary = int(self._image.words[int(found.objects.at[row]) + 2])
            attributes = dict(names.texts(dictionary, ("__name__", "__file__")))
            name = attributes.get("__name__") or "?"
            roots[start] = name
            self._namespaces[self._image.references.target(dictionary)] = name
            if "__file__" in attributes:
                self._files[name] = attributes["__file__"]
        classes = found.types.with_flag(_TYPE)
        for piece in np.flatnonzero(self._image.piece_type >= 0).tolist():
            if classes[self._image.piece_type[piece]]:
                start = int(self._image.piece_at[piece])
                begin = self._image.object_in(start)
                number = begin and found.types.number_of_type(self._image.address(begin[0]))
                if number is not None:
                    roots[start] = found.names.name_of(number)
        return roots

    def _threads(self) -> dict[int, ThreadRoot]:
        image, process = self._image, self._found.memory.process
        roots: dict[int, ThreadRoot] = {}
        for thread in thread_locals(self._python):
            name = process.thread_name(thread.thread_id)
            title = f"thread {thread.thread_id}{f' ({name})' if name else ''}"
            for address in (thread.dictionary, *thread.others):
                start = image.references.target(address)
                found = image.object_in(start) if start >= 0 else None
                kind = "" if found is None else self._found.names.name_of(found[1])
                if kind == "dict" and address == thread.dictionary:
                    roots[start] = ThreadRoot(title, is_namespace=True)
                elif kind == _CONTEXT:
                    roots[start] = ThreadRoot(f"{title} context", is_namespace=False)
        return roots

    def holders(self, name: str, before: ObjectAddresses | None) -> Holders:
        fresh = addresses = self._addresses.addresses_of_type(name)
        if before is not None:
            fresh = addresses[~np.isin(addresses, before.addresses_of_type(name))]
        if not len(fresh):
            fresh = addresses
        samples = fresh[:: max(1, len(fresh) // SAMPLES)][:SAMPLES]
        sums: Counter[Holder] = Counter()
        tables: set[int] = set()
        for address in samples.tolist():
            start = self._image.references.target(address)
            if start >= 0:
                sums[self._holder(start)] += 1
                tables |= self._table(start)
        ranked = sorted(sums.most_common(), key=lambda each: each[0].is_garbage)
        holders = tuple(replace(holder, count=count) for holder, count in ranked)
        some = tuple(sorted(tables)[:_MOST_TABLES_KEPT])
        return Holders(sum(sums.values()), holders, self._image.skipped_count, some)

    def _table(self, start: int) -> set[int]:
        """Returns the address of a table outside pools that refers to a block, as a set of one."""
        word = int(self._parents[start >> 1])
        table = self._image.references.begin(word) if word not in (0, _ROOT) else 0
        if table < self._image.pool_words or self._image.object_in(table) is not None:
            return set()
        return {self._image.address(table)}

    def _holder(self, start: int) -> Holder:
        words: list[int] = []
        at = start
        while (word := int(self._parents[at >> 1])) != _ROOT:
            if not word:
                return self._unreached(start)
            words.append(word)
            at = self._image.references.begin(word)
        words.reverse()
        root = self._roots[at]
        line = None
        file = None
        if isinstance(root, str):
            root, words = self._home(root, words)
            path = self._names.path(root, words)
            file = self._files.get(root)
        elif isinstance(root, ThreadRoot):
            path = self._names.path(root.title, words, of_thread=root.is_namespace)
        else:
            local = self._names.local(root, self._image.address(words[0])) if words else "?"
            function = root.code.function
            path = self._names.path(f"{function.function}() {local}", words[1:])
            file, line = function.file, function.first_line
        kind = self._keeper(words)
        return Holder(path.text, kind, 0, path.unresolved, file, line, path.is_bounded)

    def _home(self, module: str, words: list[int]) -> tuple[str, list[int]]:
        """Returns module and words of a path, so that it begins at the best of equal modules.

        The best of the modules that have the path's first object is the one that defines it, or
        else one that defines a type whose holders are wanted.
        """
        at = int(self._image.words[words[_ATTRIBUTE]]) if len(words) > _ATTRIBUTE else 0
        if not at or self._image.references.begin(words[1]) not in self._namespaces:
            return module, words
        begin = self._homes.get(at)
        if begin is None and len(self._homes) < _MOST_HOMES:
            places: list[int] = np.flatnonzero(self._image.words == np.uint64(at)).tolist()
            found = dict(filter(None, map(self._attribute, places)))
            defining = (self._names.module_of(at), *self._defining)
            home = next((each for each in defining if each in found), module)
            begin = self._homes[at] = home, found.get(home, words[: _ATTRIBUTE + 1])
        if begin is None:
            return module, words
        return begin[0], [*begin[1], *words[_ATTRIBUTE + 1 :]]

    def _attribute(self, word: int) -> tuple[str, list[int]] | None:
        """Returns the module one of whose attributes a word is, and the words that lead there."""
        words = [word]
        for _ in range(_ATTRIBUTE):
            before = int(self._parents[self._image.references.begin(words[0]) >> 1])
            if not before or before == _ROOT:
                return None
            words.insert(0, before)
        name = self._namespaces.get(self._image.references.begin(words[1]))
        return None if name is None else (name, words)

    def _keeper(self, words: list[int]) -> str:
        for word in reversed(words):
            found = self._image.object_in(self._image.references.begin(word))
            if found is not None:
                return self._found.names.name_of(found[1])
        return ""

    def _unreached(self, start: int) -> Holder:
        """Returns the holder of an object to which no path leads: a cycle, or C code."""
        counts, last = self._referrers()
        seen, waiting = {start}, [start]
        missing = 0
        while waiting and len(seen) < _MOST_CYCLE:
            at = waiting.pop()
            found = self._image.object_in(at)
            held = int(self._image.words[found[0]]) & 0xFFFFFFFF if found is not None else 0
            if held > int(counts[at >> 1]):
                missing = at
                break
            word = int(last[at >> 1])
            before = self._image.references.begin(word) if word else 0
            if before and before not in seen:
                seen.add(before)
                waiting.append(before)
        if not missing:
            path = UNCOLLECTED if self._is_collected is False else CYCLE
            return Holder(path, self._referrer(start), 0, 0, is_garbage=self._is_collected is True)
        found = self._image.object_in(missing)
        if missing == start and found and self._method_cache.has(self._image.address(found[0])):
            return Holder(METHOD_CACHE, "", 0, 0, is_bounded=True)
        through = self._found.names.name_of(found[1]) if found and missing != start else ""
        return Holder(NATIVE + (f", through {through}" if through else ""), through, 0, 0)

    def _referrer(self, start: int) -> str:
        """Returns the type of an object that refers to an unreached one; empty if unknown."""
        _, last = self._referrers()
        for _ in range(_MOST_TABLES):
            word = int(last[start >> 1])
            start = self._image.references.begin(word) if word else 0
            found = self._image.object_in(start) if start else None
            if found is not None:
                return self._found.names.name_of(found[1])
        return ""

    def _referrers(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Returns, for each unreached block, the number of references, and the last one's word."""
        if self._counts is None:
            self._counts = np.zeros(len(self._parents), np.uint32)
            self._last = np.zeros(len(self._parents), np.uint32)
            starts = np.concatenate([self._found.blocks.at, self._image.piece_at])
            self._image.references.referrers(starts, self._parents, self._counts, self._last)
        return self._counts, self._last


class _MethodCache:
    """Strings that only the interpreter's cache of methods keeps, as it was when read.

    The cache has 4,096 entries: the version of a type, the name of an attribute that was looked up,
    and what was found (``struct type_cache_entry``, pycore_typeobject.h; in
    ``PyInterpreterState``). A name that is computed, as by ``getattr(visitor, f"visit_{kind}")``,
    is another string each time and fills another entry, so such names grow in number until all
    entries are in use.
    """

    def __init__(self, python: CPython) -> None:
        words = interpreter_words(python, _MOST_CACHE_BYTES)
        is_name = np.zeros(len(words), np.bool_)  # Before a name: the version, 32 bits, and zeros
        is_name[1:] = (words[:-1] >> np.uint64(32) == 0) & (words[:-1] != 0)
        self._names = np.unique(words[is_name])

    def has(self, address: int) -> bool:
        at = int(np.searchsorted(self._names, np.uint64(address)))
        return at < len(self._names) and int(self._names[at]) == address
