"""Names and lines of stripped programs from debuginfod servers: Debian's own, and hostile ones."""

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run
from tests.harness import Builder, Target, Tracelloc, run_tracelloc, wait_until
from tracelloc.files.elf.file import ElfFile
from tracelloc.record.symbolization.debuginfod import DebugServers, server_urls

pytestmark = [pytest.mark.bpf, pytest.mark.long]


@pytest.fixture
def program(builder: Builder, tmp_path: Path) -> tuple[Path, Path, str]:
    """A stripped program, its debug file, and their build ID."""
    whole = builder.c("chain", "-Wl,--build-id")
    stripped, debug = tmp_path / "stripped", tmp_path / "files" / "chain.debug"
    debug.parent.mkdir()
    run("objcopy", "--only-keep-debug", whole, debug)
    shutil.copy(whole, stripped)
    run("strip", "--strip-all", stripped)
    elf = ElfFile(stripped.read_bytes())
    assert elf.build_id
    return stripped, debug, elf.build_id


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(program: tuple[Path, Path, str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Debian's server, which has read its files, and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["debuginfod", "-p", str(port), "-d", ":memory:", "-F", program[1].parent],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _has(f"{url}/buildid/{program[2]}/debuginfo"))
        yield url, process
    finally:
        process.kill()
        process.wait()


def _has(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def listed(target: Target, program: Path) -> dict[str, Any]:
    """The entry of the program's file in ``tracelloc symbols --json``."""
    done = run_tracelloc("symbols", "-p", target.pid, "--json", status=0)
    (found,) = [each for each in json.loads(done.stdout) if each["module"] == str(program)]
    assert isinstance(found, dict)
    return found


def test_a_stripped_program_has_names_and_lines(
    program: tuple[Path, Path, str],
    server: tuple[str, subprocess.Popen[bytes]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when the server is gone: the file is kept."""
    stripped, _, build_id = program
    with Target([stripped]) as target:
        assert listed(target, stripped)["lines"] is None
        # Of two servers, the first one is not there.
        monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:1 {server[0]}/")
        tracer = Tracelloc("-p", target.pid, "--json", "--top", 50, "--interval", 60)
        target.ask("go")
        tracer.stop()
        frames = [frame for row in tracer.last()["top_allocators"] for frame in row["stack"]]
        found = {(frame["symbol"], frame["line"]) for frame in frames}
        assert {("innermost", 10), ("middle", 15), ("outermost", 21)} <= found
        messages = [message for message in tracer.messages if "debug information" in message]
        assert [message.split()[1] for message in messages[:2]] == ["downloading", "warning:"]
        server[1].kill()
        server[1].wait()
        monkeypatch.setenv("DEBUGINFOD_URLS", server[0])
        address = f"{server[0]}/buildid/{build_id}/debuginfo"
        kept = listed(target, stripped)
        assert (kept["names"], kept["lines"]) == (
            f"{address} (by debuginfod)",
            f"DWARF in {address}",
        )
        assert len(list(cache.rglob("*.debug"))) == 1


Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def hostile() -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers so."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        servers.append(made)
        return f"http://127.0.0.1:{made.server_address[1]}"

    yield start
    for each in servers:
        each.shutdown()
        each.server_close()


def _sends(content: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def test_servers_that_fail(hostile: Callable[[Answer], str], cache: Path) -> None:
    """Each is asked once, and the reason said once; a missing file is no failure."""
    said: list[str] = []
    asked: list[str] = []

    def count(answer: Answer) -> Answer:
        def counted(handler: BaseHTTPRequestHandler) -> None:
            asked.append(handler.path)
            answer(handler)

        return counted

    missing = hostile(count(_sends(b"", 404)))
    broken = hostile(count(_sends(b"", 500)))
    leads_away = hostile(count(_sends(b"", 302, Location="file:///etc/passwd")))
    servers = DebugServers(
        {"DEBUGINFOD_URLS": f"{missing} {broken} {leads_away} http://127.0.0.1:1"}
    )
    servers.tell = said.append
    for build_id in ("ab" * 20, "ab" * 20, "cd" * 20):
        assert servers.open_debug_file(build_id, "/bin/\x1b[2Jx") is None
    assert asked == [f"/buildid/{name * 20}/debuginfo" for name in ("ab", "ab", "ab", "cd")]
    warnings = [message for message in said if message.startswith("warning")]
    assert [broken in warnings[0], leads_away in warnings[1], ":1 " in warnings[2]] == [True] * 3
    assert len(warnings) == 3
    assert "HTTP status 500" in warnings[0]
    assert all(message.isprintable() for message in said)
    assert list(cache.rglob("*.debug")) == []


def test_what_a_server_sends_must_have_the_build_id(
    hostile: Callable[[Answer], str],
    program: tuple[Path, Path, str],
    builder: Builder,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = builder.c("beside").read_bytes()
    with Target([program[0]]) as target:
        for content in (other, b"\x7fELF" + bytes(100), b"<html>"):
            monkeypatch.setenv("DEBUGINFOD_URLS", hostile(_sends(content)))
            found = listed(target, program[0])
            assert found["lines"] is None
            assert [trouble.endswith("is of another build") for trouble in found["troubles"]] == [
                True
            ]
            shutil.rmtree(cache)


def test_the_variable() -> None:
    assert server_urls({}) == []
    text = "https://a.example/ http://b:8002 ima:enforcing ftp://c file:///etc"
    assert server_urls({"DEBUGINFOD_URLS": text}) == ["https://a.example", "http://b:8002"]
