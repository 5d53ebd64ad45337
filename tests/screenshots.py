"""Makes the pictures in img/ that show results: ``make screenshots``.

The demo program is traced for some seconds; its flame graph is opened in Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chrome import Chrome
from tests.harness import FRAME_POINTERS, TARGETS, tracelloc_command

IMAGES = Path(__file__).parents[1] / "img"
SECONDS = 20


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        program = directory / "shop"
        subprocess.run(
            [
                *("gcc", "-O1", "-g", *FRAME_POINTERS, "-pthread"),
                *(f"-ffile-prefix-map={TARGETS}=/src/shop", "-o", program, TARGETS / "leaky.c"),
            ],
            check=True,
        )
        page = directory / "heap.html"
        target = subprocess.Popen([program, str(SECONDS + 30)], stdout=subprocess.DEVNULL)
        try:
            options = ["--duration", f"{SECONDS}s", "-o", page]
            subprocess.run(tracelloc_command("-p", target.pid, *options), check=True)
        finally:
            target.kill()
            target.wait()
        with Chrome(directory / "browser", 1280, 400, scale=1.5) as chrome:
            chrome.open(page.as_uri())
            # The largest frame of those that allocate.
            chrome.evaluate(
                "(() => { let at = 0; let next;"
                "while ((next = page.tree.childrenOf(at)[0]) !== undefined) at = next;"
                "page.select(at); })()"
            )
            (IMAGES / "flamegraph.png").write_bytes(chrome.picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
