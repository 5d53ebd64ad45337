"""Asks for memory from all kinds of Python code; a C module says which frames there were.

Each line names a function below: it is run, and answered by a line of JSON with what
``pyframes.truth`` has since. ``argv[1]``: the module's directory; ``argv[2]``: the first size.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import sys
import threading
import types
import weakref

sys.path.insert(0, sys.argv[1])
pyframes = importlib.import_module("pyframes")
sizes = iter(range(int(sys.argv[2]), 1 << 62))


def leak(_=None):
    pyframes.mark(next(sizes))
    return 0


def nested():
    def inner():
        def innermost():
            leak()
            pyframes.mark(next(sizes))

        innermost()

    inner()
    (lambda: leak())()
    functools.partial(leak, 1)()


def generators():
    def plain():
        yield leak()
        yield from deeper()

    def deeper():
        yield leak()

    for _ in plain():
        pass
    list(plain())
    sum(1 for _ in plain())
    started = plain()
    next(started)
    with contextlib.suppress(KeyError):
        catcher = catching()
        next(catcher)
        catcher.throw(KeyError())
    leaving = finishing()
    next(leaving)
    leaving.close()


def catching():
    try:
        yield
    except KeyError:
        leak()
        raise


def finishing():
    try:
        yield
    finally:
        leak()


def comprehensions():
    [leak() for _ in range(2)]
    {leak() for _ in range(1)}
    {number: leak() for number in range(1)}
    [[leak() for _ in range(1)] for _ in range(1)]
    tuple(leak() for _ in range(2))


def callbacks():
    sorted([2, 1], key=leak)
    list(map(leak, [1]))
    functools.reduce(lambda a, b: leak(), [1, 2])
    pyframes.call(leak, 1)
    pyframes.call(functools.partial(pyframes.call, leak), 1)
    max([1, 2], key=lambda x: leak() or x)


class Thing:
    def __init__(self):
        leak()

    def __new__(cls):
        leak()
        return super().__new__(cls)

    @property
    def size(self):
        leak()

    @size.setter
    def size(self, value):
        leak()

    def __getattr__(self, name):
        leak()
        return name

    def __eq__(self, other):
        leak()
        return True

    def __hash__(self):
        leak()
        return 1

    def __enter__(self):
        leak()

    def __exit__(self, *_):
        leak()

    def __del__(self):
        leak()

    @classmethod
    def made(cls):
        leak()

    def __call__(self):
        leak()

    def __iter__(self):
        leak()
        return iter(())

    def __getitem__(self, at):
        leak()


class Meta(type):
    def __call__(cls, *values):
        leak()
        return super().__call__(*values)


def properties():
    thing = Thing()
    _ = thing.size
    thing.size = 1
    _ = thing.other
    _ = thing == 1
    _ = {thing: 1}
    with thing:
        leak()
    thing.made()
    thing()
    list(thing)
    _ = thing[1]
    del thing

    class Local(metaclass=Meta):
        leak()

    Local()


def coroutines():
    async def inner():
        leak()
        await asyncio.sleep(0)
        leak()

    async def numbers():
        yield leak()
        await asyncio.sleep(0)
        yield leak()

    async def outer():
        await inner()
        async for _ in numbers():
            leak()
        await asyncio.gather(inner(), inner())

    asyncio.run(outer())
    by_hand = inner()
    by_hand.send(None)
    with contextlib.suppress(StopIteration):
        by_hand.send(None)

    @types.coroutine
    def old():
        yield leak()

    old().send(None)


def threads():
    def work():
        leak()
        nested()

    started = [threading.Thread(target=work) for _ in range(3)]
    for thread in started:
        thread.start()
        thread.join()
    local = threading.local()
    local.thing = Thing()
    leak()


def exceptions():
    try:
        try:
            leak()
            raise ValueError
        except ValueError:
            leak()
            raise KeyError from None
        finally:
            leak()
    except* KeyError:
        leak()
    with contextlib.ExitStack() as stack:
        stack.callback(leak)


def recursion():
    def down(depth):
        if depth:
            return down(depth - 1)
        return leak()

    def through_c(depth):
        if depth:
            return pyframes.call(through_c, depth - 1)
        return leak()

    down(200)
    through_c(50)


kept = []


def odd():
    for text, name in (
        ("leak()", "<string>"),
        ("\n" * 5000 + "leak()", "naïve/日本語/😀.py"),
        ("def größe():\n  leak()\ndef 数():\n  größe()\n数()", "/é/" + "x" * 600),
    ):
        kept.append(compile(text, name, "exec"))
        exec(kept[-1], globals())
    thing = type("Any", (), {})()
    watch = weakref.ref(thing, leak)
    del thing
    del watch
    gc.callbacks.append(collected)
    gc.collect()
    gc.callbacks.remove(collected)
    signal.signal(signal.SIGUSR1, lambda *_: leak())
    os.kill(os.getpid(), signal.SIGUSR1)


def collected(phase, _):
    leak()


def reuse():
    """Code objects, each in the place of the one before, in all likelihood."""
    for number in range(50):
        exec(f"def f{number}():\n{chr(10) * (number % 7)}  leak()\nf{number}()", globals())
        del globals()[f"f{number}"]


names = [""]


def short():
    """A child that runs code of its own, and is gone. No two have names of one size."""
    names.append("x" * 32 * len(names))
    ends = os.pipe()
    child = os.fork()
    if not child:
        name = f"of_{os.getpid()}_{names[-1]}"
        exec(f"def {name}():\n  leak()\n{name}()", globals())
        os.write(ends[1], json.dumps(pyframes.truth[-1]).encode())
        os._exit(0)
    frames = json.loads(os.read(ends[0], 1 << 16))
    os.waitpid(child, 0)
    print(json.dumps([child, frames]), flush=True)


print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    if line == "short\n":
        short()
        continue
    done = len(pyframes.truth)
    globals()[line.strip()]()
    print(json.dumps(pyframes.truth[done:]), flush=True)
