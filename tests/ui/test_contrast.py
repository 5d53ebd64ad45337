"""Everything can be read, in every theme and without colours."""

import os
import termios
import tty
from pathlib import Path

import pytest
from rich.segment import Segment
from textual._ansi_theme import MONOKAI
from textual.color import Color
from textual.filter import LineFilter
from textual.pilot import Pilot
from textual.theme import BUILTIN_THEMES

from tests.ui.source import drive, press, shop
from tracelloc.ui import driver
from tracelloc.ui.app import LiveApp

pytestmark = pytest.mark.long

THEMES = [name for name in BUILTIN_THEMES if not name.startswith("ansi")]
ANSI = [name for name in BUILTIN_THEMES if name.startswith("ansi")]
SCREENS = ("1", "3", "4", "6", "question_mark", "enter")


class Collector(LineFilter):
    """Keeps what the filters before it leave."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, float]] = set()
        self.segments: list[Segment] = []

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        for text, style, _ in segments:
            front = None if style is None else style.color
            if front is None or front.triplet is None or not any(map(str.isalnum, text)):
                continue
            back = style.bgcolor
            behind = background.rgb if back is None or back.triplet is None else tuple(back.triplet)
            self.seen.add((text, driver.contrast(tuple(front.triplet), behind)))
        self.segments += segments
        return segments


def look(directory: Path, theme: str) -> Collector:
    """What all kinds of screens draw."""
    found = Collector()

    async def steps(app: LiveApp, pilot: Pilot[int]) -> None:
        app.theme = theme
        app._filters.append(found)
        for key in SCREENS:
            await press(app, pilot, key)
            app.screen.refresh(layout=True)
            await pilot.pause()
            await press(app, pilot, *(["escape"] if key == "question_mark" else []))

    drive(shop(directory), steps, (100, 40))
    return found


@pytest.mark.parametrize("theme", [*THEMES, None])
def test_text_is_seen(tmp_path: Path, theme: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if theme is None:
        monkeypatch.setenv("NO_COLOR", "1")
    seen = look(tmp_path, theme or "textual-dark").seen
    assert theme is None or len(seen) > 100
    # Rounded colours may miss it by a hair.
    assert [(text, ratio) for text, ratio in seen if ratio < driver.LEAST - 0.05] == []


@pytest.mark.parametrize("theme", ANSI)
def test_with_the_terminals_colours_what_is_chosen_is_reversed(tmp_path: Path, theme: str) -> None:
    segments = look(tmp_path, theme).segments
    marked = {text for text, style, _ in segments if style is not None and style.reverse}
    assert " 1 Stacks " in marked
    assert any("record_request" in text for text in marked)


def test_contrast_themes_and_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert driver.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert driver.contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
    assert driver.luminance((255, 0, 0)) == pytest.approx(0.2126)
    assert driver.readable((59, 59, 59), (30, 30, 30)) != (59, 59, 59)
    for behind in ((30, 30, 30), (128, 128, 128), (250, 240, 230), (0, 0, 255)):
        for front in ((59, 59, 59), (255, 0, 0), (0, 128, 0), behind):
            assert driver.contrast(driver.readable(front, behind), behind) >= driver.LEAST
    assert driver.wants_ascii({"LANG": "C"})
    assert not driver.wants_ascii({"LANG": "C", "LC_ALL": "en_US.UTF-8"})
    assert not driver.wants_ascii({})
    assert "│█▲ 漢 é".translate(driver.ASCII) == "|#^ ?? ?"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert driver.first_theme(os.open(os.devnull, os.O_RDONLY), BUILTIN_THEMES) == "textual-dark"
    driver.keep_theme("nord")
    assert driver.first_theme(-1, BUILTIN_THEMES) == "nord"


@pytest.mark.parametrize("theme", THEMES)
def test_one_red(theme: str) -> None:
    shades = BUILTIN_THEMES[theme].to_color_system().generate()
    found = driver.signal_colours(BUILTIN_THEMES[theme], MONOKAI)
    assert tuple(found.ansi_colors[1]) == Color.parse(shades["text-error"]).rgb


@pytest.mark.parametrize(
    ("answer", "light"),
    [(b"\x1b]11;rgb:ffff/fafa/f0f0\x1b\\\x1b[?62c", True), (b"\x1b[?62;4c", False),
     (b"\x1b]11;rgb:12/12/12\x07\x1b[?1c", False)],
)  # fmt: skip
def test_the_terminals_background(answer: bytes, light: bool) -> None:
    its, ours = os.openpty()
    try:
        tty.setraw(ours)  # no echo
        before = termios.tcgetattr(ours)
        os.write(its, answer)
        assert driver.is_light(ours) is light
        assert os.read(its, 64).endswith(b"\x1b]11;?\x1b\\\x1b[c")
        assert termios.tcgetattr(ours) == before
    finally:
        os.close(its)
        os.close(ours)
