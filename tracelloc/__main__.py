"""The entry point of ``python -m tracelloc`` and of the command ``tracelloc``."""

# These have been imported already. Until main() begins, an interrupt would be a traceback.
import _signal as signal  # type: ignore[import-not-found]
import atexit
import os
import sys

from tracelloc import __version__

_status: int | None = None  # The exit status, once `main` has decided it


@atexit.register  # before all others, so it runs last
def _leave() -> None:
    """Ends the process without Python's shutdown, which aborts up to 3.13 (CPython, gh-87135)."""
    if _status is None:
        return
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - contextlib would have to be imported
            stream.flush()
        except (OSError, ValueError):  # closed, or nobody reads
            pass
    os._exit(_status)


def main() -> int:
    """Runs the command and returns its exit status; ^C during its imports just ends it."""
    global _status  # noqa: PLW0603 - there is one exit status
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # In the middle of an import, anything may be made of an exception.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracelloc.command.failures import report_failure  # noqa: PLC0415
    from tracelloc.errors import OutputError  # noqa: PLC0415
    from tracelloc.startup import claim_streams  # noqa: PLC0415

    claim_streams()
    if sys.argv[1:] == ["--version"]:
        try:
            print(f"tracelloc {__version__}", flush=True)
        except OutputError as error:
            return report_failure(error, debug=False)
        return 0
    from tracelloc.command.cli import main as command  # noqa: PLC0415 - takes most of a second

    _status = command()
    return _status


if __name__ == "__main__":
    sys.exit(main())
