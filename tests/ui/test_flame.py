"""The icicle: boxes add up, keys and mouse walk."""

import itertools
import random

import pytest
from textual.pilot import Pilot

from tests.ui.screens import (
    ViewApp,
    build_tree,
    harmless,
    on_screen,
    path,
    sample_tree,
    text_of,
    weights,
)
from tracelloc.show.presentation.calltree import CallTree, Step
from tracelloc.show.presentation.profile import Metric
from tracelloc.ui.flame import FlameView
from tracelloc.ui.nodes import ROOT, Nodes, growth_colour, lay_out, module_colour
from tracelloc.ui.stacknames import Search


def name_of(view: FlameView, node: int | None = None) -> str:
    """Of the selected box, or another one."""
    return view._data.tree.steps[view.selected if node is None else node].name


def random_tree(seed: int, stacks: int = 400, growth: int = 0) -> CallTree:
    rng = random.Random(seed)
    return build_tree(
        [
            (n, path(*(rng.choice("abcdef") for _ in range(rng.randrange(1, 12)))),
             weights(int(rng.paretovariate(0.7)), 1, rng.randrange(-growth, growth + 1)))
            for n in range(stacks)
        ],
        Step("app", None),
    )  # fmt: skip


@pytest.mark.parametrize("width", [1, 7, 80, 400])
def test_every_cell_of_a_line_is_someones_or_its_parents_own(width: int) -> None:
    for seed in range(5):
        nodes = Nodes(random_tree(seed))
        levels = lay_out(nodes, ROOT, width)
        whole = nodes.weight(ROOT)
        places = {box.node: box for level in levels for box in level.boxes}
        assert (places[ROOT].left, places[ROOT].end) == (0, width)
        for level in levels[1:]:
            ends = sorted([(b.left, b.end) for b in level.boxes] + level.small)
            assert all(end <= left for (_, end), (left, _) in itertools.pairwise(ends))
            for box in level.boxes:
                parent = places[nodes.parent(box.node)]
                assert parent.left <= box.left < box.end <= parent.end
                exact = nodes.weight(box.node) * width / whole
                assert abs(box.end - box.left - exact) < 1
        # What has a cell of its own is shown; what hasn't is no box.
        for node in range(len(nodes)):
            assert (node in places) == (nodes.weight(node) * width >= whole)


def test_boxes_of_exact_weights() -> None:
    stacks = [(n, path(f"f{n}"), weights(10, 1, 0)) for n in range(4)]
    level = lay_out(Nodes(build_tree(stacks, Step("app", None))), ROOT, 4)[1]
    assert [(box.left, box.end) for box in level.boxes] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert not level.small
    nodes = Nodes(random_tree(1))
    child = nodes.children(nodes.children(ROOT)[0])[0]
    levels = lay_out(nodes, child, 50)
    for level in levels[:3]:
        assert [(box.left, box.end) for box in level.boxes] == [(0, 50)]
    assert levels[2].boxes[0].node == child
    nodes = Nodes(random_tree(2, growth=100), Metric.GROWTH)
    own = nodes.tree.own[Metric.GROWTH].clip(0)
    assert nodes.weight(ROOT) == own.sum()
    for node in range(len(nodes)):
        below = sum(nodes.weight(child) for child in nodes.children(node))
        assert nodes.weight(node) == own[node] + below
        assert nodes.below(node) == below


def test_searches_and_colours() -> None:
    tree = build_tree(
        [
            (1, path("f", "g", "f"), weights(10, 1, 0)),
            (2, path("f"), weights(5, 1, 0)),
            (3, path("g", "h"), weights(100, 1, 0)),
            (4, path("h", "f"), weights(1000, 1, 0)),
        ],
        Step("app", None),
    )
    nodes = Nodes(tree, search=Search("^f$"))
    assert len(nodes.matches) == 3
    assert nodes.matching == 10 + 5 + 1000

    def found(text: str, name: str) -> bool:
        return Search(text).matches(name)

    assert found("vec.*push", "Vec<T>::push")
    assert not found("VEC", "Vec<T>::push")
    assert found("operator[", "std::map::operator[](int)")
    of_two_files = [(n, path(f"f!{n}"), weights(1, 1, 0)) for n in (1, 2)]
    assert len(build_tree(of_two_files, Step("app", None))) == 3
    assert module_colour("/a/libfoo.so", 6) == module_colour("/b/libfoo.so", 6)
    assert 0 <= module_colour(None, 6) < 6
    assert [growth_colour(g, 100) for g in (-1, 0, 9, 10)] == [0, 1, 2, 3]


@on_screen(FlameView, (100, 24))
async def test_walk_with_keys(app: ViewApp, pilot: Pilot[None], view: FlameView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    seen = []
    for key in ("down", "right", "left", "down", "down", "down", "right", "up", "end", "home"):
        await pilot.press(key)
        seen.append(name_of(view))
    assert seen == [
        "main", "start_thread", "main", "server::run", "http::serve", "Session::open",
        "json::parse", "http::serve", "Vec<T>::push", "api-server",
    ]  # fmt: skip
    await pilot.press("down", "down", "down", "down", "enter")
    assert view.zoomed == view.selected
    assert "▏cache::insert" in text_of(app)[5]
    await pilot.press("down", "down", "enter")
    assert [message.key for message in app.sent] == [1]
    await pilot.press("escape")
    assert name_of(view) == "Vec<T>::push"
    assert name_of(view, view.zoomed) == "http::serve"
    await pilot.press("backspace", "backspace", "escape")
    assert view.zoomed == ROOT
    assert not view.check_action("zoom_out", ())
    await pilot.press("o", "c")
    assert [message.key for message in app.sent] == [1, 1]
    assert view.colouring == "growth"
    assert "colors: growth" in text_of(app)[-2]


@on_screen(FlameView)
async def test_zoom_and_cursor_stay(app: ViewApp, pilot: Pilot[None], view: FlameView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.press("down", "down", "enter", "down", "down", "right")
    assert name_of(view) == "json::parse"
    view.show(Nodes(sample_tree(without=frozenset({1, 4, 5}))), at_once=True)
    assert name_of(view) == "json::parse"
    assert name_of(view, view.zoomed) == "server::run"
    view.show(Nodes(sample_tree(inverted=True), inverted=True), at_once=True)
    assert (view.zoomed, view.selected) == (ROOT, ROOT)
    await pilot.pause()
    assert "inverted" in text_of(app)[-2]


@on_screen(FlameView, (120, 24))
async def test_narrower_than_a_box(app: ViewApp, pilot: Pilot[None], view: FlameView) -> None:
    """The cursor goes to the nearest box that is left."""
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.press("down", "down", "right", "right")
    assert name_of(view) == "metrics::render"
    await pilot.resize_terminal(20, 5)
    while view.width > 20:
        await pilot.pause(0.01)
    await pilot.pause()
    assert name_of(view) in ("main", "api-server")
    assert harmless(app)


@on_screen(FlameView)
async def test_mouse(app: ViewApp, pilot: Pilot[None], view: FlameView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.pause()
    await pilot.click(view, offset=(text_of(app)[5].index("▏tls"), 5))
    assert name_of(view) == "tls::accept"
    await pilot.click(view, offset=(79, 5))
    assert name_of(view) == "tls::accept", "there is no box"
    await pilot.click(view, offset=(2, 4), times=2)
    assert name_of(view, view.zoomed) == "Session::open"
