"""Makes the pictures in ``img/``: ``make screenshots``.

The screen's are of the sample program, which is traced for its first minute in a real terminal,
dark and light, and one of them moves. The flame graph's page, in Chromium, is of a server that
comes with Python. ``img/sources.sha256`` says of which state of the sources they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from tests.chrome import Chrome
from tests.harness import wait_until
from tests.terminal import Terminal

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "img"
STATE = IMAGES / "sources.sha256"
SOURCES = ("ui", "tracelloc/show/export/web")
PROGRAM = ROOT / "tests/targets/leaky.c"
WIDTH, HEIGHT = 120, 40
# When the moving one is taken, in seconds, the last when the leak is proven; half a second each.
TIMES_S = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 66, 72)
LAST_S = 1.0  # How much longer the last one is shown
CELL, LINE = 8.43, 17  # Pixels of a cell, in the font of 14 pixels
_EIGHTHS = "▁▂▃▄▅▆▇█"
_BACKGROUNDS = {"textual-dark": "#121212", "textual-light": "#e0e0e0"}
_LETTERS = {"textual-dark": "#e0e0e0", "textual-light": "#1f1f1f"}


CONSOLE = Console(width=WIDTH)


def sources_hash() -> str:
    """SHA-256 of the files that the pictures depend on: the screen, the page and the recording."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for directory in SOURCES:
        for path in sorted((ROOT / directory).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class Drawing:
    """Terminal screens as SVG, one after another; lines that they have in common are there once."""

    def __init__(self, theme: str) -> None:
        self._colours = _LETTERS[theme], _BACKGROUNDS[theme]
        self._lines: dict[str, str] = {}  # Identifiers by content
        self._classes: dict[str, str] = {}  # Names by style

    def _colour(self, colour: Color | None, usual: str) -> str:
        if colour is None or colour.is_default:
            return usual
        return colour.get_truecolor().hex

    def _line(self, ansi: str) -> str:
        """Returns the identifier of a line."""
        text = Text.from_ansi(ansi)
        cells = [
            (letter, text.get_style_at_offset(CONSOLE, n)) for n, letter in enumerate(text.plain)
        ]
        left, pieces = 0, []
        for (style, kind), run in groupby(cells, lambda cell: (cell[1], _kind(cell[0]))):
            letters = "".join(letter for letter, _ in run)
            pieces += self._run(letters, style, kind, left)
            left += cell_len(letters)
        content = "".join(pieces)
        return self._lines.setdefault(content, f"l{len(self._lines)}")

    def _run(self, letters: str, style: Style, kind: str, left: int) -> Iterator[str]:
        front, back = self._colour(style.color, self._colours[0]), self._colours[1]
        back = self._colour(style.bgcolor, back)
        if style.reverse:
            front, back = back, front
        x, width = round(left * CELL, 1), round(cell_len(letters) * CELL, 1)
        if back != self._colours[1]:
            yield f'<rect x="{x}" width="{width}" height="{LINE}" fill="{back}"/>'
        if kind in _EIGHTHS and kind:
            height = round(LINE * (_EIGHTHS.index(kind) + 1) / 8, 1)
            y = round(LINE - height, 1)
            yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{front}"/>'
        elif letters.strip():
            css = f"fill:{front}" + ";font-weight:bold" * bool(style.bold)
            css += ";font-style:italic" * bool(style.italic)
            css += ";text-decoration:underline" * bool(style.underline)
            css += ";opacity:.7" * bool(style.dim)
            name = self._classes.setdefault(css, f"c{len(self._classes)}")
            shown = escape(letters).replace(" ", "\u00a0")
            yield f'<text class="{name}" x="{x}" y="13" textLength="{width}">{shown}</text>'

    def svg(self, screens: Sequence[str], seconds: float) -> str:
        """Returns all screens, each of which is shown for some time; the last one for longer."""
        frames = []
        for number, screen in enumerate(screens):
            lines = [self._line(line) for line in screen.split("\n")[:HEIGHT]]
            uses = "".join(f'<use href="#{line}" y="{LINE * y}"/>' for y, line in enumerate(lines))
            frames.append(f'<g class="f" style="animation-delay:{number * seconds}s">{uses}</g>')
        css = "".join(f".{name}{{{style}}}" for style, name in self._classes.items())
        if len(screens) > 1:
            css += _moving(seconds, len(screens) * seconds + LAST_S)
        lines = "".join(f'<g id="{name}">{content}</g>' for content, name in self._lines.items())
        width, height = round(WIDTH * CELL + 16), HEIGHT * LINE + 16
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
            f"<style>text{{font:14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;"
            f"white-space:pre}}{css}</style><defs>{lines}</defs>"
            f'<rect width="{width}" height="{height}" rx="8" fill="{self._colours[1]}"/>'
            f'<g transform="translate(8 8)">{"".join(frames)}</g></svg>\n'
        )


