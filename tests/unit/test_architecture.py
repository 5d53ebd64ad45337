"""Two wings over one ground floor: which room may import which, and how large modules are."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.commands import run
from tests.harness import ROOT as TOP

PACKAGE = TOP / "tracelloc"
MODULES = sorted(
    path
    for folder in (PACKAGE, TOP / "ui", TOP / "probes")  # links to folders are not followed
    for pattern in ("*.py", "*.p[xy][xd]")
    for path in folder.rglob(pattern)
)

# What every room may import: errors, text for people, processors, the sources of the probes.
GROUND = ["dataclass", "errors", "text", "startup", "probes", "tracelloc", "architecture"]
# The rooms, and which others each may import: two wings that don't know each other.
KNOWS = {
    "model": [],
    "system": ["model"],
    "files": ["system"],
    "heap": ["model"],
    "verdict": ["model", "heap"],
    "snapshots": ["model", "heap", "verdict"],
    "record": ["model", "system", "files", "heap", "verdict", "snapshots"],
    "show": ["model", "system", "files", "heap", "verdict", "snapshots"],
    "machine": ["model", "system", "files", "record", "show"],
    "ui": ["model", "system", "files", "heap", "verdict", "snapshots", "show", "machine"],
    "testing": [],
    "command": [
        "model", "system", "files", "heap", "verdict", "snapshots", "record", "show", "machine",
        "ui", "testing",
    ],
    "__main__": ["command"],
    **{name: [] for name in GROUND},
    "tracelloc": ["command"],  # at the first use of its functions
    "startup": ["text"],
    "text": [],
}  # fmt: skip


def room(path: Path) -> str:
    """The room that a module belongs to."""
    first, *rest = path.relative_to(TOP).with_suffix("").parts
    return rest[0] if first == "tracelloc" and rest != ["__init__"] else first


def imports(path: Path) -> set[str]:
    """Absolute names of what a module imports, wherever in it; of Cython modules as well."""
    text = path.read_text()
    if path.suffix != ".py":
        lines = re.finditer(r"^ *(?:from ([\w.]+) c?import|c?import ([\w.]+))", text, re.MULTILINE)
        return {line[1] or line[2] for line in lines}
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("own", KNOWS)
def test_rooms_know_only_what_they_may(own: str) -> None:
    for path in MODULES:
        if room(path) != own:
            continue
        for name in imports(path):
            top, *rest = name.split(".")
            assert top not in ("ui", "probes"), f"{path} imports {name}: that makes a second copy"
            if top != "tracelloc" or not rest or rest[0] not in KNOWS:
                continue
            assert rest[0] in (own, *GROUND, *KNOWS[own]), f"{path}: {own} imports {name}"


def circle_among(edges: dict[str, set[str]]) -> list[str]:
    """Names that lead back to each other; empty if there are none."""
    left = dict(edges)
    while left:
        free = {name for name, others in left.items() if not others & left.keys() - {name}}
        if not free:
            return sorted(left)
        left = {name: others for name, others in left.items() if name not in free}
    return []


@pytest.mark.parametrize("wing", ["record", "show"])
def test_rooms_of_a_wing_form_no_circle(wing: str) -> None:
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        parts = path.relative_to(TOP).parts
        if parts[1] == wing and len(parts) > 3:
            others = (name.split(".") for name in imports(path))
            edges.setdefault(parts[2], set()).update(
                names[2] for names in others if names[:2] == ["tracelloc", wing] and len(names) > 3
            )
    assert circle_among(edges) == []


def test_headers_form_no_circle() -> None:
    headers = sorted((TOP / "probes").rglob("*.[hc]"))
    edges = {
        path.name: set(
            re.findall(r'^#include "(?:[\w.]+/)*([\w.]+)"', path.read_text(), re.MULTILINE)
        )
        for path in headers
    }
    assert circle_among(edges) == []


@pytest.mark.parametrize(
    "header",
    sorted(
        set((TOP / "probes/preloaded").glob("*.h")) - set(TOP.glob("probes/preloaded/*aarch64.h"))
    ),
    ids=lambda path: path.stem,
)
def test_headers_of_the_library_include_what_they_need(header: Path) -> None:
    options = ["-fsyntax-only", "-std=gnu11", "-Werror=implicit-function-declaration"]
    run("gcc", *options, "-x", "c", str(header))


def test_showing_needs_nothing_of_a_tracing_machine() -> None:
    """A recording opens where there is no BPF and no Linux: those libraries are hidden here."""
    program = """
import importlib, os, pkgutil, sys
for name in ("bcc", "capstone", "ptrace"):
    sys.modules[name] = None
for name in ("eventfd", "memfd_create", "pidfd_open", "setns", "sched_getaffinity", "getxattr"):
    if hasattr(os, name):
        delattr(os, name)
import tracelloc.show, tracelloc.ui
for package in (tracelloc.show, tracelloc.ui):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
wing = [name for name in sys.modules if name.startswith("tracelloc.record.")]
assert not wing, wing
"""
    run(sys.executable, "-c", program)


# Libraries, and the one folder that knows each.
PLACES = {
    "textual": "ui", "rich": "ui", "elftools": "elf", "capstone": "machinecode",
    "pytest": "testing", "pyderust": "demangle", "rust_demangler": "demangle",
    "sqlite3": "recording",
}  # fmt: skip


def test_only_one_place_knows_a_library() -> None:
    for path in MODULES:
        names = {name.split(".")[0] for name in imports(path)}
        assert "bcc" not in names, "bcc is imported by name in record/kernel/compiler.py"
        is_compiler = path.parts[-2:] == ("kernel", "compiler.py")
        assert ('import_module("bcc")' in path.read_text()) == is_compiler
        for library in names & PLACES.keys():
            assert path.parent.name == PLACES[library] or path.name == "manual.py", path


PYTHON = [path for path in MODULES if path.suffix == ".py"]


def test_modules_are_small_and_have_docstrings() -> None:
    """Far beyond the usual 100 to 300 lines, a module holds two things."""
    for path in PYTHON:
        text = path.read_text()
        assert len(text.splitlines()) <= 500, f"{path} holds too much"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{path}:{node.name} has {length} lines"
    for path in PYTHON:
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_every_module_is_in_a_room_and_every_room_is_packaged() -> None:
    assert {room(path) for path in MODULES} == set(KNOWS)
    project = tomllib.loads((TOP / "pyproject.toml").read_text())
    rooms = {path.parent.relative_to(TOP) for path in PACKAGE.rglob("__init__.py")}
    packages = set(project["tool"]["setuptools"]["packages"])
    linked = {"tracelloc.ui", "tracelloc.probes"}
    assert packages == {".".join(room.parts) for room in rooms} | linked
