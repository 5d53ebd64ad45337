"""The screen of ``top``: processes, control groups, and what can be done about them."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from textual.containers import Vertical
from textual.pilot import Pilot

from tests.ui.screens import HOSTILE, MIB, SIZES, ViewApp, compare, harmless, on_screen, text_of
from tracelloc.machine.machinememory import (
    GroupMemory,
    MachineMemory,
    MemoryKind,
    MemoryTrend,
    ProcessMemory,
)
from tracelloc.ui import machinescreen
from tracelloc.ui.machinescreen import MachineScreen
from tracelloc.ui.tableview import Table

SHOP = ProcessMemory(
    4242, "shopd", "/opt/shop/bin/shopd --port 8080", "www",
    MemoryTrend(
        {MemoryKind.ANONYMOUS: 164 * MIB}, (12 * MIB, 11 * MIB, None), 720, MemoryKind.ANONYMOUS
    ),
    "/docker/a",
)  # fmt: skip
DATABASE = ProcessMemory(
    900, "mysqld", "/usr/sbin/mysqld", "mysql",
    MemoryTrend({MemoryKind.ANONYMOUS: 1240 * MIB}, (0, -MIB, -2 * MIB)), "/mysql.service",
)  # fmt: skip
CONTAINER = GroupMemory(
    "/docker/a", "container 3f2a90d1c0de", 2,
    MemoryTrend({MemoryKind.ANONYMOUS: 171 * MIB}, (12 * MIB, 11 * MIB, None), 720),
    256 * MIB, 85 * MIB,
)  # fmt: skip
UNIT = GroupMemory(
    "/mysql.service", "mysql.service", 1,
    MemoryTrend(
        {MemoryKind.ANONYMOUS: 1240 * MIB, MemoryKind.PAGE_CACHE: 60 * MIB}, (0, 0, None)
    ),
    None, None,
)  # fmt: skip
MACHINE = MachineMemory(
    1_795_650_000.0, 725.0, 24 << 30, 15 << 30, 0, 0, (DATABASE, SHOP), (UNIT, CONTAINER)
)


async def opened(
    app: ViewApp, pilot: Pilot[None], machine: MachineMemory = MACHINE
) -> tuple[MachineScreen, list[object]]:
    screen = MachineScreen(lambda: machine, refresh_s=0)
    return screen, await app.put_on_top(pilot, screen)


@pytest.mark.parametrize("size", SIZES, ids=str)
@on_screen()
async def test_picture(app: ViewApp, pilot: Pilot[None], size: tuple[int, int]) -> None:
    await opened(app, pilot)
    await compare("machine", app, pilot)


@on_screen()
async def test_what_can_be_done_about_a_process(app: ViewApp, pilot: Pilot[None]) -> None:
    screen, result = await opened(app, pilot)
    await pilot.press("enter")
    assert str(app.screen.query_one(Vertical).border_title) == "shopd (4242)"
    await pilot.press("escape")
    assert app.screen is screen
    assert result == []
    await pilot.press("escape")
    assert result == [None], "it is left"
    for downs, words in enumerate((["-p"], ["heap", "-p"], ["objects", "-p"])):
        _, result = await opened(app, pilot)
        await pilot.press("enter", *["down"] * downs, "enter")
        assert result == [[*words, "4242"]]


@on_screen(size=(120, 40))
async def test_groups_search_and_keys(app: ViewApp, pilot: Pilot[None]) -> None:
    _, result = await opened(app, pilot)
    assert "has grown by 11.0 MiB a minute for 12 m" in text_of(app)[-2]
    await pilot.press("s", "home")
    assert "mysqld" in text_of(app)[2]
    assert "shopd" in text_of(app)[3]
    await pilot.press("s", "tab", "home")
    assert "container 3f2a90d1c0de" in text_of(app)[2]
    assert text_of(app)[-2].strip() == "/docker/a"
    # What is for processes only is not offered.
    await pilot.press("enter")
    assert len(app.screen.query_one(Table).order) == 1
    await pilot.press("enter")
    assert result == [["--group", "/docker/a"]]
    screen, result = await opened(app, pilot)
    titles = text_of(app)[1]
    assert "limit" not in titles, "no process has one"
    assert "10m" in titles
    assert "/ Search ? Help q Quit" in text_of(app)[-1]
    await pilot.press("slash", *"my.qld", "enter")
    assert "mysqld" in text_of(app)[2]
    assert "shopd" not in "".join(text_of(app)[2:])
    await pilot.press("question_mark")
    assert app.screen is not screen
    await pilot.press("q")
    assert app.screen is screen
    await pilot.press("escape")
    assert "shopd" in "".join(text_of(app)[2:])
    await pilot.press("t", "tab")
    await pilot.pause()
    assert "limit in" in text_of(app)[1]
    await pilot.press("q")
    assert result == [None]


@on_screen(size=(180, 30))
async def test_groups_are_a_tree(app: ViewApp, pilot: Pilot[None]) -> None:
    """With their processes; groups without a row of their own are passed over."""
    pod = replace(CONTAINER, path="/docker/a/x/y", name="sidecar", processes=1)
    helper = replace(SHOP, pid=4300, arguments="/usr/bin/helper", group="/docker/a/x/y/z")
    stray = replace(SHOP, pid=4400, arguments="/usr/bin/stray", group="/elsewhere")
    processes = (*MACHINE.processes, helper, stray)
    await opened(app, pilot, replace(MACHINE, processes=processes, groups=(UNIT, pod, CONTAINER)))

    def names() -> list[str]:
        column = text_of(app)[1].index("command")
        return [line[column:].rstrip() for line in text_of(app)[2:] if line[column:].strip()][:5]

    await pilot.press("tab", "home")
    assert names() == [
        "container 3f2a90d1c0de, 2 processes", "  sidecar, 1 process", "    /usr/bin/helper",
        "  /opt/shop/bin/shopd --port 8080", "mysql.service, 1 process",
    ]  # fmt: skip
    await pilot.press("slash", *"helper", "enter")
    assert names() == [
        "container 3f2a90d1c0de, 2 processes", "  sidecar, 1 process", "    /usr/bin/helper",
    ]  # fmt: skip
    # A row of a process is that of the list: Enter offers what can be done about it.
    await pilot.press("end", "enter")
    assert str(app.screen.query_one(Vertical).border_title) == "shopd (4300)"


@on_screen()
async def test_hostile_names(app: ViewApp, pilot: Pilot[None]) -> None:
    for name in HOSTILE:
        shop = replace(SHOP, command=name, arguments=name)
        group = replace(CONTAINER, name=name, path=f"/{name}")
        await opened(app, pilot, replace(MACHINE, processes=(shop,), groups=(group,)))
        assert harmless(app), name
        await pilot.press("enter")
        assert harmless(app), name
        await pilot.press("escape", "tab", "enter")
        assert harmless(app), name


def test_commands_run_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list comes back when they have ended, after Enter if they only print."""
    chosen = iter([["-p", "1"], ["heap", "-p", "1"], None])
    ran: list[list[str]] = []
    asked = io.StringIO("\n")
    monkeypatch.setattr(machinescreen.ScreenApp, "run", lambda _app: next(chosen))
    processes = SimpleNamespace(run=lambda words, **_: ran.append(words))
    monkeypatch.setattr(machinescreen, "subprocess", processes)
    monkeypatch.setattr(sys, "stdin", asked)
    machinescreen.show_machine(lambda: MACHINE, 5.0)
    assert [words[1:] for words in ran] == [
        ["-m", "tracelloc", "-p", "1"], ["-m", "tracelloc", "heap", "-p", "1"],
    ]  # fmt: skip
    assert asked.read() == ""
    assert next(chosen, None) is None
