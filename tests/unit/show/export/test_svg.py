"""The flame graph as a picture: well-formed, right in its widths, alive in a browser."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.chrome import Chrome
from tests.unit.profiles import HOSTILE, hostile, large, profile, small
from tracelloc.show.export import EXPORTERS
from tracelloc.show.presentation.combined import difference
from tracelloc.show.presentation.profile import Metric, Profile
from tracelloc.text import printable

SVG = "{http://www.w3.org/2000/svg}"


def written(found: Profile, metric: Metric = Metric.BYTES) -> bytes:
    return b"".join(EXPORTERS[".svg"].write(found, metric))


def frames(content: bytes) -> dict[str, ET.Element]:
    group = ET.fromstring(content).find(f"{SVG}g")
    return {frame.attrib["data-name"]: frame for frame in group}


def width(frame: ET.Element) -> float:
    return float(frame.attrib["data-w"])


def test_widths_and_tooltips() -> None:
    found = frames(written(small()))
    assert width(found["all"]) == 1
    assert width(found["handle"]) == pytest.approx(400 / 716)
    assert width(found["[runtime]"]) == pytest.approx(300 / 716)
    assert "temporary" not in found
    assert found["push"].find(f"{SVG}title").text == "push\n/opt/shop/server\n400 B, 55.87 %"
    found = frames(written(small(), Metric.ALLOCATED))
    assert width(found["temporary"]) == pytest.approx(5000 / 6316)
    content = written(large(2000)).decode()
    assert "frames too narrow to draw" in content
    assert len(content) < 8 << 20


@pytest.mark.parametrize("found", [profile([]), hostile(), difference(small(), large(20))])
def test_always_well_formed(found: Profile) -> None:
    for metric in Metric:
        ET.fromstring(written(found, metric))


@pytest.mark.long
def test_names_stay_names(chrome: Chrome, tmp_path: Path) -> None:
    content = written(hostile())
    assert set(map(printable, HOSTILE)) <= {" ".join(n.split(" ")) for n in frames(content)}
    path = tmp_path / "a.svg"
    path.write_bytes(content)
    chrome.open(path.as_uri())
    assert chrome.troubles == [path.as_uri()]
    assert chrome.evaluate("window.hacked") is None
    assert chrome.evaluate("document.querySelectorAll('script').length") == 1


@pytest.mark.long
def test_zoom_and_search(chrome: Chrome, tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    path.write_bytes(written(small()))
    chrome.open(path.as_uri())
    at = chrome.evaluate(
        "(() => { const box = [...document.querySelectorAll('#frames g')].find(g =>"
        "g.dataset.name === 'handle').getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    chrome.mouse(*at, click=True)
    shown = chrome.evaluate(
        "[...document.querySelectorAll('#frames g')].filter(g => g.style.display !== 'none')"
        ".map(g => [g.dataset.name, Math.round(g.querySelector('rect').width.baseVal.value)])"
    )
    assert {name for name, _ in shown} == {"all", "server", "main", "handle", "push", "grow"}
    assert {width for _, width in shown} == {1179}
    # Whoever searches is asked for the words.
    chrome.evaluate("window.prompt = () => 'push|grow|main'")
    chrome.key("/")
    assert chrome.evaluate("result.textContent") == "97.8 % in 3 frames"
