"""The program of a worker: answers questions about files, one after the other.

The other end chooses the numbers of files, and sends them as descriptors: the file and its debug
file. The worker has no privileges (``tracelloc.system.confined``), so all modules must be imported
before. A question that exceeds its CPU time limit ends the process.
"""

import ctypes
import errno
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Final

from tracelloc.architecture import native
from tracelloc.files.elf.sections import load_zstd
from tracelloc.files.machinecode import codepaths  # noqa: F401
from tracelloc.record.worker.questions import QUESTIONS, PackedMessage, receive_question, send
from tracelloc.record.worker.symbolfilereader import KnownFiles

load_zstd()

_CPU_S: Final = 120.0  # CPU time limit of a question
# CPU time limit of a batch of call stacks, for which the pumping thread waits.
_STACKS_CPU_S: Final = 10.0
_CLONE_PARENT: Final = 0x8000


def serve(channel: socket.socket) -> None:
    """Answers a channel's questions until the other end is gone."""
    files = KnownFiles()
    while True:
        try:
            (number, name, given), data, descriptors = receive_question(channel)
        except OSError:
            return
        # The default action of SIGPROF ends the process.
        is_urgent = name == KnownFiles.stacks.__name__
        signal.setitimer(signal.ITIMER_PROF, _STACKS_CPU_S if is_urgent else _CPU_S)
        try:
            arguments = QUESTIONS[name].arguments(given, data, descriptors)
            asked = files if hasattr(files, name) else files.by_number[number]
            answer = PackedMessage({"answer": getattr(asked, name)(*arguments)})
        except MemoryError:
            os._exit(errno.ENOMEM)
        except Exception as error:  # noqa: BLE001 - whatever it is, this file is not read
            answer = PackedMessage({"error": f"{type(error).__name__}: {error}"})
        send(channel, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)


def fork_workers(own_bytes: int, confine_worker: Callable[[], None]) -> None:
    """Forks a worker for each socket received on standard input, until the other end is gone.

    A message is the worker's memory limit in bytes beyond this process's; the answer is its PID.
    ``confine_worker`` drops, in a worker, privileges that only this process needs.
    """
    with socket.socket(fileno=0) as control:
        while True:
            try:
                (memory_bytes, _), _, (descriptor,) = receive_question(control)
            except (OSError, ValueError):
                return
            pid = _fork_sibling()
            if pid == 0:
                control.close()
                bound = own_bytes + memory_bytes
                resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
                resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
                os.dup2(descriptor, 0)
                os.close(descriptor)
                confine_worker()
                with socket.socket(fileno=0) as channel:
                    serve(channel)
                os._exit(0)
            os.close(descriptor)
            send(control, pid)


def _fork_sibling() -> int:
    """Forks a child of the parent, which can wait for it. Returns 0 there, else its PID.

    With only one thread here, the C library need not know of the fork.
    """
    number = native().system_call("clone")
    # All but the flags are 0: their order differs between processors.
    words = (_CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    # PyDLL keeps the interpreter's lock.
    return int(ctypes.PyDLL(None).syscall(number, *map(ctypes.c_long, words)))
