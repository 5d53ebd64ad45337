"""A Python program that leaks in one way, or does what only looks like it.

The first argument says how, the second one is the directory of the module ``pyleak``. It goes on
until it is killed.
"""

import asyncio
import functools
import gc
import importlib
import sys
import time

sys.path.insert(0, sys.argv[2])
PERIOD_S = 0.01
MEMO = {}
SCRATCH = []
LATE = ["decimal", "fractions", "html.parser", "xml.dom.minidom", "http.client", "email.mime.text"]


class Request:
    """What is served."""

    def __init__(self, number):
        self.number = number
        self.fields = {"path": f"/item/{number}", "headers": [number]}


class Node:
    """Refers to itself, and has a finalizer."""

    def __init__(self, number):
        self.me = self
        self.payload = {"number": number}

    def __del__(self):
        pass


def ticks():
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        yield number
        time.sleep(PERIOD_S)


def in_function():
    """Dictionaries that a function keeps in a local variable."""
    handled = []
    for number in ticks():
        handled.append({"number": number, "state": "done"})


def in_cache():
    """A cache without a bound."""
    for number in ticks():
        MEMO[number, "key"] = Request(number)


def in_cycle():
    """Cycles with finalizers, while the collector is off."""
    gc.disable()
    for number in ticks():
        Node(number)


def in_extension():
    """References that an extension never gives back."""
    import pyleak

    for number in ticks():
        pyleak.parse(f"GET /item/{number} HTTP/1.1")


def in_malloc():
    """Memory that an extension takes from malloc and never frees."""
    import pyleak

    text = "x" * 700
    for _ in ticks():
        pyleak.encode(text)


async def handler(event, number):
    request = Request(number)
    await event.wait()
    return request


async def tasks():
    """Tasks that nobody awaits, and that wait for what never comes."""
    event, pending = asyncio.Event(), set()
    for number in ticks():
        task = asyncio.create_task(handler(event, number))
        pending.add(task)
        task.add_done_callback(pending.discard)
        await asyncio.sleep(0)


def in_tasks():
    asyncio.run(tasks())


@functools.lru_cache(maxsize=1000)
def cached(number):
    return [number]


def innocent():
    """A bounded cache, interned strings, late imports, a list that is cleared, short-lived ones."""
    for number in ticks():
        cached(number)
        sys.intern(f"key-{number % 500}")
        SCRATCH.append({"number": number})
        if len(SCRATCH) >= 350:
            SCRATCH.clear()
        if number % 1000 == 0 and LATE:
            importlib.import_module(LATE.pop())
        Request(number)


globals()[sys.argv[1]]()
