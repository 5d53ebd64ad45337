"""Tables of names, ``tests/data/names``: a line for each, and what they are below, indented."""

from tests.harness import TARGETS

FOLDER = TARGETS.parent / "data" / "names"


def stacks_in(table: str) -> list[tuple[list[str | None], str | None]]:
    """What stands below is of all lines above it. ``???`` is None."""
    found: list[tuple[list[str | None], str | None]] = []
    above: list[str | None] = []
    for line in (FOLDER / f"{table}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            text = None if line.strip() == "???" else line.strip()
            if line.startswith(" "):
                found.append((above, text))
                above = []
            else:
                above.append(text)
    return found


def names_in(table: str) -> list[tuple[str | None, str | None]]:
    """Of single names, where ``=`` stands for the name itself."""
    return [(name, name if below == "=" else below) for (name,), below in stacks_in(table)]
