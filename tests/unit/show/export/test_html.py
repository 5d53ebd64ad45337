"""The flame graph page in a real browser."""

import json
import re
from pathlib import Path

import pytest

from tests.chrome import Chrome
from tests.harness import wait_until
from tests.unit.leaks import watched
from tests.unit.profiles import HOSTILE, frame, hostile, large, peaked, profile, sample, small
from tracelloc.show.export import EXPORTERS, flamegraph
from tracelloc.show.presentation.combined import difference, profile_of
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.text import format_size, printable

pytestmark = pytest.mark.long


def open_page(
    chrome: Chrome, tmp_path: Path, found: Profile, metric: Metric = Metric.BYTES
) -> float:
    path = tmp_path / "page.html"
    path.write_bytes(b"".join(EXPORTERS[".html"].write(found, metric)))
    seconds = chrome.open(path.as_uri())
    # Nothing but the page itself was asked for, and it had nothing to complain about.
    assert chrome.troubles == [path.as_uri()]
    return seconds


def text(chrome: Chrome, selector: str) -> str:
    found: str = chrome.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    return found


def box(chrome: Chrome, name: str) -> dict[str, float] | None:
    """Where a frame is drawn, in the window; None if it is not."""
    found: dict[str, float] | None = chrome.evaluate(
        "(() => { const at = document.getElementById('canvas').getBoundingClientRect();"
        "const { rows, view } = page.picture; for (let depth = 0; depth < rows.length; depth++)"
        "for (const box of rows[depth]) if (!box.rest && view.tree.nameOf(box.node) === "
        f"{json.dumps(name)}) return {{ x: at.x + box.x + box.width / 2, width: box.width,"
        "y: at.y + ((view.flipped ? rows.length - 1 - depth : depth) + 0.5) * ROW,"
        "node: box.node }; return null; })()"
    )
    return found


def place(chrome: Chrome, name: str) -> dict[str, float]:
    found = box(chrome, name)
    assert found is not None, name
    return found


def point(chrome: Chrome, name: str, *, click: bool = False) -> dict[str, float]:
    """Moves the mouse to a frame. Returns where that is."""
    at = place(chrome, name)
    chrome.mouse(at["x"], at["y"], click=click)
    return at


def pixel(chrome: Chrome, name: str) -> list[int]:
    """The colour of a frame's left end."""
    found = place(chrome, name)
    left = found["x"] - found["width"] / 2 + 3
    colour: list[int] = chrome.evaluate(
        "(() => { const at = document.getElementById('canvas').getBoundingClientRect();"
        "return [...document.getElementById('canvas').getContext('2d').getImageData("
        f"{left} - at.x, {found['y']} - at.y - 6, 1, 1).data]; }})()"
    )
    return colour


def figures(chrome: Chrome) -> dict[str, list[str]]:
    rows: list[list[str]] = chrome.evaluate(
        "[...document.querySelectorAll('#figures tr')].map(row =>"
        "[...row.cells].map(cell => cell.textContent))"
    )
    return {name: rest for name, *rest in rows}


def test_hover_shows_figures_and_the_whole_stack(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, small())
    assert text(chrome, "#title") == "server process 42"
    assert "716 B live" in text(chrome, "#subtitle")
    assert "12 unmatched frees" in text(chrome, "#notes")
    point(chrome, "push")
    assert text(chrome, "#name") == "push"
    assert text(chrome, "#where") == "src/push.cpp:7 in server"
    stack = chrome.evaluate("[...document.querySelectorAll('#stack li')].map(li => li.innerText)")
    assert [entry.split("\n")[0] for entry in stack] == ["handle", "main", "server"]
    found = figures(chrome)
    assert found["live"] == ["400 B", "55.9 %"]
    assert found["live blocks"] == ["2", "50.0 %"]
    assert found["allocated"] == ["1000 B", "15.8 %"]
    assert found["growth"] == ["60 B/min", "100 %"]


def test_zoom_by_click_and_keys(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, small())
    whole = place(chrome, "all")["width"]
    at = point(chrome, "handle", click=True)
    assert at["width"] == pytest.approx(whole * 400 / 716, abs=0.5)
    assert place(chrome, "handle")["width"] == pytest.approx(whole, abs=0.5)
    assert box(chrome, "[runtime]") is None
    assert text(chrome, "#crumbs").split("\n") == [
        "all", "›", "server", "›", "main", "›", "handle",
    ]  # fmt: skip
    chrome.mouse(1, 1)
    chrome.key("Backspace")
    assert box(chrome, "[runtime]") is not None
    chrome.key("Escape")
    assert place(chrome, "[no call stack]")["width"] == pytest.approx(whole * 16 / 716, abs=0.5)
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        chrome.key(key)
    assert place(chrome, "[runtime]")["width"] == pytest.approx(whole, abs=0.5)


