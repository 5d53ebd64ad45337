"""``python -m tracelloc``, and the command."""

import sys


def main() -> int:
    """Runs the command. Whoever interrupts it while it is still being read sees no traceback."""
    try:
        from tracelloc.cli import main as command  # noqa: PLC0415 - takes most of a second

        return command()
    except KeyboardInterrupt:
        return 0
    except RuntimeError as error:
        # Python 3.11 makes that of whatever is raised while a class is made.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 0
        raise


if __name__ == "__main__":
    sys.exit(main())
