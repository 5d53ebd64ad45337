"""A Python program that keeps objects in many ways.

Each line is a kind and a number: so many more Items are kept so. Answered when that is done.
"""

import asyncio
import collections
import contextvars
import ctypes
import functools
import gc
import itertools
import sys
import threading
import weakref
import zlib


class Item:
    """What is kept."""

    def act(self):
        pass


class Cache:
    """Keeps them in an attribute of the class, of an instance, and in slots."""

    entries = []  # noqa: RUF012

    def __init__(self):
        self.rows = []


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self):
        self.first, self.second = None, []


class Text(str):
    """A text with attributes."""


class Wide:
    """Too large for Python's own allocator."""

    __slots__ = tuple(f"field{number}" for number in range(80))


class Reference(weakref.ref):
    """Keeps nothing, as those from which it inherits."""


class Cycle:
    """Keeps itself, with an item."""

    def __init__(self):
        self.me, self.item = self, Item()

    def __del__(self):
        pass


def make_adder():
    kept = []

    def add(item):
        kept.append(item)

    return add


@functools.cache
def cached(number):
    return Item()


async def worker(event):
    item = Item()
    await event.wait()
    return item


def generate():
    item = Item()
    yield
    return item


def produce():
    rows = []
    while True:
        yield
        rows.append(Item())


def consume():
    for _ in produce():
        made.release()
        wanted.acquire()


@functools.lru_cache(maxsize=100_000)
def bounded(number):
    return Item()


def risky():
    rows = Item()
    raise LookupError(id(rows))


def fail(number):
    return risky() if number == 0 else fail(number - 1)


def here():
    item = Item()
    return sys._getframe(item is None)


UNBOUNDED = {}
ERRORS, CHAINED, ARGUMENTS, FRAMES, FUTURES = [], [], [], [], []
WEAK, STRONG = [], [[]]
PARTIALS, METHODS, PROPERTIES, REFERENCES, BOUND = [], [], [], [], []
LOCAL = threading.local()
LOCAL.items = []
VARIABLE = contextvars.ContextVar("request")
VARIABLE.set([])
DEQUE = collections.deque()
RECENT = collections.deque(maxlen=100_000)
VAST = collections.deque(maxlen=1_000_000)
DROPPED = [collections.deque() for _ in range(10)]
TEXTS, WIDE = [], []
SET = set()
GENERATORS = []
STREAMS = []
CACHE = Cache()
SLOTTED = Slotted()
NUMBERS = itertools.count()
add = make_adder()
scratch = []
made, wanted = threading.Semaphore(0), threading.Semaphore(0)
threading.Thread(target=consume, daemon=True).start()
made.acquire()


async def main():
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    pending, tasks = [], []
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        kind, count = line.split()
        for _ in range(int(count)):
            if kind == "local":
                pending.append(Item())
            elif kind == "task":
                tasks.append(loop.create_task(worker(event)))
            else:
                (KEEP.get(kind) or globals()[f"keep_{kind}"])()
        await asyncio.sleep(0)
        print("done", flush=True)


KEEP = {
    "instance": lambda: CACHE.rows.append(Item()),
    "slots": lambda: SLOTTED.second.append(Item()),
    "recent": lambda: RECENT.append(Item()),
    "vast": lambda: VAST.append(Item()),
    "wide": lambda: WIDE.append(Wide()),
    "set": lambda: SET.add(Item()),
    "closure": lambda: add(Item()),
    "lru": lambda: cached(cached.cache_info().currsize),
    "bounded": lambda: bounded(bounded.cache_info().currsize),
    "thread": lambda: LOCAL.items.append(Item()),
    "context": lambda: VARIABLE.get().append(Item()),
    "argument": lambda: ARGUMENTS.append(ValueError(Item())),
    "frame": lambda: FRAMES.append(here()),
    "partial": lambda: PARTIALS.append(functools.partial(print, Item())),
    "method": lambda: METHODS.append(Item().act),
    "property": lambda: PROPERTIES.append(property(Item())),
    "callback": lambda: REFERENCES.append(weakref.ref(Cache, functools.partial(print, Item()))),
    "bound": lambda: BOUND.append([Item()].append),
    "cycle": Cycle,
    "native": lambda: ctypes.pythonapi.Py_IncRef(ctypes.py_object(Item())),
}


def keep_dict():
    UNBOUNDED["key", len(UNBOUNDED)] = Item()


def keep_class():
    Cache.entries.append(Item())


def keep_deque():
    DEQUE.append(Item())


def keep_dropped():
    """Places of a deque still have what it has dropped, while something else keeps it."""
    item = Item()
    CACHE.rows.append([[item]])
    queue = DROPPED[len(CACHE.rows) % len(DROPPED)]
    queue.append(item)
    if len(queue) > 1:
        queue.popleft()


def keep_text():
    TEXTS.append(Text(len(TEXTS)))
    TEXTS[-1].item = Item()


def keep_generator():
    GENERATORS.append(generate())
    next(GENERATORS[-1])


def keep_temporary():
    wanted.release()
    made.acquire()


def keep_error():
    try:
        fail(len(ERRORS) % 5)
    except LookupError as error:
        ERRORS.append(error)


def keep_cause():
    try:
        fail(0)
    except LookupError as error:
        CHAINED.append(RuntimeError())
        CHAINED[-1].__cause__ = error


def keep_future():
    FUTURES.append(asyncio.get_running_loop().create_future())
    FUTURES[-1].set_result(Item())


def keep_weak():
    STRONG[0].append(Item())
    WEAK.append(Reference(STRONG[0][-1]))


def keep_garbage():
    """Until so much of it is there that the collector, which is on now, would begin."""
    gc.set_threshold(1 << 30)
    gc.enable()
    Cycle()


def keep_stream():
    STREAMS.append(zlib.decompressobj())


def keep_name():
    number = next(NUMBERS)
    # The cache's entry is found by the address. So that few share one: names of several sizes.
    getattr(CACHE, f"computed_{number}{'_' * (number % 8 * 16)}", None)


def keep_cleared():
    scratch.append(Item())
    if len(scratch) == 200:
        scratch.clear()


gc.disable()
asyncio.run(main())
