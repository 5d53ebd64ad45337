"""tracelloc with one place of the probes' source changed: what some test must notice.

Usage: python -m tests.mutant OLD NEW ARGUMENT...
"""

import sys
from typing import Any

from tracelloc import probes
from tracelloc.command import cli

_source_text = probes.source_text


def main() -> int:
    old, new, *arguments = sys.argv[1:]

    def changed(**options: Any) -> str:
        text = _source_text(**options)
        assert text.count(old) == 1, f"{old!r} is in the source {text.count(old)} times"
        return text.replace(old, new)

    probes.source_text = changed
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
