"""The compiled probes: compiled by a child process the first time, then from the cache.

The result does not depend on the running kernel (the sources use no kernel type
except ``struct pt_regs``), only on source, options and bcc.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel import compiler
from tracelloc.record.kernel.compiler import CompiledProbes
from tracelloc.startup import STARTUP
from tracelloc.system.invoker import effective_user
from tracelloc.system.safefiles.writing import CacheDirectory

# Files in the cache; the least recently used are removed. About 120 KiB each.
_MOST_FILES: Final = 64
_MOST_BYTES: Final = 4 << 20


def compiled(
    source: str, cflags: Sequence[str], kernel_source: Path, *, debug: bool
) -> CompiledProbes:
    """Returns the probes from the cache, or compiles them. Raises UnsupportedError.

    ``kernel_source``: the kernel's directory for bcc; ``debug`` shows the compiler's messages.
    """
    wish = json.dumps({"source": source, "cflags": [*cflags], "kernel": str(kernel_source)})
    headers = sorted(kernel_source.rglob("*.h"))
    cache = _Cache(b"\0".join([wish.encode(), *(path.read_bytes() for path in headers)]))
    found = None if debug else cache.recall()
    if found is None:
        found = _compile_aside(wish, debug=debug)
        cache.remember(found)
    return found


class _Cache:
    """Files of compiled code, named by a hash of all inputs: a checksum, then JSON.

    The code is loaded into the kernel as stored, so it is stored where only the effective user
    can have put it: not in the directory of the user who called sudo.
    """

    def __init__(self, made_of: bytes) -> None:
        digest = hashlib.blake2b(made_of, digest_size=16)
        digest.update(_bcc_stamp().encode())
        self._name = digest.hexdigest()
        self._files = CacheDirectory(effective_user(), "probes", ".probes", _MOST_FILES)

    def recall(self) -> CompiledProbes | None:
        """Returns the earlier result for the same inputs; None if there is none."""
        try:
            digest, _, content = self._files.recall(self._name, _MOST_BYTES).partition(b"\n")
            if digest != _digest(content):
                return None
            return CompiledProbes.from_json(json.loads(content))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self, probes: CompiledProbes) -> None:
        """Stores a result; after any failure the probes are simply compiled again next time."""
        content = json.dumps(probes.to_json()).encode()
        self._files.remember(self._name, [_digest(content), b"\n", content])


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content).hexdigest().encode()


def _bcc_stamp() -> str:
    """Returns a string that identifies the installed bcc, without importing it."""
    spec = importlib.util.find_spec("bcc")
    if spec is None or spec.origin is None:
        return ""
    return f"{spec.origin} {os.stat(spec.origin).st_mtime_ns}"


def _compile_aside(wish: str, *, debug: bool) -> CompiledProbes:
    """Compiles in a child process. Raises UnsupportedError."""
    STARTUP.note("compiling the probes, which are then kept")
    done = subprocess.run(
        [sys.executable, "-P", compiler.__file__],
        input=wish,
        stdout=subprocess.PIPE,
        stderr=None if debug else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        process_group=0,  # ^C must not reach it
        # The child finds the modules that this process finds.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        answer = json.loads(done.stdout)
        if "error" not in answer:
            return CompiledProbes.from_json(answer)
    except (ValueError, KeyError, TypeError):
        answer = {"error": f"the compiler of the probes ended with status {done.returncode}"}
    said = next((line for line in (done.stderr or "").splitlines() if "error:" in line), None)
    raise UnsupportedError(
        f"bcc could not compile the probes: {said.strip()}" if said else answer["error"],
        hint=answer.get("hint", "run again with --debug to see the compiler's messages"),
    )
