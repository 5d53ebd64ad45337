"""The tree of lines: what is open, where the cursor is, what survives new figures."""

from textual.pilot import Pilot

from tests.ui.screens import (
    ViewApp,
    build_tree,
    harmless,
    on_screen,
    path,
    sample_tree,
    styled,
    text_of,
    weights,
)
from tracelloc.show.presentation.calltree import Step
from tracelloc.ui.nodes import Nodes
from tracelloc.ui.stacknames import Search
from tracelloc.ui.tree import TreeView


def shown(view: TreeView) -> list[str]:
    """The names of all rows, opened or not."""
    return [name for name, _ in rows(view)]


def rows(view: TreeView) -> list[tuple[str, int]]:
    """Names, and how far they are indented."""
    data = view._data
    return [(data.tree.steps[node].name, indent) for node, indent in view._rows]


def name_of(view: TreeView) -> str:
    return shown(view)[view.cursor]


HOTTEST = [
    "api-server", "main", "server::run", "http::serve", "Session::open", "cache::insert",
    "Vec<T>::push", "tls::accept", "json::parse", "config::load", "metrics::render", "plugins",
    "start_thread",
]  # fmt: skip


@on_screen(TreeView)
async def test_the_heaviest_path_is_open(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.press("down", "down", "down")
    assert shown(view) == HOTTEST
    assert any("http::serve" in text for text in styled(app, "bold"))


@on_screen(TreeView)
async def test_keys(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.press("end", "right")
    assert shown(view)[-3:] == ["start_thread", "worker", "queue::pop"]
    assert name_of(view) == "start_thread"
    await pilot.press("right", "right")
    assert name_of(view) == "queue::pop"
    await pilot.press("enter")
    assert [message.key for message in app.sent] == [6]
    await pilot.press("left", "left")
    assert shown(view)[-2:] == ["start_thread", "worker"]
    assert name_of(view) == "worker"
    await pilot.press("left", "enter", "minus")
    assert shown(view) == ["api-server", "main", "start_thread"]
    assert name_of(view) == "start_thread"
    await pilot.press("up", "enter")
    assert shown(view)[1:5] == ["main", "server::run", "config::load", "metrics::render"]
    await pilot.press("minus", "home", "asterisk")
    assert "queue::pop" in shown(view)
    assert "plugin_00" not in shown(view), "less than 1 %"
    await pilot.press("o")
    assert [message.key for message in app.sent] == [6, 1]


@on_screen(TreeView)
async def test_chains_open_in_one_step(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    stacks = [
        (1, path("hot"), weights(100, 1, 0)),
        (2, path("a", "b", "c", "d"), weights(9, 1, 0)),
        (3, path("a", "b", "c", "e"), weights(1, 1, 0)),
        (4, path("nothing", "held"), weights(0, 0, 0)),
    ]
    view.show(Nodes(build_tree(stacks, Step("app", None))), at_once=True)
    assert shown(view) == ["app", "hot", "a"]
    await pilot.press("end", "right")
    assert shown(view) == ["app", "hot", "a", "b", "c", "d", "e"]
    assert [indent for _, indent in rows(view)] == [0, 1, 1, 1, 1, 2, 2]


@on_screen(TreeView)
async def test_what_is_open_stays(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    await pilot.press("end", "right", "down")
    assert name_of(view) == "worker"
    view.show(Nodes(sample_tree(without=frozenset({1, 2, 3, 4, 5}))), at_once=True)
    assert name_of(view) == "worker"
    assert shown(view) == ["api-server", "start_thread", "worker", "queue::pop", "main", "plugins"]
    view.show(Nodes(sample_tree(without=frozenset({6}))), at_once=True)
    assert name_of(view) == "api-server", "its function is gone"


@on_screen(TreeView)
async def test_search(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    view.show(Nodes(sample_tree()), at_once=True)
    assert "found" not in text_of(app)[-1]
    view.show(Nodes(sample_tree(), search=Search("plugin_0[12]|push")), at_once=True)
    await pilot.pause()
    assert "found: 60.1 %" in text_of(app)[-1]
    assert sum("*Vec<T>" in line for line in text_of(app)) == 1
    await pilot.press("end", "up", "right", "end")
    assert sum("*plugin_0" in line for line in text_of(app)) == 2
    view.show(Nodes(sample_tree(), search=Search("no such function")), at_once=True)
    await pilot.pause()
    assert "found: 0.0 %" in text_of(app)[-1]


@on_screen(TreeView, (60, 20))
async def test_very_deep(app: ViewApp, pilot: Pilot[None], view: TreeView) -> None:
    """However deep, the name has room."""
    deep = [f"f{n}" for n in range(120)]
    stacks = [(n, path(*deep[:n], f"end{n}"), weights(2000 - n, 1, 0)) for n in range(120)]
    view.show(Nodes(build_tree(stacks, Step("app", None))), at_once=True)
    await pilot.press("asterisk", "end", "up", "up", "up")
    assert harmless(app)
    while "end119" not in shown(view):
        view.move_to(len(shown(view)) - 1)
        while not view._weighty(view.selected):
            view.move_to(view.cursor - 1)
        view.action_open_all()
    view.move_to(shown(view).index("end119"))
    await pilot.pause()
    assert any("end119" in line for line in text_of(app)[:-1])
