"""Build backend: setuptools, with source distributions that hold all that the repository tracks.

setuptools leaves out tests, pictures and the Makefile, and turns links to folders into copies,
so that the tests of a source distribution would find every module twice.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tarfile
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from setuptools import Extension, build_meta
from setuptools.build_meta import *  # noqa: F403
from setuptools.command.build_ext import build_ext


class BuildExtensions(build_ext):
    """Compiles the modules, and reports each to the file that ``BUILD_PROGRESS`` names.

    Cython's code for views of memory is one module that the others import. In each of them, it
    was two thirds of what the compiler had to do.
    """

    def initialize_options(self) -> None:
        """Names the shared module, which Cython generates."""
        super().initialize_options()
        self.shared_utility_qualified_name = "tracelloc._cyutility"
        self.numbers = itertools.count(1)
        self.is_generating = threading.Lock()

    def build_extensions(self) -> None:
        """Generates the shared module first: that changes options of Cython for all others."""
        for ext in self.extensions:
            if ext.name == self.shared_utility_qualified_name:
                self.generate(ext)
        super().build_extensions()

    def generate(self, ext: Extension) -> None:
        """Has Cython write the C of a module. In several threads at once, Cython fails at times."""
        from Cython.Build import cythonize  # noqa: PLC0415 (not before setuptools)

        with self.is_generating:
            (generated,) = cythonize(
                [ext],
                quiet=True,
                force=self.force,
                shared_utility_qualified_name=self.shared_utility_qualified_name,
            )
        ext.sources = generated.sources

    def build_extension(self, ext: Extension) -> None:
        """Compiles one module. Runs in several threads."""
        if progress := os.environ.get("BUILD_PROGRESS"):
            name = ext.name.rpartition("tracelloc.")[2]
            # Standard error of somebody else's, as under su(1), may not be opened.
            with suppress(OSError), open(progress, "a") as file:
                file.write(f"compiling {next(self.numbers)} of {len(self.extensions)}: {name}\n")
        self.generate(ext)
        super().build_extension(ext)


def build_sdist(
    sdist_directory: str, config_settings: dict[str, str | list[str] | None] | None = None
) -> str:
    """Packs the tracked files, as they are in the work tree, and the metadata as PKG-INFO."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = build_meta.prepare_metadata_for_build_wheel(scratch, config_settings)
        metadata = (Path(scratch) / folder / "METADATA").read_bytes()
        name = folder.removesuffix(".dist-info")
        info = Path(scratch) / "PKG-INFO"
        info.write_bytes(metadata)
        with tarfile.open(Path(sdist_directory) / f"{name}.tar.gz", "w:gz") as archive:
            for path in [*tracked_files(), info]:
                inside = "PKG-INFO" if path is info else path
                archive.add(path, f"{name}/{inside}", recursive=False, filter=anonymous)
    return f"{name}.tar.gz"


def tracked_files() -> list[Path]:
    """The files that git tracks, links included."""
    if not Path(".git").exists():
        raise SystemExit("there is no .git here: make source distributions in a clone")
    names = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True).stdout
    return [Path(name) for name in names.decode().split("\0") if name]


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who packed it."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
