"""Other programs, run for what they do or say."""

import json
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.forked import PATIENCE_S
from tracelloc import probes


def run(*command: object, timeout: float = PATIENCE_S, **options: Any) -> str:
    """Runs a command, which must succeed. Returns its standard output."""
    words = [str(word) for word in command]
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=timeout, **options
    ).stdout


def outcome(*command: object, timeout: float = PATIENCE_S, **options: Any) -> CompletedProcess[str]:
    """Runs a command to its end, whatever that is; both outputs are kept."""
    words = [str(word) for word in command]
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=timeout, **options
    )


def c_values(
    directory: Path, header: str, expressions: Iterable[str],
    compiler: Iterable[object] = ("cc",), emulator: Iterable[object] = (),
) -> dict[str, int]:  # fmt: skip
    """Values of C expressions, by name, with a header of the probes included."""
    lines = "".join(f'printf("\\"{e}\\": %lld,", (long long)({e}));\n' for e in expressions)
    source = (
        "#include <stddef.h>\n#include <stdio.h>\n#include <linux/types.h>\n"
        f'#include "{header}"\nint main(void) {{ printf("{{"); {lines} printf("\\"\\": 0}}"); }}\n'
    )
    out, flags = directory / "values", ("-Wall", "-Werror", "-x", "c", "-")
    run(*compiler, *flags, "-I", probes.directory(), "-o", out, input=source)
    found: dict[str, int] = json.loads(run(*emulator, out))
    return found


@contextmanager
def background(*command: object, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Starts a command, which is killed in the end."""
    with subprocess.Popen([str(word) for word in command], **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    where.mkdir()
    run("mount", "-t", "tmpfs", "-o", options, "none", where)
    try:
        yield where
    finally:
        run("umount", "--lazy", where)
