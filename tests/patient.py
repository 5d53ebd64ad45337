"""tracelloc that looks up names for as long as tests wait, for emulated machines.

Usage: python -m tests.patient ARGUMENT...

Its last report after a signal waits four seconds for names, which take longer there, and
sometimes beside a load.
"""

import sys

from tests.forked import PATIENCE_S
from tracelloc.command import cli, reports, run


def be_patient() -> None:
    """Has this process wait for names for as long as tests wait for it."""
    for module in (reports, run):
        assert hasattr(module, "HURRY_PATIENCE_S")
        module.HURRY_PATIENCE_S = PATIENCE_S


def main() -> int:
    be_patient()
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
