"""Draws the costs as bars: one SVG file, readable on light and dark ground."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from tests.bench import storm
from tests.bench.run import Results, slowdowns
from tests.bench.tables import LABELS
from tests.bench.tools import TOOLS

WIDTH_PX = 860
LABEL_PX = 270
BARS_PX = 480
BAR_PX = 16
ROW_PX = 22
PANEL_GAP_PX = 46
NOTE = (
    "logarithmic axes; medians of {} interleaved rounds; "
    "heaptrack (from the start) and massif start the program, the others attach to it"
)
OWN = ("tracelloc", "tracelloc-fp", "tracelloc-perf")
BOUNDS = ("untraced", "entry-probes", "floor")

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.head { font-size: 16px; font-weight: 600; }
.small { font-size: 11px; fill: #59636e; }
.axis { stroke: #d1d9e0; }
.peer { fill: #8c959f; }
.bound { fill: #c4ccd4; }
.own { fill: #0969da; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .small { fill: #9198a1; }
  .axis { stroke: #3d444d; }
  .peer { fill: #767e88; }
  .bound { fill: #454c55; }
  .own { fill: #4493f8; }
}
"""


@dataclass(frozen=True)
class Bar:
    """One bar; ``text`` stands at its end."""

    name: str
    value: float
    text: str

    @property
    def style(self) -> str:
        """Whose it is."""
        return "own" if self.name in OWN else "bound" if self.name in BOUNDS else "peer"


@dataclass(frozen=True)
class Panel:
    """Bars on one logarithmic axis."""

    title: str
    bars: list[Bar]
    low: float
    unit: str  # Behind the numbers of the axis


def _ns_text(value_ns: float) -> str:
    if value_ns >= 1000:
        return f"{value_ns / 1000:.3g} µs"
    return f"{value_ns:.3g} ns"


def _panels(results: Results) -> list[Panel]:
    panels = []
    for case, by_tool in results.storm.items():
        if case.live_blocks_per_thread:
            continue
        costs = [
            (tool.name, storm.median(by_tool[tool.name]).ns_per_pair)
            for tool in TOOLS
            if tool.name in by_tool
        ]
        title = f"malloc and free together, per thread: {case.title}"
        panels.append(Panel(title, [Bar(n, v, _ns_text(v)) for n, v in costs], 1.0, "ns"))
    rows = [row for row in slowdowns(results) if row["slowdown_ratio"] is not None]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        bars = [
            Bar(row["tool"], row["slowdown_ratio"], f"{row['slowdown_ratio']:.3g} ×")
            for row in rows
            if row["workload"] == workload and row["tool"] != "untraced"
        ]
        panels.append(Panel(f"{workload}: times slower than untraced", bars, 0.5, "×"))
    return [panel for panel in panels if panel.bars]


def _draw(panel: Panel, top: int) -> Iterator[str]:
    """The panel's elements, its title at ``top``."""
    decades = math.log10(max(bar.value for bar in panel.bars) / panel.low)
    high = panel.low * 10 ** max(1.0, decades)

    def x(value: float) -> float:
        share = math.log(max(value, panel.low) / panel.low) / math.log(high / panel.low)
        return LABEL_PX + share * BARS_PX

    bottom = top + 14 + ROW_PX * len(panel.bars)
    yield f'<text class="title" x="16" y="{top}">{escape(panel.title)}</text>'
    tick = 10.0 ** math.ceil(math.log10(panel.low))
    while tick <= high:
        yield (
            f'<line class="axis" x1="{x(tick):.1f}" x2="{x(tick):.1f}" '
            f'y1="{top + 8}" y2="{bottom}"/>'
            f'<text class="small" text-anchor="middle" x="{x(tick):.1f}" '
            f'y="{bottom + 13}">{tick:,.0f} {panel.unit}</text>'
        )
        tick *= 10
    for number, bar in enumerate(panel.bars):
        y = top + 12 + ROW_PX * number
        length_px = max(1.5, x(bar.value) - LABEL_PX)
        yield (
            f'<text text-anchor="end" x="{LABEL_PX - 8}" y="{y + 13}">'
            f"{escape(LABELS[bar.name])}</text>"
            f'<rect class="{bar.style}" x="{LABEL_PX}" y="{y}" rx="2" '
            f'width="{length_px:.1f}" height="{BAR_PX}"/>'
            f'<text x="{LABEL_PX + length_px + 6:.1f}" y="{y + 13}">{escape(bar.text)}</text>'
        )


def svg(results: Results) -> str:
    """The picture."""
    elements = [
        '<text class="head" x="16" y="28">What tracing costs the traced program</text>',
        f'<text class="small" x="16" y="46">{escape(NOTE.format(results.plan.rounds))}</text>',
    ]
    top = 80
    for panel in _panels(results):
        elements.extend(_draw(panel, top))
        top += ROW_PX * len(panel.bars) + PANEL_GAP_PX + 14
    height_px = top - 20
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{height_px}" '
        f'viewBox="0 0 {WIDTH_PX} {height_px}" role="img" '
        f'aria-label="Bars: cost of tracing by tool">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )
