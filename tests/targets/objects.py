"""A Python program that says what it has: objects by type, as the interpreter counts them.

Commands, one per line; each is answered by a line of JSON, [sys.getallocatedblocks(), {type:
objects that the garbage collector tracks}], of which nothing is left:

    grow N    N more sessions, each with a dictionary, a list and a tuple
    drop N    lets go of the N oldest
    count     only counts
"""

import collections
import gc
import json
import sys


class Session:
    """Something that leaks."""

    def __init__(self, number):
        self.number = number
        self.fields = {"name": f"session-{number}", number: [number]}


class Slotted:
    """Without a dictionary."""

    __slots__ = ("pair",)

    def __init__(self, number):
        self.pair = (number, self)


kept = collections.deque()
large = [tuple(object() for _ in range(200)) for _ in range(50)]


def name(kind):
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )


def answer():
    gc.collect()
    counts = collections.Counter()
    for one in gc.get_objects():
        counts[name(type(one))] += 1
    del one
    text = json.dumps(counts)
    del counts
    gc.collect()
    print(f"[{sys.getallocatedblocks()}, {text}]", flush=True)


gc.disable()
print("ready", flush=True)
for line in sys.stdin:
    word, _, count = line.strip().partition(" ")
    for number in range(int(count or 0)):
        if word == "grow":
            kept.append((Session(number), Slotted(number)))
        else:
            kept.popleft()
    answer()
