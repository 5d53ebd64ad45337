"""The wheel: complete, and at work in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness import Builder, Target

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, through a source distribution."""
    source = tmp_path_factory.mktemp("source") / "tracelloc"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "*.egg-info", "build", "__pycache__", "*.so", "core.c", "stackids.c"
        ),
    )
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", out, source],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.long
def test_wheel_is_complete(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = subprocess.run(
        ["git", "ls-files", "tracelloc", "probes", "ui"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    tracked = [Path(path) for path in listed if not (ROOT / path).is_symlink()]
    assert len(tracked) > 200
    # One for all versions of Python, with what is compiled.
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    assert "tracelloc/heap/core.abi3.so" in names
    for path in tracked:
        inside = path if path.parts[0] == "tracelloc" else Path("tracelloc") / path
        assert str(inside) in names, f"{path} is not in the wheel"
    beside = {name for name in names if ".dist-info/" not in name and name[:10] != "tracelloc/"}
    (page,) = beside
    assert page.endswith(".data/data/share/man/man1/tracelloc.1")
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.bpf
@pytest.mark.long
def test_wheel_works_in_a_clean_environment(
    wheel: Path, tmp_path: Path, builder: Builder, targets: list[Target]
) -> None:
    venv = tmp_path / "venv"
    subprocess.run(
        ["/usr/bin/python3", "-m", "venv", "--system-site-packages", venv], check=True, timeout=120
    )
    subprocess.run(
        [venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    target = Target([builder.c("chain")])
    targets.append(target)
    result = subprocess.run(
        [venv / "bin/tracelloc", "-p", str(target.pid), "--count", "1"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "==> 0 top allocations" in result.stdout


def test_runs_from_a_bare_checkout() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tracelloc", "--version"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.startswith("tracelloc ")


def test_top_level_is_as_agreed() -> None:
    """What is tracked at the top, beside dotfiles."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    top = {name.split("/")[0] for name in tracked if not name.startswith(".")}
    assert top == {
        "pyproject.toml", "tracelloc", "probes", "ui", "filters.toml", "tests", "img",
        "README.md", "LICENSE", "CHANGELOG.md", "Makefile",
    }  # fmt: skip
