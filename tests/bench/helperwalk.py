"""What would the kernel's own stack walk, bpf_get_stack, cost instead of tracelloc's?

A program with tracelloc's own options: ``python -m tests.bench.helperwalk -p PID --stacks fp``.
"""

import sys
from pathlib import Path
from typing import Any

from tracelloc import probes
from tracelloc.command import cli

WALK = Path(__file__).with_name("walk_helper.h")


def main() -> int:
    """Runs the command with the walk exchanged."""
    ours = (probes.directory() / "walk_fp.h").read_text(encoding="utf-8")
    text_of = probes.source_text

    def source_text(**options: Any) -> str:
        text = text_of(**options)
        assert ours.strip() in text, "run it with --stacks fp"
        return text.replace(ours.strip(), WALK.read_text(encoding="utf-8"))

    probes.source_text = source_text
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