def test_search(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, small())
    plain = pixel(chrome, "push")
    chrome.key("/")
    chrome.type("PUSH")
    assert text(chrome, "#share") == "55.9 % · 400 B · 1 frame"
    assert pixel(chrome, "push") != plain
    chrome.key("Escape")
    assert text(chrome, "#share") == ""
    assert pixel(chrome, "push") == plain
    chrome.key("/")
    # Frames within what was found already are not counted again.
    chrome.type("/^(main|push|runtime|.*no call.*)$/")
    assert text(chrome, "#share") == "100 % · 716 B · 3 frames"
    chrome.evaluate("document.getElementById('search').select()")
    chrome.type("/(/")
    assert text(chrome, "#share") == "not a regular expression"
    open_page(chrome, tmp_path, small())
    chrome.key("/")
    chrome.type("libstore")
    assert text(chrome, "#share") == "41.9 % · 300 B · 1 frame"


def test_metrics_inverted_flipped_and_growth(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, small())
    whole = place(chrome, "all")["width"]
    assert box(chrome, "temporary") is None
    chrome.key("m")
    assert "4 live blocks" in text(chrome, "#subtitle")
    chrome.key("m")
    assert place(chrome, "temporary")["width"] == pytest.approx(whole * 5000 / 6316, abs=0.5)
    for _ in range(2):
        chrome.key("m")
    top = place(chrome, "all")["y"]
    assert place(chrome, "grow")["y"] > top
    chrome.key("f")
    assert place(chrome, "grow")["y"] < place(chrome, "all")["y"]
    chrome.key("f")
    chrome.key("i")
    at = place(chrome, "grow")
    assert at["y"] == top + 20, "what allocates comes first"
    assert at["width"] == pytest.approx(whole * 400 / 716, abs=0.5)
    assert chrome.evaluate("page.tree.totals.map(t => t[0])") == [716, 4, 6316, 60]
    chrome.key("i")
    chrome.mouse(1, 1)
    by_file = pixel(chrome, "handle")
    chrome.key("c")
    red, _, blue, _ = pixel(chrome, "handle")
    assert pixel(chrome, "handle") != by_file
    assert red > blue + 40, "what grew is red"
    red, _, blue, _ = pixel(chrome, "[runtime]")
    assert blue > red, "what shrank is blue"


METRICS = "[...document.querySelectorAll('#metrics button')].map(button => button.innerText)"


def test_peak_and_temporary_allocations(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, small())
    assert chrome.evaluate(METRICS) == ["Bytes", "Blocks", "Allocated", "Growth"]
    open_page(chrome, tmp_path, peaked(), metric=Metric.PEAK)
    assert chrome.evaluate(METRICS) == [
        "Bytes", "Blocks", "Allocated", "Growth", "Peak", "Temporary",
    ]  # fmt: skip
    assert "4.54 KiB live at the peak" in text(chrome, "#subtitle")
    whole = place(chrome, "all")["width"]
    assert point(chrome, "temporary")["width"] == pytest.approx(whole * 4000 / 4650, abs=0.5)
    found = figures(chrome)
    assert found["live at the peak"] == ["3.91 KiB", "86.0 %"]
    assert found["temporary allocations"] == ["6", "100 %"]
    chrome.mouse(1, 1)
    chrome.key("m")
    assert place(chrome, "temporary")["width"] == pytest.approx(whole, abs=0.5)
    # What is shown stays when newer figures have other widths.
    chrome.evaluate(
        "page.load({...page.data, metrics: page.data.metrics.filter(m => m.key !== 'peak')}),"
        "page.refresh()"
    )
    assert "6 temporary allocations" in text(chrome, "#subtitle")


def test_themes_and_print(chrome: Chrome, tmp_path: Path) -> None:
    try:
        for name, dark in (("dark", True), ("light", False)):
            chrome.theme(name)
            open_page(chrome, tmp_path, small())
            shade = chrome.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", shade)[:3])) < 200) == dark
        chrome.key("t")
        assert chrome.evaluate("document.documentElement.dataset.theme") == "dark"
    finally:
        chrome.theme("light")
    assert chrome.print().startswith(b"%PDF")


