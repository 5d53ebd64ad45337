"""``python -m tracelloc``, and the command."""

import signal
import sys

from tracelloc import __version__


def main() -> int:
    """Runs the command. Whoever interrupts it while it is still being read just ends it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # In the middle of an import, anything may be made of an exception.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] == ["--version"]:
        print(f"tracelloc {__version__}")
        return 0
    from tracelloc.command.cli import main as command  # noqa: PLC0415 - takes most of a second

    return command()


if __name__ == "__main__":
    sys.exit(main())
