"""The screen of ``top``: processes and control groups, and commands for one of them."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from tracelloc.machine import machinememory
from tracelloc.show.tables import Column, Columns
from tracelloc.system.memorylimits import group_and_ancestors
from tracelloc.text import format_estimate, format_size, plural, signed_size
from tracelloc.ui.application import ScreenApp, prepare_screens
from tracelloc.ui.dialogs import Dialog
from tracelloc.ui.driver import restored_terminal
from tracelloc.ui.helpscreen import HelpScreen
from tracelloc.ui.keyfooter import KeyFooter, SearchableScreen, SearchLine
from tracelloc.ui.lineview import bindings
from tracelloc.ui.picker import RefreshedScreen
from tracelloc.ui.stacknames import Search
from tracelloc.ui.tableview import Cell, CommandCell, Table, TableRows, clean, crop, growth_cell

Words = Sequence[str]  # The words of a command line of tracelloc
Item = machinememory.ProcessMemory | machinememory.GroupMemory

_COLUMNS: Final[Columns[Any]] = (
    Column("memory", "memory", 9),
    Column("pss", "PSS", 9, from_width=108, sorts=False),
    Column("limit", "limit", 9, from_width=98, sorts=False),
    Column("1m", "growth/min", 13, sorts=False),
    Column("10m", "10m", 12, from_width=98, sorts=False),
    Column("60m", "60m", 12, from_width=132, sorts=False),
    Column("for", "growing for", 11, from_width=76, sorts=False),
    Column("left", "limit in", 9, from_width=112, sorts=False),
    Column("pid", "pid", 7, sorts=False),
    Column("kind", "kind", 11, left=True, from_width=126, sorts=False),
    Column("name", "command", 0, sorts=False),
)
_UNKNOWN: Final = "–"
_LEFT_OUT: Final = "pss", "limit", "10m", "60m", "for", "left", "pid"  # Columns that need a value
_GROWTH: Final = "1m", "10m", "60m"  # Columns of growth, in the order of the windows
# Sentence and subcommand of what can be done about a process; about a group, only the first.
_ACTIONS: Final = (
    ("Trace it: which call stacks allocate, and whether they leak", ()),
    ("Walk its heap, without tracing", ("heap",)),
    ("Count its objects, if it is a Python program", ("objects",)),
)


class ActionDialog(Dialog["Words | None"]):
    """Asks for a command on a process or a group; the result is its command line."""

    def __init__(self, name: str, target: Words, *, is_group: bool) -> None:
        super().__init__()
        self._title, self._target = name, target
        self._actions = dict(_ACTIONS[:1] if is_group else _ACTIONS)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = Text(crop(clean(self._title), 60))
            box.border_subtitle = "Enter · Esc back"
            yield Table([Column("what", "")])

    def on_mount(self) -> None:
        rows = TableRows(list(self._actions), lambda key, _: str(key))
        self.query_one(Table).show(rows, at_once=True)

    @on(Table.Chosen)
    def _act(self) -> None:
        subcommand = self._actions[str(self.query_one(Table).key)]
        self.dismiss([*subcommand, *self._target])


class MachineScreen(
    RefreshedScreen[machinememory.MachineMemory, "Words | None"], SearchableScreen["Words | None"]
):
    """Lists processes or control groups; the result is a command line to run, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("machine")]

    def __init__(
        self, refresh: Callable[[], machinememory.MachineMemory], *, refresh_s: float
    ) -> None:
        super().__init__(refresh, refresh_s)
        self._machine: machinememory.MachineMemory | None = None
        self._shows_groups = self._by_size = False

    def compose(self) -> ComposeResult:
        yield Static("tracelloc top", id="title", markup=False)
        rows = Table(_COLUMNS, id="list")
        rows.name_enter("Actions")
        yield rows
        yield Static(id="note", markup=False)
        yield SearchLine(placeholder="regex for commands and groups (Esc clear)")
        yield KeyFooter()

    def show(self, found: machinememory.MachineMemory) -> None:
        self._machine = found
        self._show()

    @on(SearchLine.Changed)
    def _show(self) -> None:
        if self._machine is None:
            return
        self.say("title", machinememory.headline(self._machine).removeprefix("==> "))
        self.query_one(Table).show(self._rows(self._machine), at_once=True)
        self._say_hint()

    def _rows(self, machine: machinememory.MachineMemory) -> TableRows:
        search = Search(self.query_one(SearchLine).value)
        process_key = machinememory.by_size if self._by_size else machinememory.by_growth
        processes = sorted(machine.processes, key=process_key)
        if self._shows_groups:
            group_key = _by_size if self._by_size else machinememory.by_urgency
            groups = sorted(machine.groups, key=group_key)
            rows = list(_tree(groups, processes, search.matches))
        else:
            rows = [(0, each) for each in processes if search.matches(each.arguments)]
        items = {_key(item): (item, depth) for depth, item in rows}
        return TableRows(
            list(items), lambda key, column: _cell(*items[key], column),
            "memory" if self._by_size else "1m",
            empty="none (Esc clears the search)" if search.text else "none",
            without=[
                name for name in _LEFT_OUT
                if all(_cell(item, 0, name) == _UNKNOWN for item, _ in items.values())
            ],
        )  # fmt: skip

    @on(Table.Moved)
    def _say_hint(self) -> None:
        chosen, text = self._chosen(), ""
        if isinstance(chosen, machinememory.ProcessMemory):
            text = next(iter(machinememory.hints([chosen])), chosen.arguments)
        elif chosen is not None:
            text = chosen.path
        self.say("note", clean(text))

    def _chosen(self) -> Item | None:
        key, machine = self.query_one(Table).key, self._machine
        items: list[Item] = [] if machine is None else [*machine.processes, *machine.groups]
        return next((item for item in items if _key(item) == key), None)

    def action_switch(self) -> None:
        self._shows_groups = not self._shows_groups
        self._show()

    def action_sort(self) -> None:
        self.action_sort_by("growth" if self._by_size else "bytes")

    def action_sort_by(self, name: str) -> None:
        self._by_size = name == "bytes"
        self._show()

    def action_back(self) -> None:
        if not self.clear_search():
            self.dismiss(None)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(self))

    @on(Table.SortAsked)
    def _sort_by_memory(self) -> None:
        self.action_sort()

    @on(Table.Chosen)
    def _ask(self) -> None:
        chosen = self._chosen()
        if isinstance(chosen, machinememory.ProcessMemory):
            target = "-p", str(chosen.pid)
            dialog = ActionDialog(f"{chosen.command} ({chosen.pid})", target, is_group=False)
        elif chosen is not None:
            dialog = ActionDialog(chosen.name, ("--group", chosen.path), is_group=True)
        else:
            return
        self.app.push_screen(dialog, self._leave)

    def _leave(self, words: Words | None) -> None:
        if words is not None:
            self.dismiss(words)


