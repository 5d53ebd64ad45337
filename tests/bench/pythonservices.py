"""How soon are leaks in services of Python frameworks found, and are clean services suspected?

The programs are those of ``tests/corpus/python``, each under a steady load of 20 requests a second.
``python -m tests.bench.pythonservices leaks`` attaches to each leaking one for a minute, three at a
time, and notes when a report names who keeps what leaks; ``clean`` attaches to each of the others
for ten minutes, six at a time, and counts all suspects. Packages are installed below ``.venv``, or
in the chroot, for a Python that is a command such as ``chroot /sid python3``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.bench.pythonleaks import (
    AT_ONCE,
    LIMIT_S,
    Names,
    Watched,
    anything,
    build,
    by_stack,
    by_type,
    watch,
)
from tests.harness import Target

PROGRAMS: Final = Path(__file__).parents[1] / "corpus" / "python"
INSTALLED: Final = Path(__file__).parents[2] / ".venv" / "services"
CLEAN_AT_ONCE: Final = 6

# Leaks by the function of `leaks.py`, and what names them.
LEAKS: Final[dict[str, Names]] = {
    "flask_cache": by_type("__main__.Page", path="__main__.PAGES[…]"),
    "flask_logging": by_type("logging.StreamHandler", path="handlers[…]"),
    "django_signals": by_type("function", path="request_finished.receivers[…]"),
    "django_locals": by_type(
        "django.core.handlers.wsgi.WSGIRequest", path="__main__.LOCAL.audit[…]"
    ),
    "fastapi_lru_cache": by_type("__main__.Prices", path="__main__.Prices.quote.cache"),
    "fastapi_tasks": by_type("_asyncio.Task", path="__main__.TASKS{…}"),
    "aiohttp_sessions": by_type("aiohttp.client.ClientSession", path="__main__.CLIENTS[…]"),
    "aiohttp_closures": by_type(path="__main__.LISTENERS[…].__closure__"),
    "tornado_waiters": by_type("_asyncio.Task", path="._pending_tasks{…}"),
    "celery_exceptions": by_type(path="__main__.ERRORS[…].__traceback__"),
    "celery_signals": by_type("function", path="task_postrun.receivers[…]"),
    "sqlalchemy_sessions": by_type(path="__main__.SESSIONS.registry.registry[…]"),
    "sqlalchemy_listeners": by_type("function", path=".listeners[…]"),
    "gunicorn_cycles": by_type("__main__.Node", path="a reference cycle"),
    "twisted_protocols": by_type("__main__.Show", path=".clients[…]"),
    "twisted_generators": by_type("generator", path="__main__.WAITING[…]"),
    "asyncio_generators": by_type("async_generator", path="__main__.STREAMS[…]"),
    "lxml_documents": by_type("lxml.etree._Element", path="__main__.FEEDS[…]"),
    "numpy_extension": by_stack("copy_of", "numpy_extension.<locals>.handle"),
}
CLEAN: Final = (
    "flask", "django", "fastapi", "aiohttp", "tornado", "celery", "sqlalchemy", "gunicorn",
    "twisted", "plain_asyncio", "lxml_pillow", "numpy",
)  # fmt: skip


class Services:
    """The programs under one Python."""

    def __init__(self, python: str) -> None:
        """Installs what is missing."""
        self._python = python.split()
        is_inside = self._python[0] == "chroot"
        outside = Path(self._python[1], "services") if is_inside else INSTALLED
        self.folder = Path("/services") if is_inside else outside
        if not (outside / "installed").exists():
            self._install(outside)
        shutil.copytree(PROGRAMS, outside, dirs_exist_ok=True)

    def _install(self, outside: Path) -> None:
        begun_s = time.monotonic()
        version = self.ask("import sys; print('%d.%d' % sys.version_info[:2])")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", outside / "packages",
             "--only-binary=:all:", "--implementation=cp", f"--python-version={version}",
             "--requirement", PROGRAMS / "requirements.txt"],
            check=True,
        )  # fmt: skip
        build(outside / "packages")
        (outside / "installed").touch()
        print(f"installed packages in {time.monotonic() - begun_s:.0f} s", flush=True)

    def command(self, *words: str) -> list[str]:
        """Runs Python with the packages; the programs are in its directory."""
        packages = f"PYTHONPATH={self.folder / 'packages'}:{self.folder}"
        return ["env", packages, "PYTHONDONTWRITEBYTECODE=1", *self._python, *words]

    def ask(self, code: str) -> str:
        return subprocess.check_output(self.command("-c", code), text=True).strip()

    def start(self, program: str, *words: str) -> Target:
        """Starts a program of ``tests/corpus/python``, and its load."""
        return Target(self.command(str(self.folder / program), *words))

    def watched(self, program: str, kind: str, seconds: float) -> Watched:
        """Starts a program, and attaches to it, or to the first worker that it has forked."""
        target = self.start(program, kind)
        return watch(kind, target, workers(target.pid)[0], seconds)


def workers(pid: int) -> list[int]:
    """Children that were forked and have executed nothing; the process if it has none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    forked = [int(one) for one in children if Path(f"/proc/{one}/cmdline").read_bytes() == own]
    return forked or [pid]


def at_once(
    kinds: Sequence[str], most: int, begin: Callable[[str], Watched], read: Callable[[Watched], str]
) -> bool:
    """Watches programs, some at a time; prints a line for each. Returns whether all are good."""

    def run(kind: str) -> bool:
        load = os.getloadavg()[0]
        said = read(begin(kind))
        print(f"{kind:22} {said}  (load {load:.0f} to {os.getloadavg()[0]:.0f})", flush=True)
        return said[:1] != "!"

    with ThreadPoolExecutor(most) as pool:
        return all(list(pool.map(run, kinds)))


def read_leak(one: Watched) -> str:
    """When and how the leak was named."""
    one.read(LEAKS[one.kind])
    if one.named_s is None:
        return f"! not named; at last {one.last or 'nothing'}"
    return f"{one.named_s:4.0f} s  {one.how}"


def read_clean(one: Watched) -> str:
    """All suspects of all reports."""
    reports, found = 0, set()
    for line in one.command.stdout:
        reports += 1
        found.update(anything(json.loads(line)))
    is_running = one.target.process.poll() is None
    one.end()
    begin = "" if is_running and reports and not found else "! "
    return f"{begin}{len(found)} suspects in {reports} reports {sorted(found) or ''}"


def main() -> None:
    """The command; its status is 1 if a leak is not named in time, or a clean one is suspected."""
    parser = argparse.ArgumentParser("pythonservices", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["leaks", "clean"])
    parser.add_argument("--python", default="/usr/bin/python3", help="(/usr/bin/python3)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each clean service (10)")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_intermixed_args()
    services = Services(options.python)
    if options.part == "leaks":
        kinds = options.names or list(LEAKS)
        most, seconds, read = AT_ONCE, LIMIT_S + 4, read_leak
    else:
        kinds = options.names or list(CLEAN)
        most, seconds, read = CLEAN_AT_ONCE, 60 * options.minutes, read_clean
    program = f"{options.part}.py"
    sys.exit(not at_once(kinds, most, lambda kind: services.watched(program, kind, seconds), read))


if __name__ == "__main__":
    main()
