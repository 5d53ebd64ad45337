"""Real-time priority for this process's threads while the target waits for them."""

from types import TracebackType
from typing import Self

class Urgency:
    """A context in which the target waits for this process, or soon does."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...  # fmt: skip

def claim() -> None:
    """Gives the calling thread priority until ``renounce``, for work that the target waits for."""

def renounce() -> None:
    """Takes the calling thread's priority: some kernels move no thread that has one to a cgroup."""

def wait(options: int) -> tuple[int, int]:
    """Waits by waitpid(2) for any thread or process; urgent from its change until the next call.

    Returns (its id, status); id 0 if nothing has changed and WNOHANG is among the options. Raises
    OSError.
    """

def relax() -> None:
    """Ends the urgency of the calling thread's last ``wait``."""