def _moving(seconds: float, whole_s: float) -> str:
    """Returns the style of screens that are shown one after another; the last one for longer."""
    hidden, parts = (
        "visibility:hidden",
        [100 * each / whole_s for each in (seconds, seconds + LAST_S)],
    )
    steps = (
        f"@keyframes {name}{{0%{{visibility:visible}}{part:.4f}%{{{hidden}}}}}"
        for name, part in zip("fl", parts, strict=True)
    )
    return (
        f".f{{animation:f {whole_s}s infinite step-end;{hidden}}}{''.join(steps)}"
        ".f:last-of-type{animation-name:l}@media(prefers-reduced-motion:reduce)"
        "{.f{animation:none}.f:last-of-type{visibility:visible}}"
    )


def _kind(letter: str) -> str:
    return letter if letter in _EIGHTHS else ""


def shown(
    directory: Path, theme: str, command: Sequence[object], times_s: Sequence[float],
    last: str, keys: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Runs a command in a terminal. Returns what this shows at each of the times.

    ``last``: what the last one waits for; ``keys``: pressed at the beginning.
    """
    settings = directory / theme / "tracelloc"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "theme").write_text(f"{theme}\n")
    environment = {
        "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(settings.parent), "LANG": "C.UTF-8",
        "COLORTERM": "truecolor", "TERM": "xterm-256color",
    }  # fmt: skip
    size = {"width": WIDTH, "height": HEIGHT}
    with Terminal(command, directory, **size, environment=environment) as terminal:
        terminal.wait_for("events/s|watched")
        terminal.press(*keys)
        began_s, screens = time.monotonic(), []
        for at_s in times_s:
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            if at_s == times_s[-1]:
                terminal.wait_for(last)
            screens.append(terminal.colours())
    return screens


# In a PID namespace of their own, so that the list has no others.
_TOP = (
    "mount -t proc proc /proc; ./leaky 999 >/dev/null & python3 inference.py . VLLM::EngineCore "
    ">/dev/null & python3 pyleaks.py in_cache . >/dev/null & "
    "PATH={}:$PATH exec python -m tracelloc top --interval 2s"
)


def more_pictures(directory: Path, theme: str) -> dict[str, list[str]]:
    """Returns what the list of a machine's processes, and a program's objects, look like."""
    for name in ("inference.py", "pyleaks.py"):
        shutil.copy(ROOT / "tests/targets" / name, directory)
    flags = "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"
    for name, compiler in (("unbox.cpp", "g++"), ("pyleak.c", "gcc")):
        source = ROOT / "tests/targets" / name
        out = directory / f"{source.stem}.abi3.so"
        subprocess.run([compiler, *flags, source, "-o", out], check=True)
    python = sys.executable
    top = ("unshare", "--pid", "--fork", "--mount", "sh", "-c", _TOP.format(Path(python).parent))
    objects = (python, "-m", "tracelloc", "--", "/usr/bin/python3", "pyleaks.py", "in_cache", ".")
    return {
        "top.svg": shown(directory, theme, top, (75,), "EngineCore"),
        "objects.svg": shown(directory, theme, objects, (75,), "Request", keys=("O",)),
    }


def draw_page(path: Path, directory: Path) -> None:
    """Draws the flame graph's page as PNG: of pydoc's server, after it has served some pages."""
    page = directory / "pydoc.html"
    server = "/usr/bin/python3", "-m", "pydoc", "-b", "-n", "127.0.0.1", "-p", "0"
    with subprocess.Popen(
        (sys.executable, "-m", "tracelloc", "-o", page, "--", *server),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        address = program.stdout.readline().split()[-1]
        for module in ("asyncio", "json", "unittest", "email", "http.server", "decimal"):
            with urllib.request.urlopen(f"{address}{module}.html", timeout=60) as answer:
                answer.read()
        program.send_signal(signal.SIGUSR1)
        wait_until(page.exists)
        page = page.rename(directory / "served.html")  # The end writes it anew
        program.communicate("quit\n")
    with Chrome(directory / "browser", 1280, 700, scale=1.5) as chrome:
        chrome.open(page.as_uri())
        chrome.evaluate("page.select(page.tree.childrenOf(0)[0])")
        path.write_bytes(chrome.picture())


def main() -> int:
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
        program = Path(name, "leaky")
        flags = "-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"
        subprocess.run(["gcc", *flags, "-o", program, PROGRAM], check=True)
        command = sys.executable, "-m", "tracelloc", "--", program, 4 * TIMES_S[-1]
        asked = {
            theme: pool.submit(shown, Path(name), theme, command, TIMES_S, "LEAKING")
            for theme in _BACKGROUNDS
        }
        screens = {theme: each.result() for theme, each in asked.items()}
        others = more_pictures(Path(name), "textual-dark")
        draw_page(IMAGES / "flamegraph.png", Path(name))
    for file, taken in others.items():
        (IMAGES / file).write_text(Drawing("textual-dark").svg(taken, 0))
    for theme, file in zip(screens, ("live.svg", "live-light.svg"), strict=True):
        (IMAGES / file).write_text(Drawing(theme).svg(screens[theme][-1:], 0))
    (IMAGES / "minute.svg").write_text(Drawing("textual-dark").svg(screens["textual-dark"], 0.5))
    STATE.write_text(f"{sources_hash()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
