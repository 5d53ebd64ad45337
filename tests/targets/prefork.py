"""A prefork server: workers accept requests on a socket of their parent's.

``prefork.py WORKERS`` says ``ready``, answers the first line with the socket's port, once all
workers are forked, and ends its workers and itself when its input ends. A request is one
line: ``keep SIZE`` allocates a block that nobody frees, ``quit`` ends the worker. The answer
is the worker's PID.
"""

import ctypes
import os
import signal
import socket
import sys

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]


def serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as stream:
            words = stream.readline().split()
            if words[0] == "keep":
                libc.malloc(int(words[1]))
            stream.write(f"{os.getpid()}\n")
        if words[0] == "quit":
            os._exit(0)


print("ready", flush=True)
sys.stdin.readline()
listener = socket.create_server(("127.0.0.1", 0))
workers = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        serve(listener)
    workers.append(pid)
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
for pid in workers:
    os.kill(pid, signal.SIGTERM)
