"""Makes the pictures in ``img/``: ``make screenshots``.

They show the end of the demo's recording, on the screen and on the flame graph's page in
Chromium, so that they change only when these do. ``img/sources.sha256`` says of which state of
the sources they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path

from textual.pilot import Pilot

from tests.chrome import Chrome
from tests.ui.source import Steps, drive, press
from tracelloc.show.export import EXPORTERS
from tracelloc.show.filters import Filters
from tracelloc.show.filters.files import shipped_rules
from tracelloc.show.presentation.naming import Namers
from tracelloc.show.recording.reader import RecordedTrace
from tracelloc.ui.app import LiveApp
from tracelloc.ui.recorded import RecordedSource

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "img"
STATE = IMAGES / "sources.sha256"
RECORDING = ROOT / "tests/data/demo/leaky.rec"
SOURCES = ("ui", "tracelloc/show/export/web", "tests/data/demo")
SIZE = (120, 40)
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def sources_hash() -> str:
    """SHA-256 of the files that the pictures depend on: the screen, the page and the recording."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for directory in SOURCES:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def draw_screen(path: Path, recording: RecordedTrace, namers: Namers, theme: str) -> None:
    """Draws the screen as SVG, with the leak's stack open."""

    async def steps(app: LiveApp, pilot: Pilot[int]) -> None:
        app.theme = theme
        await press(app, pilot)
        await pilot.pause()
        svg = app.export_screenshot(title="tracelloc")
        # The reader has fonts; the picture must not fetch any.
        svg = _FONT.sub("", svg).replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
        # Textual numbers its pictures at random.
        path.write_text(re.sub(r"terminal-\d+", "terminal", svg))

    done: Steps = steps
    drive(RecordedSource(recording, namers), done, SIZE)


def draw_page(path: Path, recording: RecordedTrace, namers: Namers) -> None:
    """Draws the flame graph's page as PNG, with the largest allocating function selected."""
    snapshot = recording.trace_as_of(recording.moments[-1].uptime_s).root
    with tempfile.TemporaryDirectory() as name:
        page = Path(name, "leaky.html")
        pieces = EXPORTERS[".html"](snapshot, namers.namer_of(snapshot.target))
        page.write_bytes(b"".join(pieces))
        with Chrome(Path(name, "browser"), 1280, 400, scale=1.5) as chrome:
            chrome.open(page.as_uri())
            chrome.evaluate(
                "(() => { let at = 0; let next;"
                "while ((next = page.tree.childrenOf(at)[0]) !== undefined) at = next;"
                "page.select(at); })()"
            )
            path.write_bytes(chrome.picture())


def main() -> int:
    os.environ["TZ"] = "UTC"
    time.tzset()
    recording = RecordedTrace(RECORDING)
    namers = Namers(recording, Filters([shipped_rules()]))
    draw_screen(IMAGES / "live.svg", recording, namers, "textual-dark")
    draw_screen(IMAGES / "live-light.svg", recording, namers, "textual-light")
    draw_page(IMAGES / "flamegraph.png", recording, namers)
    STATE.write_text(f"{sources_hash()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
