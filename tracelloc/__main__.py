"""``python -m tracelloc``, and the command."""

import sys


def main() -> int:
    """Runs the command. Whoever interrupts it while it is still being read sees no traceback."""
    try:
        from tracelloc.cli import main as command  # noqa: PLC0415 - takes most of a second

        return command()
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
