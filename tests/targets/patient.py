"""Waits in epoll_wait(2), which any stop would end with EINTR; says what came of it."""

import ctypes
import os
import select

libc = ctypes.CDLL(None, use_errno=True)
poll = select.epoll()
poll.register(0, select.EPOLLIN)
events = (ctypes.c_char * 12)()
os.write(1, b"ready\n")
count = libc.epoll_wait(poll.fileno(), events, 1, -1)
error = os.strerror(ctypes.get_errno()) if count < 0 else "no error"
os.write(1, f"{count} event, {error}\n".encode())
