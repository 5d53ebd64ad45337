"""No two figures of one screen contradict each other, over recorded runs of real programs."""

import re
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.corpus.recorded import FOLDER, Recording
from tests.ui.source import APP, START_NS, FakeSource, shop
from tracelloc.model.verdicts import CODE_OF, Verdict
from tracelloc.text import NS_PER_S, format_size
from tracelloc.ui.groups import GroupKey
from tracelloc.ui.header import head_text
from tracelloc.ui.picture import Picture, Pictures
from tracelloc.ui.stackviews import STACKS, verdict_reasons, verdict_text
from tracelloc.ui.tableview import TableRows
from tracelloc.ui.view import Journal, Settings
from tracelloc.verdict.findings import without_falling

SECONDS = 240
EVERY_S = 8  # Snapshots are not taken when verdicts are made, which is every five seconds
QUICK = {"sawtooth", "callers", "churn"}
RECORDINGS = [
    pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.long, id=path.stem)
    for path in sorted(FOLDER.glob("*.npz"))
]
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SUSPICIOUS = ("LEAKING", "growing")


def replayed(path: Path, directory: Path) -> Iterator[FakeSource]:
    """A recorded run, at each moment when a snapshot is taken."""
    recording = Recording.load(path)
    stacks = {
        number: [(name.partition("+")[0], APP, None, None) for name in stack.split("/")]
        for number, stack in enumerate(recording.stacks, 1)
    }
    source = FakeSource(stacks, directory)  # type: ignore[arg-type]
    events = recording.events()
    for second in range(1, SECONDS + 1):
        end = np.searchsorted(events["time_ns"], START_NS + second * NS_PER_S)
        source.table.apply(events[:end])
        events = events[end:]
        source.pass_second()
        if second % EVERY_S == 0:
            yield source


def size_of(text: str) -> float:
    """``+1.50 MiB`` in bytes."""
    found = re.search(r"([+-]?[\d.]+) ([KMG]?i?B)\b", text)
    assert found is not None, text
    return float(found[1]) * UNITS[found[2]]


class Shown:
    """The screen of one moment, as text."""

    def __init__(self, pictures: Pictures, settings: Settings) -> None:
        self.trace = pictures.take_snapshot(settings)
        self.picture = pictures.make(self.trace, settings)
        self._pictures = pictures
        rows = self.picture.content
        assert isinstance(rows, TableRows)
        self.rows = {key: {c: str(rows.cells(key, c)) for c in COLUMNS} for key in rows.order}

    def header(self, source: FakeSource) -> str:
        return head_text(self.picture, source.facts, "", 200, 2).plain

    def selected(self, key: Hashable) -> Picture:
        stack = key.stack if isinstance(key, GroupKey) else key
        assert isinstance(stack, int)
        return self._pictures.make(self.trace, replace(self.picture.settings, selected=stack))


COLUMNS = ("bytes", "growth", "verdict")


@pytest.mark.parametrize("path", RECORDINGS)
def test_figures_agree(path: Path, tmp_path: Path) -> None:
    pictures = None
    for source in replayed(path, tmp_path):
        pictures = pictures or Pictures(source, Journal())
        shown = Shown(pictures, Settings(STACKS))
        suspects = {k: row for k, row in shown.rows.items() if row["verdict"] in SUSPICIOUS}
        for key, row in suspects.items():
            assert "▼" not in row["growth"], (source.now_ns, key, row)
            details = shown.selected(key).details
            group = key if isinstance(key, GroupKey) else None
            pane = verdict_text(details, shown.picture.snapshot, group)
            if details.suspect is not None:
                rate = row["growth"].lstrip("+").rpartition(" ")[0]
                assert f"{row['verdict'].lower()} {rate}/min" in pane.plain
            assert pane.plain.removeprefix("probably ").startswith(row["verdict"].lower())
        _compare_header(shown.header(source), suspects)
        for key in list(shown.rows)[:3]:
            details = shown.selected(key).details
            assert details is not None
            # Reasons are some seconds old: what is live now, rows say.
            assert not re.search(r"B live\b", " ".join(verdict_reasons(details)))


def _compare_header(text: str, suspects: dict[Hashable, dict[str, str]]) -> None:
    found = re.search(r"(\d+) (leak|growing)s?, ~?([^/]*)/min", text)
    for word in SUSPICIOUS:
        rates = [size_of(row["growth"]) for row in suspects.values() if row["verdict"] == word]
        if rates:
            assert found is not None, text
            assert (int(found[1]), found[2]) == (
                len(rates),
                word.lower().removesuffix("ing") if word == "LEAKING" else word,
            )
            assert size_of(found[3]) == pytest.approx(sum(rates), rel=0.01)
            return
    assert found is None


def test_what_falls_is_not_growing(tmp_path: Path) -> None:
    """The verdict is older than the fall."""
    source = shop(tmp_path)
    findings = source.findings
    (suspect,) = findings.suspects
    assert suspect.judgement.verdict is Verdict.GROWING
    stack = suspect.stack
    live = source.table.totals.live_bytes.copy()
    growth = np.zeros_like(live)
    assert without_falling(findings, growth, live) is findings
    growth[stack] = -live[stack] // 3
    assert without_falling(findings, growth, live) is findings
    growth[stack] -= 1
    fallen = without_falling(findings, growth, live)
    assert fallen.suspects == ()
    assert fallen.suspect_of == {}
    assert fallen.codes[stack] == CODE_OF[Verdict.DECIDING]
    # A stack that is younger than a minute has grown within the minute, whatever it lost.
    growth[stack] = live[stack] = int(0.75 * findings.sites.alive_bytes[stack])
    assert without_falling(findings, growth, live) is findings
    live[stack] -= 1
    assert without_falling(findings, growth, live).suspects == ()
    # Its parent or child has used more stacks since.
    known = stack + 1
    assert known < len(findings.codes)
    assert without_falling(findings, growth[:known], live[:known]).suspects == ()


def test_a_fall_is_on_the_screen_at_once(tmp_path: Path) -> None:
    source = shop(tmp_path)
    pictures = Pictures(source, Journal())
    assert next(iter(Shown(pictures, Settings(STACKS)).rows.values()))["verdict"] == "growing"
    blocks = source.table.blocks()
    for address in blocks.address[blocks.size == 160][: 12 * 160].tolist():
        source.free(address)
    source.now_ns += NS_PER_S
    shown = Shown(pictures, Settings(STACKS))
    assert "growing" not in shown.header(source)
    (row,) = (row for row in shown.rows.values() if row["bytes"] == format_size(75 << 10))
    assert row == {"bytes": "75.0 KiB", "growth": row["growth"], "verdict": "deciding"}
    assert row["growth"].endswith("▼")
    details = shown.selected(1).details
    assert details is not None
    assert (
        verdict_reasons(details)[0]
        == "live bytes fell within the last minute, after they had been rising"
    )
