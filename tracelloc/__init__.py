"""A live heap profiler for running, unmodified Linux programs.

>>> with tracelloc.attach(1234) as trace:  # or launch(["./server"]), open("file.rec")
...     time.sleep(60)
...     for suspect in trace.suspects:
...         print(suspect.judgement.verdict.value, suspect.stack.frames[0])
>>> tracelloc.leaks(1234).lost  # without tracing: also heap_usage, holders

Errors are TracellocError, and say what to do. ``tracelloc help api`` has more,
``.github/DESIGN.md`` describes how it works.
"""

TYPE_CHECKING = False  # As in `typing`, which each command would have to import

if TYPE_CHECKING:
    from tracelloc.command.api import Trace, attach, heap_usage, holders, launch, leaks, open  # noqa: A004 - as gzip.open
    from tracelloc.errors import TracellocError as TracellocError

__version__ = "0.1.0"
__all__ = ["Trace", "attach", "heap_usage", "holders", "launch", "leaks", "open"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Each command imports this module: these are imported at their first use.
        if name not in (*__all__, "TracellocError"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from tracelloc.command import api  # noqa: PLC0415

        return getattr(api, name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