def test_difference_is_coloured_by_growth(chrome: Chrome, tmp_path: Path) -> None:
    main = frame("main")
    before = profile([sample(1, [frame("a"), main], (100, 1, 100, 1, 0)),
                      sample(2, [frame("b"), main], (300, 1, 300, 1, 0))])  # fmt: skip
    after = profile([sample(1, [frame("a"), main], (400, 1, 100, 1, 0)),
                     sample(2, [frame("b"), main], (200, 1, 300, 1, 0)),
                     sample(3, [frame("c"), main], (50, 1, 50, 1, 0))])  # fmt: skip
    open_page(chrome, tmp_path, difference(before, after))
    at = point(chrome, "a")
    assert at["width"] == pytest.approx(place(chrome, "all")["width"] * 400 / 650, abs=0.5)
    assert figures(chrome)["change"][0] == "+300 B"
    chrome.mouse(1, 1)
    assert pixel(chrome, "a")[0] > pixel(chrome, "a")[2]
    assert pixel(chrome, "b")[0] < pixel(chrome, "b")[2]
    for _ in range(2):
        chrome.key("m")
    assert box(chrome, "a") is None
    assert "100 B less than before" in text(chrome, "#subtitle")


def test_names_stay_names(chrome: Chrome, tmp_path: Path) -> None:
    open_page(chrome, tmp_path, hostile())
    for word in ("script", "img", "svg"):
        chrome.key("/")
        chrome.type(word)
        for key in ("Enter", "n", "Enter", "Escape"):
            chrome.key(key)
    chrome.key("Escape")
    shown = []
    for name in map(printable, HOSTILE):
        point(chrome, name, click=True)
        shown.append(text(chrome, "#name"))
        chrome.mouse(1, 1)
        chrome.key("ArrowDown")
        assert len(text(chrome, "#stack")) > 0, "its caller has the same name"
        made = "#crumbs :not(button, i), #stack :not(li, small), #name *, #where *, img, main svg"
        assert chrome.evaluate(f"document.querySelectorAll('{made}').length") == 0
        chrome.key("Escape")
    # White space is the browser's to fold.
    assert [" ".join(s.split()) for s in shown] == [
        " ".join(printable(name).split()) for name in HOSTILE
    ]
    assert chrome.evaluate("window.hacked") is None
    assert chrome.evaluate("document.querySelectorAll('script').length") == 2
    assert chrome.evaluate("document.querySelectorAll('img, svg, main b').length") == 0
    assert "<script>" in chrome.evaluate("document.title")


def test_the_policy_stops_what_gets_in(chrome: Chrome, tmp_path: Path) -> None:
    content = b"".join(EXPORTERS[".html"].write(small(), Metric.BYTES))
    path = tmp_path / "broken.html"
    attack = b"<script>window.hacked=1</script><img src=x onerror=window.hacked=2></main>"
    path.write_bytes(content.replace(b"</main>", attack, 1))
    chrome.open(path.as_uri())
    assert chrome.evaluate("window.hacked") is None
    assert chrome.evaluate("page.tree.size") > 5


@pytest.mark.parametrize("most_plain_bytes", [1 << 20, 0], ids=["plain", "compressed"])
def test_thirty_thousand_frames(
    chrome: Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_plain_bytes: int
) -> None:
    monkeypatch.setattr(flamegraph, "_MOST_PLAIN_BYTES", most_plain_bytes)
    found = large(1600)
    seconds = [open_page(chrome, tmp_path, found) for _ in range(2)]
    wait_until(lambda: chrome.evaluate("page !== undefined"))
    live_bytes = sum(sample.stat.live_bytes for sample in found.samples)
    assert f"{format_size(live_bytes)} live" in text(chrome, "#subtitle")
    assert chrome.evaluate("page.tree.size") >= 30_000
    assert min(seconds) <= 2, seconds
    took = chrome.evaluate("(() => { const t = performance.now(); page.setInverted(true);"
                           "return performance.now() - t; })()")  # fmt: skip
    assert took <= 2000


def test_suspects_stand_above_and_lead_to_their_frames(chrome: Chrome, tmp_path: Path) -> None:
    hostile_name = "<img src=x onerror=window.hacked=1>"
    found = watched(200.0, hostile_name)
    open_page(chrome, tmp_path, profile_of(found.snapshot(), found.namer))
    buttons = "[...document.querySelectorAll('#suspects button')]"
    shown = chrome.evaluate(f"{buttons}.map(button => button.innerText)")
    assert [entry.split(" leaking ")[0].split(" growing ")[0] for entry in shown] == [
        hostile_name, "session_new",
    ]  # fmt: skip
    assert "evidence:" in shown[0]
    assert "sum of 12 stacks that share session_new" in shown[1]
    chrome.key("i")
    chrome.evaluate(f"{buttons}[0].click()")
    assert text(chrome, "#crumbs").split("\n")[-1] == hostile_name
    chrome.evaluate(f"{buttons}[1].click()")
    assert "12 frames" in text(chrome, "#share")
    assert chrome.evaluate("window.hacked") is None
    assert chrome.evaluate("document.querySelectorAll('#suspects img').length") == 0
