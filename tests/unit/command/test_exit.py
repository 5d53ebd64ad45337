"""The end of the process, with threads at work."""

import sys

from tests.commands import outcome

BUSY = """
import atexit, sys, threading, time
from tracelloc import __main__
from tracelloc.command import cli
import numpy

begun = threading.Barrier(4)

def busy():
    numbers = numpy.random.default_rng(1).permutation(100_000)
    numpy.unique(numbers)
    begun.wait()
    while True:
        numpy.unique(numbers)

def command():
    for _ in range(3):
        threading.Thread(target=busy, daemon=True).start()
    begun.wait()
    atexit.register(print, "last steps are done")
    print("some text", end=" ")
    return 7

# What there is to free keeps the interpreter busy while it ends.
kept = [[number] for number in range(300_000)]
cli.main = command
sys.exit(__main__.main())
"""


def test_threads_in_numpy_do_not_abort() -> None:
    for _ in range(3):
        done = outcome(sys.executable, "-c", BUSY)
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout == "some text last steps are done\n"
