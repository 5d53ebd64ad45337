"""The packages: complete, and at work in an environment of their own."""

import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import outcome, run
from tests.harness import Builder, Targets, made_once
from tests.integration.test_without_bcc import check_all_ways
from tracelloc import __version__

ROOT = Path(__file__).parents[2]


def tracked(*under: str) -> list[str]:
    """Files that git tracks; in some folders only, if any are named."""
    return run("git", "ls-files", *under, cwd=ROOT).splitlines()


@pytest.fixture(scope="module")
def packages(shared: Path) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    return made_once(shared / "packages", build_packages)


def build_packages(out: Path) -> None:
    """Builds them from the files that git tracks."""
    source = out.with_name("packages-source") / "tracelloc"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    # Compiling takes longer than the tests. (The preloaded library needs its options.)
    project = source / "pyproject.toml"
    project.write_text(re.sub(r'\["-O\d", "-g0"\]', '["-O0", "-g0"]', project.read_text()))
    for command in (["init", "--quiet"], ["add", "--all"]):
        run("git", *command, cwd=source)
    settings = source.with_name("build.cfg")
    settings.write_text(f"[build_ext]\nparallel = {os.cpu_count()}\n")
    # `make install` shows that what a build requires is complete.
    build = outcome(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source),
        env=os.environ | {"DIST_EXTRA_CONFIG": str(settings)},
        timeout=550,
    )
    assert not build.returncode, build.stdout[-2000:] + build.stderr[-2000:]


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (built,) = packages.glob("*.whl")
    return built


@pytest.mark.long
def test_source_distribution_is_the_repository(packages: Path) -> None:
    """With its links, so that its tests run as they do in a clone."""
    (built,) = packages.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        members = {member.name.partition("/")[2]: member for member in archive}
        assert set(members) == {*tracked(), "PKG-INFO"}
        assert members["tracelloc/ui"].linkname == "../ui"
        assert members["tests/demo.sh"].mode & 0o111
        assert {member.uname for member in members.values()} == {"root"}
        top = built.name.removesuffix(".tar.gz")
        info = archive.extractfile(f"{top}/PKG-INFO")
        assert info
        assert f"\nVersion: {__version__}\n" in info.read().decode()


@pytest.mark.long
def test_wheel_is_complete(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = tracked("tracelloc", "probes", "ui")
    files = [Path(path) for path in listed if not (ROOT / path).is_symlink()]
    assert len(files) > 200
    # One for all versions of Python, with what is compiled.
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    assert "tracelloc/heap/core.abi3.so" in names
    for path in files:
        inside = path if path.parts[0] == "tracelloc" else Path("tracelloc") / path
        assert str(inside) in names, f"{path} is not in the wheel"
    beside = {name for name in names if ".dist-info/" not in name and name[:10] != "tracelloc/"}
    (page,) = beside
    assert page.endswith(".data/data/share/man/man1/tracelloc.1")
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.bpf
@pytest.mark.long
def test_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path, targets: Targets) -> None:
    venv = tmp_path / "venv"
    run("/usr/bin/python3", "-m", "venv", "--system-site-packages", venv)
    run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", wheel, timeout=300)
    target = targets.c("chain")
    result = outcome(venv / "bin/tracelloc", "-p", target.pid, "--count", 1, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "==> lost 0 events" in result.stdout


AS_NOBODY = "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"


@pytest.fixture(scope="module")
def plain(wheel: Path) -> Iterator[Path]:
    """An environment by nobody, who sees nothing of the distribution's Python; with pytest."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.chown(place, 65534, 65534)
        place.chmod(0o755)
        shutil.copy(wheel, place)
        run(*AS_NOBODY, "/usr/bin/python3", "-m", "venv", place / "venv")
        install = place / "venv/bin/pip", "install", "--quiet", "--no-cache-dir"
        words = "--disable-pip-version-check", place / wheel.name, "pytest"
        run(*AS_NOBODY, *install, *words, timeout=300, cwd=place)
        yield place / "venv/bin"


@pytest.mark.timeout(1200)
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_wheel_works_without_bcc(
    plain: Path, builder: Builder, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pytest's plug-in, for nobody, who installed it, and for root."""
    for user in (AS_NOBODY, ()):
        with tempfile.TemporaryDirectory() as name:
            public = Path(name)
            public.chmod(0o755)
            if user:
                os.chown(public, 65534, 65534)
            monkeypatch.chdir(public)
            monkeypatch.setenv("HOME", name)
            for program in ("endings", "lost"):
                shutil.copy(builder.c(program), public / program)
            target = targets.start(*user, public / "lost")
            command = [*user, plain / "tracelloc"]
            check_all_ways(command, public / "endings", target, is_root=not user)
            (public / "test_it.py").write_text("def test_it(): pass\n")
            done = outcome(*user, plain / "python", "-m", "pytest", "--tracelloc", "test_it.py")
            assert "memory of 1 test (tracelloc)" in done.stdout, done.stdout + done.stderr


def test_top_level_is_as_agreed() -> None:
    """What is tracked at the top, beside dotfiles."""
    top = {name.split("/")[0] for name in tracked() if not name.startswith(".")}
    assert top == {
        "pyproject.toml", "tracelloc", "probes", "ui", "filters.toml", "tests", "img",
        "README.md", "LICENSE", "CHANGELOG.md", "Makefile",
    }  # fmt: skip
