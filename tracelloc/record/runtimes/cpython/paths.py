"""Reference paths in Python syntax: ``app.handlers.CACHE[…].rows``.

A path is a list of words of the image, starting at a root: each word lies in a block or piece and
points into the next one. Layouts: Include/cpython and Objects/ of CPython 3.11 to 3.15.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from tracelloc.architecture import native
from tracelloc.dataclass import dataclass
from tracelloc.model.objects import UNKNOWN
from tracelloc.record.runtimes.cpython.frames import FrameCode, FrameCodes, RunningFrame
from tracelloc.record.runtimes.cpython.image import HeapImage
from tracelloc.record.runtimes.cpython.interpreter import CPython
from tracelloc.record.runtimes.cpython.types import DICT, LIST

_TUPLE: Final = 1 << 26
_EXCEPTION: Final = 1 << 30
_TYPE: Final = 1 << 31
# Py_TPFLAGS_…: TUPLE_SUBCLASS, BASE_EXC_SUBCLASS, TYPE_SUBCLASS, and INLINE_VALUES (3.13 and
# newer).
_INLINE_VALUES: Final = 1 << 2
_TYPE_DICT, _MODULE_DICT, _DICT_KEYS, _DICT_VALUES = 33, 2, 4, 5  # Words in each
_DICT_OFFSET_AT: Final = 288
# The word of a list that points to its items, and of a tuple's first item. From 3.14 on, a tuple's
# first item is one word later, after its hash.
_FIRST_ITEM: Final = 3
_HASHED_TUPLES: Final = (3, 14)
_HEADED_VALUES: Final = (3, 13)  # From then on, values in `PyDictValues` follow a word
_FUNCTION_WORDS: Final = {2: ".__globals__", 7: ".__defaults__", 8: ".__kwdefaults__",
                          9: ".__closure__", 11: ".__dict__"}  # fmt: skip
_FUNCTION_NAMESPACES: Final = (2, 11)
_FUNCTION_MODULE: Final = 104  # Offset of a function's `__module__`
_MOST_OFFSET: Final = 1 << 12
_CACHE_LIMIT: Final = 12  # `maxsize` in `lru_cache_object` (Modules/_functoolsmodule.c)
_DEQUE_LIMIT: Final = 8  # The word of `dequeobject` with `maxlen` (Modules/_collectionsmodule.c)
# Most items of a container that counts as bounded: a larger one may fill for hours.
_MOST_BOUNDED: Final = 1 << 17
_ASYNC: Final = ("_asyncio.Task", "_asyncio.Future")
# Names of what a task refers to, by type: the offsets differ between versions.
_IN_TASKS: Final = {
    "coroutine": "", "generator": "", "list": ".callbacks",
    "_contextvars.Context": ".get_context()",
    "_asyncio.Future": "._fut_waiter", "_asyncio.Task": "._fut_waiter",
}  # fmt: skip
_FUTURE_WORDS: Final = {6: ".exception()", 8: ".result()"}  # `FutureObj_HEAD` (_asynciomodule.c)
# Words of exceptions (`PyException_HEAD`, Include/cpython/pyerrors.h).
_EXCEPTION_WORDS: Final = {3: ".args", 4: ".__notes__", 5: ".__traceback__", 6: ".__context__",
                           7: ".__cause__"}  # fmt: skip
_CONTEXT_VARIABLE: Final = "contextvars.ContextVar"
_VARIABLE_NAME: Final = 16
_ITEM: Final = "[…]"
_ELEMENT_OF_SET: Final = "{…}"
KEYS: Final = ".keys()"
ITEMS: Final = (_ITEM, _ELEMENT_OF_SET, KEYS)  # Suffixes of paths to items of containers
_ELEMENT: Final = "functools._lru_list_elem"
_STATE: Final = " (C)"
_FRAME_WORDS: Final = 6  # Words of a frame object before the frame in it, at least (pycore_frame.h)
_IN_FRAME: Final = " → "
_TEMPORARY: Final = "(temporary)"
# Meaning of words in types written in C: `PyModuleObject` (its state), `lru_list_elem`,
# `PyContextVar` and `PyContext` (pycore_context.h), and others that have no member of this name, or
# whose dictionary is elsewhere from 3.12 on. Steps along a traceback, or from a frame to its
# caller, have no text: the function that keeps the object has.
_FIELDS: Final = {
    ("module", 4): _STATE,
    (_ELEMENT, 2): "", (_ELEMENT, 3): "", (_ELEMENT, 5): KEYS, (_ELEMENT, 6): "",
    ("_contextvars.ContextVar", 3): ".default", ("_contextvars.ContextVar", 4): ".get()",
    ("_contextvars.Context", 2): "", ("_contextvars.Context", 3): "",
    ("traceback", 2): "", ("traceback", 3): ".tb_frame", ("frame", 2): "",
    ("builtin_function_or_method", 3): ".__self__", ("method-wrapper", 3): ".__self__",
    ("method", 2): ".__func__", ("mappingproxy", 2): "",
    ("list_iterator", 3): "", ("coroutine_wrapper", 2): "",
    ("property", 2): ".fget", ("property", 3): ".fset", ("property", 4): ".fdel",
    ("weakref.ReferenceType", 3): ".__callback__", ("weakref.KeyedRef", 3): ".__callback__",
}  # fmt: skip
_SPLIT: Final = 2
_MOST_KEYS: Final = 1 << 16
_SHORT: Final = 40  # Most characters of a key that is shown


@dataclass(slots=True)
class _Walk:
    text: str
    namespace: bool = False  # Whether the next object is a dictionary of names
    owner: tuple[int, int] | None = None  # Of the current table: its beginning, its type's number
    base: int = 0  # The address that led to the current table
    is_inner: bool = False  # Whether the next object belongs to the one just named
    unresolved: int = 0
    is_bounded: bool = False
    skips_item: bool = False  # Whether the next item of a dictionary is a thread's namespace


class NamedPath(NamedTuple):
    """A reference path as text, in Python syntax."""

    text: str
    unresolved: int  # Steps that could not be named
    is_bounded: bool  # Whether the path leads through a cache of bounded size


class PathNames:
    """Names the steps of reference paths, in Python syntax."""

    def __init__(self, image: HeapImage, python: CPython) -> None:
        self._image = image
        self._types = image.found.types
        self._names = image.found.names
        self._python, self._word = python, python.word
        self._codes = FrameCodes(python)
        self._first_item = _FIRST_ITEM + (python.version >= _HASHED_TUPLES)
        self._first_value = int(python.version >= _HEADED_VALUES)

    def path(self, root: str, words: Sequence[int], *, of_thread: bool = False) -> NamedPath:
        """Formats a reference path from a block ``root``; ``of_thread``: it belongs to a thread."""
        walk = _Walk(root, skips_item=of_thread)
        for word in words:
            start = self._image.references.begin(word)
            found = self._image.object_in(start)
            if found is None:
                self._name_in_table(walk, word, start)
            else:
                self._name_in_object(walk, word, *found)
        return NamedPath(walk.text, walk.unresolved, walk.is_bounded)

    def module_of(self, address: int) -> str:
        """Returns ``__module__`` of an object: a function's or wrapper's own, or the type's."""
        number = self._types.number_at(address)
        if number is None:
            return ""
        name = self._names.name_of(number)
        if name == "function":
            return self._python.codes.text(self._word(address + _FUNCTION_MODULE)) or ""
        offset = self._type_word(number, _DICT_OFFSET_AT)
        if 0 < offset < _MOST_OFFSET:
            for _, module in self.texts(self._word(address + offset), ("__module__",)):
                return module
        return name.rpartition(".")[0]

    def texts(self, dictionary: int, wanted: Sequence[str]) -> list[tuple[str, str]]:
        """Returns (key, value's text) of a dictionary's entries with keys in ``wanted``."""
        found = []
        for key, value in self._names.entries(dictionary):
            text = self._python.codes.text(key)
            if text in wanted:
                found.append((str(text), self._python.codes.text(value) or ""))
                if len(found) == len(wanted):
                    break
        return found

    def local(self, frame: RunningFrame, word_address: int) -> str:
        """Returns the name of a function's variable, given its address; or ``(temporary)``."""
        return self._local_text(frame.code, (word_address - frame.locals_address) // 8)

    def _local_text(self, code: FrameCode, number: int) -> str:
        if number >= code.variables:
            return _TEMPORARY
        item = self._word(code.names_address + 8 * (self._first_item + number))
        return (self._python.codes.text(item) if item else None) or "?"

    def _name_in_object(self, walk: _Walk, word: int, begin: int, number: int) -> None:
        known, at = self._types.known[number], word - begin
        name = self._names.name_of(number)
        was_namespace, walk.namespace = walk.namespace, False
        walk.owner, walk.base = (begin, number), int(self._image.words[word])
        walk.is_inner = False
        if (name == "module" and at == _MODULE_DICT) or (known.flags & _TYPE and at == _TYPE_DICT):
            walk.namespace = True
        elif known.flags & DICT and at in (_DICT_KEYS, _DICT_VALUES):
            walk.namespace = was_namespace
            walk.is_inner = True
        elif known.flags & LIST and at == _FIRST_ITEM:
            walk.is_inner = True
        elif known.flags & _TUPLE and at >= _FIRST_ITEM:
            walk.text += _ITEM
        elif name in ("set", "frozenset"):
            walk.is_inner = at == 5
            walk.text += "" if walk.is_inner else _ELEMENT_OF_SET
        elif name == "collections.deque" and at in (3, 4):
            walk.is_inner = True
            walk.is_bounded |= self._has_limit(begin + _DEQUE_LIMIT)
        elif name == "cell" and at == 2:
            pass
        elif name == "function" and at in _FUNCTION_WORDS:
            walk.text += _FUNCTION_WORDS[at]
            walk.namespace = at in _FUNCTION_NAMESPACES
        elif name == "method" and at == 3:
            walk.text += ".__self__"
        elif (said := self._name_in_builtin(walk, number, word, begin)) is not None:
            walk.text += said
        else:
            self._name_in_instance(walk, word, begin, number)

    def _name_in_builtin(self, walk: _Walk, number: int, word: int, begin: int) -> str | None:
        name = self._names.name_of(number)
        said: str | None = ""
        if name in ("generator", "coroutine", "async_generator"):
            said = self._frame_local(walk, word, begin, ".")
        elif name == "frame" and word - begin >= _FRAME_WORDS:
            said = self._frame_local(walk, word, begin, _IN_FRAME)
        elif self._types.known[number].flags & _EXCEPTION:
            said = _EXCEPTION_WORDS.get(word - begin)
        elif name == "functools._lru_cache_wrapper":
            walk.is_bounded |= self._has_limit(begin + _CACHE_LIMIT)
            said = ".cache"
        elif name == "_thread._local":
            walk.skips_item = True  # A dictionary of its attributes for each thread
        elif name == "_thread._localdummy":
            walk.namespace = True
        elif name in _ASYNC:
            said = _FUTURE_WORDS.get(word - begin)
            said = said or self._name_in_task(int(self._image.words[word]))
        elif name == "hamt_bitmap_node" and word - begin > _FIRST_ITEM:
            said = self._variable(int(self._image.words[word - 1]))
        elif not name.startswith("hamt"):
            said = _FIELDS.get((name, word - begin))
        return said

    def _has_limit(self, word: int) -> bool:
        """Whether a word holds a greatest number of items that is not vast; -1 means no limit."""
        return int(self._image.words[word]) <= _MOST_BOUNDED

    def _name_in_task(self, address: int) -> str | None:
        number = self._types.number_at(address)
        return None if number is None else _IN_TASKS.get(self._names.name_of(number))

    def _variable(self, address: int) -> str:
        """Returns ``['name']`` of the context variable at an address; empty if there is none."""
        number = self._types.number_at(address)
        if number is None or not self._names.name_of(number).endswith(_CONTEXT_VARIABLE):
            return ""
        name = self._python.codes.text(self._word(address + _VARIABLE_NAME))
        return _ITEM if name is None else f"[{name!r}]"

    def _name_in_instance(self, walk: _Walk, word: int, begin: int, number: int) -> None:
        known, at = self._types.known[number], word - begin
        inner = self._image.object_in(self._image.references.target(walk.base))
        leads_to_dict = inner is not None and self._names.name_of(inner[1]) == "dict"
        if at < 0:  # a dictionary, or values, before the object
            walk.namespace, walk.is_inner = leads_to_dict, not leads_to_dict
            return
        if known.flags & _INLINE_VALUES and 8 * at > known.base_bytes:
            attribute = self._shared_key(number, at - known.base_bytes // 8 - 1)
        elif leads_to_dict and 8 * at == self._type_word(number, _DICT_OFFSET_AT):
            walk.namespace = True
            return
        else:
            attribute = self._slot(number, 8 * at)
        walk.text += UNKNOWN if attribute is None else f".{attribute}"
        walk.unresolved += attribute is None

    def _name_in_table(self, walk: _Walk, word: int, start: int) -> None:
        if not walk.is_inner and walk.text.endswith(_STATE):
            return
        if not walk.is_inner or walk.owner is None:
            walk.text += UNKNOWN
            walk.unresolved += 1
            return
        begin, number = walk.owner
        flags, name = self._types.known[number].flags, self._names.name_of(number)
        if flags & DICT:
            if not walk.skips_item:
                self._name_in_dict(walk, word, start, begin)
            walk.namespace, walk.skips_item, walk.is_inner = walk.skips_item, False, False
        elif flags & LIST:
            walk.text, walk.is_inner = walk.text + _ITEM, False
        elif name in ("set", "frozenset"):
            walk.text, walk.is_inner = walk.text + _ELEMENT_OF_SET, False
        elif name == "collections.deque":
            if word - start not in (0, 65):
                walk.text, walk.is_inner = walk.text + _ITEM, False
        else:
            # Values of an instance are in the order of its class's shared keys.
            place = (self._image.address(word) - (walk.base + 7 & ~7)) // 8
            attribute = self._shared_key(number, place)
            walk.text += UNKNOWN if attribute is None else f".{attribute}"
            walk.unresolved += attribute is None
            walk.is_inner = False

    def _name_in_dict(self, walk: _Walk, word: int, start: int, begin: int) -> None:
        words = self._image.words
        keys = int(words[begin + _DICT_KEYS])
        if int(words[begin + _DICT_VALUES]) and self._image.address(start) != keys:
            # Values of a dictionary that shares its keys.
            place = (self._image.address(word) - (walk.base + 7 & ~7)) // 8 - self._first_value
            key = self._key_text(keys, place)
        else:
            header = int(words[start + 1])
            index_bytes, kind = header >> 8 & 0xFF, header >> 16 & 0xFF
            width = 3 if kind == 0 else 2
            entry, part = divmod(word - start - 4 - (1 << index_bytes) // 8, width)
            if part == width - 2:
                walk.text += KEYS
                return
            entries = start + 4 + (1 << index_bytes) // 8
            key = self._python.codes.text(int(words[entries + entry * width + width - 2]))
        if key is None or len(key) > _SHORT:
            walk.text += _ITEM
        elif walk.namespace and key.isidentifier():
            walk.text += f".{key}"
        else:
            walk.text += f"[{key!r}]" if walk.namespace else _ITEM

    def _key_text(self, keys: int, place: int) -> str | None:
        header = self._python.read(keys, 32)
        if len(header) < 32 or not 0 <= place < _MOST_KEYS:
            return None
        return self._python.codes.text(self._word(keys + 32 + (1 << header[9]) + 16 * place))

    def _shared_key(self, number: int, place: int) -> str | None:
        """Returns the name of an instance's attribute, given its index among the values."""
        keys = self._cached_keys(number)
        return None if keys is None else self._key_text(keys, place)

    def _cached_keys(self, number: int) -> int | None:
        image = self._python.read(self._types.address(number), 1024)
        end = native().address_end
        for (pointer,) in struct.iter_unpack("<Q", image[_DICT_OFFSET_AT : len(image) & ~7]):
            if pointer >= end or pointer < 4096 or pointer & 7:
                continue
            header = self._python.read(pointer, 32)
            if len(header) == 32 and header[10] == _SPLIT and header[9] < 16 and header[8] < 16:
                return int(pointer)
        return None

    def _slot(self, number: int, offset: int) -> str | None:
        for _ in range(16):
            known = self._types.known[number]
            for key, value in self._names.entries(known.dictionary):
                of = self._types.number_at(value)
                is_member = of is not None and self._names.name_of(of) == "member_descriptor"
                if is_member and self._word(self._word(value + 40) + 16) == offset:
                    return self._python.codes.text(key)
            found = self._types.number_of_type(known.base)
            if found is None:
                return None
            number = found
        return None

    def _frame_local(self, walk: _Walk, word: int, begin: int, before: str) -> str:
        """Returns ``before``, and the name of a variable in a generator, coroutine or frame."""
        words, size = self._image.words, self._image.references.size(begin)
        code_at = self._python.layout.probes["code"] // 8
        first = self._python.layout.locals // 8
        for frame in range(begin + 2, min(begin + size, word)):
            known = self._codes.look_up(int(words[frame + code_at]) & ~7)
            number = word - frame - first
            if known.function.function is None or number < 0:
                continue
            if number < known.variables + known.temporaries:
                return f"{before}{known.function.function}() {self._local_text(known, number)}"
        walk.unresolved += 1
        return UNKNOWN

    def _type_word(self, number: int, offset: int) -> int:
        return self._word(self._types.address(number) + offset)
