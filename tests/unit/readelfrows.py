"""Call-frame information of files as readelf interprets it."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

FUNCTION = re.compile(r" FDE .* pc=([0-9a-f]+)\.\.([0-9a-f]+)$")


def rows_of_readelf(
    path: Path, registers: Mapping[str, int], tool: str = "readelf", *, must_succeed: bool = False
) -> Iterator[tuple[int, str, dict[int, str]]]:
    """Address, CFA and rules of every row, as text, of all functions of a file.

    ``registers``: number by readelf's name. ``must_succeed``: without it, a status that says that
    there were warnings is no error.
    """
    text = subprocess.run(
        [tool, "--debug-dump=frames-interp", path],
        capture_output=True, text=True, check=must_succeed, timeout=60,
    ).stdout  # fmt: skip
    names: list[str] = []
    end = 0
    lines: list[list[str]] = []
    for line in [*re.sub(r" \(\w+\)", "", text).splitlines(), ""]:
        words = line.split()
        function = FUNCTION.search(line)
        if function:
            end = int(function[2], 16)
        elif words[:1] == ["LOC"]:
            names = words[2:]
        elif end and len(words) == len(names) + 2:
            lines.append(words)
        elif not words:
            starts = [int(row[0], 16) for row in lines]
            for row, start, stop in zip(lines, starts, [*starts[1:], end], strict=bool(lines)):
                if start < stop:
                    found = dict(zip(names, row[2:], strict=True))
                    yield (
                        start,
                        row[1],
                        {registers[n]: t for n, t in found.items() if n in registers},
                    )
            lines, end = [], 0
