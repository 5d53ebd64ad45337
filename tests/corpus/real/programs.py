"""Real programs from Debian packages: how each is set up, found and put under load.

They are said in ``programs.toml``. ``start`` is a shell script that ends in ``exec`` of the
program; ``load`` is one that repeats itself until it is killed. Both run in a directory of their
own, with ``$PORT`` and two ports more, ``$ORIGIN`` and ``$NAMES``, at which a web server and a name
server answer, ``$LOAD`` (``load.py``) and ``$DIR``. Whatever they begin belongs to their process
groups.
"""

import hashlib
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

_IDLE_LOAD = '"$LOAD" idle $PORT 0.2'  # Connections without requests


@dataclass(frozen=True)
class RealProgram:
    """One program."""

    name: str
    start: str
    load: str
    packages: tuple[str, ...] = ()
    traced: str = ""  # Command name of the descendant that is traced; empty: the program itself
    runtime: bool = False  # It has a garbage collector

    @property
    def half(self) -> str:
        """``seen`` while rules are changed, or ``unseen``: by the name alone, for ever."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=8).digest()
        return "unseen" if digest[0] & 1 else "seen"


def _read() -> tuple[RealProgram, ...]:
    """Under steady, light load; then servers without requests."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    parts = {f"@{name}@": text.strip() for name, text in tables.pop("parts").items()}

    def script(text: str) -> str:
        return re.sub("|".join(parts), lambda found: parts[found[0]], text.strip())

    busy = [
        RealProgram(
            name, script(table["start"]), script(table["load"]), tuple(table["packages"]),
            table.get("traced", ""), table.get("runtime", False),
        )
        for name, table in tables.items()
    ]  # fmt: skip
    idle = [
        replace(each, name=f"{each.name}-idle", load=_IDLE_LOAD)
        for each in busy
        if tables[each.name].get("also_idle")
    ]
    return *busy, *idle


PROGRAMS = _read()
