"""A process that does to a profiler whatever it can: names, files, threads.

Usage: /usr/bin/python3 hostile.py DIRECTORY. Maps every file in it as code, and lives until its
standard input ends.
"""

import ctypes
import os
import sys
import threading

COMMAND = b"\x1b]0;x\x07\x0b\xe2\x80\xa8\n)"
PROT_READ_EXEC, MAP_PRIVATE = 5, 2

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


def map_all(directory):
    for name in sorted(os.listdir(os.fsencode(directory))):  # noqa: PTH208
        path = os.fsencode(directory) + b"/" + name
        descriptor = os.open(path, os.O_RDONLY)
        size = min(os.fstat(descriptor).st_size, 1 << 20)
        address = libc.mmap(None, size, PROT_READ_EXEC, MAP_PRIVATE, descriptor, 0)
        assert address != ctypes.c_void_p(-1).value, path
        os.close(descriptor)
        if b"replaced" in name:
            os.unlink(path)
            os.mkfifo(path)
    libc.mmap(None, 4096, PROT_READ_EXEC, MAP_PRIVATE, os.open("/dev/zero", os.O_RDONLY), 0)
    libc.mmap(None, 4096, PROT_READ_EXEC, MAP_PRIVATE | 0x20, -1, 0)


def write_perf_map():
    with open(f"/tmp/perf-{os.getpid()}.map", "w") as file:
        lines = (f"{n * 16:x} 10 \x1b[31mname{n}\x85\n" for n in range(200_000))
        file.writelines(lines)


def churn():
    blocks = []
    while True:
        for number in range(1000):
            blocks.append(libc.malloc(number))
        while blocks:
            libc.free(blocks.pop())
        libc.malloc(24)
        libc.malloc(1 << 62)
        threading.Thread(target=rename).start()


def rename():
    libc.prctl(15, COMMAND, 0, 0, 0)


def main():
    rename()
    map_all(sys.argv[1])
    write_perf_map()
    threading.Thread(target=churn, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    os.unlink(f"/tmp/perf-{os.getpid()}.map")
    os._exit(0)


main()
