"""A small inference server: a front end takes prompts, and an engine process answers them.

    inference.py DIRECTORY TITLE [engine]

``DIRECTORY`` has the module ``unbox``, ``TITLE`` is what the engine is called in ps. The engine
keeps a cache of prefixes that fills up, and its operators leak a string for each call. Prints
``ready``, and the engine's PID when it has answered.
"""

import collections
import subprocess
import sys
import time

sys.path.insert(0, sys.argv[1])
PERIOD_S = 0.005
MOST_PREFIXES = 2000


class Prefix:
    """What the engine knows of the beginning of a prompt."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.keys = bytes(1024 * len(tokens))


class Engine:
    """Answers batches of prompts."""

    def __init__(self):
        self.prefixes = collections.OrderedDict()

    def prefix_of(self, tokens):
        key = tuple(tokens[:4])
        if key not in self.prefixes:
            self.prefixes[key] = Prefix(tokens)
            if len(self.prefixes) > MOST_PREFIXES:
                self.prefixes.popitem(last=False)
        return self.prefixes[key]

    def step(self, prompt):
        tokens = [hash(word) % 50000 for word in prompt.split()]
        self.prefix_of(tokens)
        return unbox.run("torch.ops.standin.rotary_embedding.default(query, key)" * 40, tokens)


def serve():
    engine = Engine()
    for prompt in sys.stdin:
        print(engine.step(prompt), flush=True)


def take_prompts():
    command = [sys.argv[2], __file__, *sys.argv[1:], "engine"]
    pipe = subprocess.PIPE
    print("ready", flush=True)
    with subprocess.Popen(command, executable=sys.executable, stdin=pipe, stdout=pipe) as engine:
        number = 0
        while True:
            number += 1
            engine.stdin.write(b"prompt %d of a user who asks\n" % number)
            engine.stdin.flush()
            engine.stdout.readline()
            if number == 1:
                print(engine.pid, flush=True)
            time.sleep(PERIOD_S)


if sys.argv[3:] == ["engine"]:
    import unbox

    serve()
else:
    take_prompts()
