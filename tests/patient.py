"""tracelloc that looks up names for as long as tests wait, for emulated machines.

Usage: python -m tests.patient ARGUMENT...

Its last report after a signal waits four seconds for names, which take longer there.
"""

from __future__ import annotations

import sys

from tests.harness import PATIENCE_S
from tracelloc.command import cli, reports, run


def main() -> int:
    """The command."""
    for module in (reports, run):
        assert hasattr(module, "HURRY_PATIENCE_S")
        module.HURRY_PATIENCE_S = PATIENCE_S
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
