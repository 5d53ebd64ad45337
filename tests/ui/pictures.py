"""Pictures of the screen for ``img/``: ``python -m tests.ui.pictures DIRECTORY``.

They show the same fixed data as the tests do, so that they change when the screen does.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from tests.ui.source import Steps, drive, press, shop
from tracelloc.ui.app import LiveApp

_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def picture(path: Path, *keys: str, size: tuple[int, int]) -> None:
    """Writes what is on the screen after these keys, as SVG."""

    async def steps(app: LiveApp, pilot: Pilot[int]) -> None:
        await press(app, pilot, *keys)
        await pilot.pause()
        svg = app.export_screenshot(title="tracelloc")
        # Whoever looks at it has fonts; it must not fetch any.
        svg = _FONT.sub("", svg).replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
        # Textual numbers its pictures at random.
        path.write_text(re.sub(r"terminal-\d+", "terminal", svg))

    done: Steps = steps
    with tempfile.TemporaryDirectory() as directory:
        drive(shop(Path(directory)), done, size)


def main() -> None:
    """All pictures."""
    directory = Path(sys.argv[1])
    picture(directory / "live.svg", size=(120, 33))
    picture(directory / "stack.svg", "enter", size=(110, 36))


if __name__ == "__main__":
    main()
