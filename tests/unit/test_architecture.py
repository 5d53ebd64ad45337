"""The layers point one way, and rooms stay small."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tracelloc"
MODULES = sorted(
    Path(folder, name)
    for folder, _, names in os.walk(PACKAGE, followlinks=True)
    for name in names
    if name.endswith(".py")
)

LAYERS = [
    {"confined", "errors", "text", "probes", "abi", "sampling", "syscalls"},
    {"bounded", "startup", "invoker", "demangle", "elf", "watchrules"},
    {"cfi", "dwarf", "safefiles"},
    {"disassembly"},
    {"worker"},
    {"target"},
    {"placement", "symbols"},
    {"capture", "filters"},
    {"heap"},
    {"runtimes", "verdict"},
    {"objects"},
    {"reachability", "unwinding"},
    {"snapshots"},
    {"tracing", "views"},
    {"export", "recording", "report"},
    {"live", "manual", "reading", "watching"},
    {"command"},
    {"ui"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> set[str]:
    """Absolute names of what a module imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_layers(path: Path) -> None:
    own = room(path)
    if own == "__init__":
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] in ("ui", "probes"):
            raise AssertionError(f"{path} imports {name}: that makes a second copy")
        if parts[0] != "tracelloc" or len(parts) < 2 or parts[1] not in RANK:
            continue
        assert parts[1] == own or RANK[parts[1]] < RANK[own], f"{own} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_one_place_knows_a_library(path: Path) -> None:
    names = {name.split(".")[0] for name in imports(path)}
    assert "bcc" not in names, "bcc is imported by name in capture/compiler.py"
    assert ('import_module("bcc")' in path.read_text()) == (
        path.parts[-2:] == ("capture", "compiler.py")
    )
    if room(path) != "ui":
        assert "textual" not in names
    if room(path) not in ("ui", "manual"):
        assert "rich" not in names
    if room(path) != "elf":
        assert "elftools" not in names
    if room(path) != "disassembly":
        assert "capstone" not in names
    if room(path) != "demangle":
        assert not names & {"rust_demangler", "pyderust"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400, f"{path} holds too much"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{path}:{node.name} has {length} lines"


def test_every_module_has_a_layer_and_a_docstring() -> None:
    for path in MODULES:
        assert room(path) in RANK or room(path) == "__init__"
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_every_room_is_packaged() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    rooms = {path.parent for path in MODULES if path.name == "__init__.py"}
    packages = set(project["tool"]["setuptools"]["packages"])
    assert packages == {".".join(path.relative_to(PACKAGE.parent).parts) for path in rooms}
