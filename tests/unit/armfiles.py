"""Files of 64-bit Arm, to be read on any machine: Debian's cross libraries, and assembled text."""

from functools import cache
from pathlib import Path

from tests.commands import run

# Files for arm64, from Debian's packages libc6-arm64-cross and others.
LIBRARIES = Path("/usr/aarch64-linux-gnu/lib")


def library(name: str) -> Path:
    return LIBRARIES / name


@cache
def _is_debian_12() -> bool:
    return b"GNU C Library (Debian GLIBC 2.36-" in library("libc.so.6").read_bytes()


def check_figures(found: object, expected: object) -> None:
    """Compares figures that were counted in the files of Debian 12; others have other ones."""
    if _is_debian_12():
        assert found == expected
    assert found


def assemble(directory: Path, text: str, name: str = "made") -> Path:
    """A shared library of assembly text."""
    source, made, linked = (directory / f"{name}.{suffix}" for suffix in ("s", "o", "so"))
    source.write_text(text)
    run("aarch64-linux-gnu-as", "-march=armv8.5-a+memtag", "-o", made, source)
    run("aarch64-linux-gnu-ld", "-shared", "--eh-frame-hdr", "-o", linked, made)
    return linked


def words(*values: int) -> bytes:
    """Instructions."""
    return b"".join(value.to_bytes(4, "little") for value in values)
