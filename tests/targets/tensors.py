"""A trainer without a GPU: tensors on two devices, as a stand-in of PyTorch's library reports them.

    tensors.py LIBRARY

Answers lines: a number trains so many steps, and is answered by the books in JSON, {function:
{device: [blocks, bytes]}}, of what was allocated since the first line and is outstanding;
``counters`` by the semaphores.
"""

import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
library.standin_malloc.argtypes = [ctypes.c_void_p, ctypes.c_byte, ctypes.c_long, ctypes.c_void_p]
library.standin_free.argtypes = [ctypes.c_void_p]
FIRST = 0x7F0000000000  # No address of the process
books = {}
owners = {}


def note(function, pointer, device, size_bytes):
    owners[pointer] = function, str(device), size_bytes
    sums = books.setdefault(function, {}).setdefault(str(device), [0, 0])
    sums[0] += 1
    sums[1] += size_bytes


def free(pointer):
    library.standin_free(pointer)
    function, device, size_bytes = owners.pop(pointer, (None, None, None))
    if function is not None:
        books[function][device][0] -= 1
        books[function][device][1] -= size_bytes


def weights(pointer, device):
    library.standin_malloc(pointer, device, 4 << 20, None)
    note("weights", pointer, device, 4 << 20)


def activations(pointer, device):
    library.standin_malloc(pointer, device, 1 << 33, None)
    note("activations", pointer, device, 1 << 33)


def gradients(pointer, device):
    library.standin_malloc(pointer, device, 512, None)
    note("gradients", pointer, device, 512)


def train(steps):
    """Blocks begin where others have just ended, of another owner on another device."""
    for step in range(steps):
        place = FIRST + (step % 16 << 34)
        if place in owners:
            free(place)
        activations(place, 0)
        free(place)
        gradients(place, 1)
    for number in range(4):
        weights(FIRST + (len(owners) + 1 << 40), number % 2)


weights(FIRST, 0)  # Before anybody listens
owners.clear()
books.clear()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "counters":
        counters = library.standin_counters()
        print(counters >> 16, counters & 0xFFFF, flush=True)
        continue
    free(FIRST)
    train(int(line))
    print(json.dumps(books), flush=True)