def _key(item: Item) -> Hashable:
    return item.pid if isinstance(item, machinememory.ProcessMemory) else item.path


def _by_size(group: machinememory.GroupMemory) -> tuple[int, str]:
    return -group.trend.size_bytes, group.path


def _tree(
    groups: Sequence[machinememory.GroupMemory],
    processes: Sequence[machinememory.ProcessMemory],
    matches: Callable[[str], bool],
) -> Iterator[tuple[int, Item]]:
    """Yields groups with the groups and processes in them below, and how deep each is.

    Of what does not match, only the groups above what does; no processes outside of groups.
    """
    paths = {group.path for group in groups}
    inside = defaultdict[str, list[Item]](list)
    items: list[tuple[str, Item]] = [(each.path.rpartition("/")[0], each) for each in groups]
    items += [(each.group, each) for each in processes]
    for path, item in items:
        above = (each for each in group_and_ancestors(path) if each in paths)
        inside[next(above, "")].append(item)

    def below(path: str, depth: int) -> Iterator[tuple[int, Item]]:
        for item in inside[path]:
            if isinstance(item, machinememory.ProcessMemory):
                if path and matches(item.arguments):
                    yield depth, item
            elif (rows := list(below(item.path, depth + 1))) or matches(item.name):
                yield from ((depth, item), *rows)

    return below("", 0)


def _cell(item: Item, depth: int, column: str) -> Cell:
    if column in _GROWTH:
        rate = item.trend.growth[_GROWTH.index(column)]
        return growth_cell(rate) if rate else _UNKNOWN if rate is None else signed_size(rate)
    if isinstance(item, machinememory.ProcessMemory):
        name, pid = clean(item.arguments), str(item.pid)
        limit_bytes = left_s = None
        pss = machinememory.pss_text(item)
    else:
        name = clean(f"{item.name}, {plural(item.processes, 'process')}")
        pid = pss = _UNKNOWN
        limit_bytes, left_s = item.limit_bytes, item.limit_in_s
    return {
        "memory": format_size(item.trend.size_bytes),
        "pss": pss,
        "for": format_estimate(item.trend.growing_s) if item.trend.growing_s else _UNKNOWN,
        "limit": _UNKNOWN if limit_bytes is None else format_size(limit_bytes),
        "left": _UNKNOWN if left_s is None else format_estimate(left_s),
        "pid": pid,
        "kind": item.trend.kind.title,
        "name": CommandCell("  " * depth + name),
    }[column]


def show_machine(
    read: Callable[[], machinememory.MachineMemory], interval_s: float, *, plain: bool = False
) -> None:
    """Shows all processes until the user leaves; commands chosen there run in between."""
    prepare_screens(plain=plain)
    while True:
        with restored_terminal():
            words = ScreenApp(MachineScreen(read, refresh_s=interval_s)).run()
        if words is None:
            return
        subprocess.run([sys.executable, "-m", "tracelloc", *words], check=False)
        if words[0] in ("heap", "objects"):
            print("Enter: back to the list", end="", flush=True)
            sys.stdin.readline()
