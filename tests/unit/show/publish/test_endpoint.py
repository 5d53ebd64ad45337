"""The endpoint as go tool pprof, a scraper and a browser see it."""

import gzip
import http.client
import json
import socket
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.chrome import Chrome
from tests.unit.profiles import frame, hostile, profile, sample, small
from tests.unit.show.export.test_export_formats import decoded
from tracelloc.errors import TracellocError
from tracelloc.show.presentation.profile import Profile
from tracelloc.show.publish import endpoint as endpoint_module
from tracelloc.show.publish.address import ListenAddress, parse_listen
from tracelloc.show.publish.endpoint import Endpoint, listen_on, metrics


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[], Profile]], Endpoint]]:
    started: list[Endpoint] = []

    def start(take: Callable[[], Profile]) -> Endpoint:
        endpoint = Endpoint(listen_on(ListenAddress("127.0.0.1", 0)), lambda: [take()])
        started.append(endpoint)
        return endpoint

    yield start
    for endpoint in started:
        endpoint.close()


Serve = Callable[[Callable[[], Profile]], Endpoint]


def connect(endpoint: Endpoint) -> socket.socket:
    port = int(endpoint.url.rsplit(":", 1)[1].strip("/"))
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def ask(endpoint: Endpoint, path: str, method: str = "GET", **headers: str) -> Any:
    connection = http.client.HTTPConnection(endpoint.url.split("/")[2], timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.content = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def test_heap_metrics_and_failures(serve: Serve) -> None:
    endpoint = serve(small)
    answer = ask(endpoint, "/debug/pprof/heap")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="heap"'
    message = decoded(answer.content)
    assert sum(s.value[1] for s in message.sample) == 716
    message = decoded(ask(endpoint, "/debug/pprof/allocs?debug=0").content)
    assert message.string_table[message.default_sample_type] == "alloc_space"
    head = ask(endpoint, "/debug/pprof/heap", "HEAD")
    assert (head.status, head.content) == (200, b"")
    profiles = [small(), profile([*small().samples, sample(9, [frame("new")], (50, 1, 50, 1, 0))])]
    endpoint = serve(lambda: profiles.pop(0))
    message = decoded(ask(endpoint, "/debug/pprof/heap?seconds=1").content)
    assert sum(s.value[1] for s in message.sample) == 50
    assert json.loads(ask(serve(hostile), "/flamegraph.json").content)["refresh"] == 5
    assert gzip.decompress(ask(serve(hostile), "/debug/pprof/heap").content)

    def fail() -> Profile:
        raise TracellocError("the pump died\n<script>")

    answer = ask(serve(fail), "/")
    assert answer.status == 503
    assert answer.content == b"the pump died\\n<script>\n"
    assert answer.headers["Content-Type"].startswith("text/plain")
    endpoint = serve(small)
    for host in ("localhost:1", "127.0.0.1", "[::1]:9"):
        assert ask(endpoint, "/metrics", Host=host).status == 200
    assert ask(endpoint, "/metrics", Host="evil.example").status == 403
    facts = {
        "live_bytes": 716, "live_allocations": 4, "allocated_bytes": 6316, "allocations": 14,
        "freed_bytes": 5600, "frees": 10, "unmatched_frees": 12, "events_per_s": 34.5,
        "rss_bytes": None, "probe_share": 0.125, "lost": {"lost_frees": 0, "lost_stacks": 2},
    }  # fmt: skip
    found = profile(list(hostile().samples))
    found = Profile(**{n: getattr(found, n) for n in Profile.__slots__} | {"facts": facts})
    answer = ask(serve(lambda: found), "/metrics")
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {f.name: f for f in text_string_to_metric_families(answer.content.decode())}
    values = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert values["tracelloc_live_bytes"] == 716
    assert values["tracelloc_allocated_bytes"] == 6316
    assert values["tracelloc_probe_share_ratio"] == 0.125
    assert families["tracelloc_allocations"].type == "counter"
    assert families["tracelloc_allocations"].samples[0].name == "tracelloc_allocations_total"
    assert "tracelloc_rss_bytes" not in families
    lost = {s.labels["cause"]: s.value for s in families["tracelloc_lost"].samples}
    assert lost == {"lost_frees": 0, "lost_stacks": 2}
    stacks = families["tracelloc_stack_bytes"].samples
    assert len(stacks) == 10
    assert stacks[0].labels["command"] == "server"
    assert any("\"':window.hacked=1:" in s.labels["stack"] for s in stacks)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nothing", 404, "/debug/pprof/heap"),
        ("/debug/pprof/heap?seconds=x", 400, "whole number"),
        ("/debug/pprof/heap?seconds=99999", 400, "at most 300"),
        ("/../../etc/passwd", 404, "known paths"),
    ],
)
def test_refusals(serve: Serve, path: str, status: int, words: str) -> None:
    answer = ask(serve(small), path)
    assert answer.status == status
    assert words in answer.content.decode()
    assert len(answer.content.splitlines()) == 1


def test_rude_slow_and_many_clients(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = serve(small)
    for connection in [connect(endpoint) for _ in range(40)]:
        connection.close()
    with connect(endpoint) as connection:
        connection.sendall(b"\xff\x00 nonsense\r\n\r\n")
        assert b"400" in connection.recv(1000)
    for _ in range(100):
        try:
            assert ask(endpoint, "/metrics").status == 200
            break
        except (ConnectionError, http.client.HTTPException):
            continue
    else:
        pytest.fail("never answered again")
    # Many connections that ask nothing, or ask byte by byte.
    endpoint = serve(small)
    slow = [connect(endpoint) for _ in range(64)]
    try:
        for connection in slow:
            with suppress(OSError):
                connection.send(b"GET /metr")
        for _ in range(8):
            assert ask(endpoint, "/metrics").status == 200
        for connection in slow[:16]:
            # The oldest have made room.
            with suppress(OSError):
                assert connection.recv(1) == b""
    finally:
        for connection in slow:
            connection.close()
    endpoint = serve(small)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(endpoint, "/debug/pprof/heap?seconds=2"), range(8)))
    assert sorted(answer.status for answer in answers) == [200] * 4 + [503] * 4
    assert ask(endpoint, "/metrics").status == 200
    monkeypatch.setattr(endpoint_module, "_REQUEST_PATIENCE_S", 0.3)
    with connect(serve(small)) as connection:
        connection.send(b"GET / HTTP/1.0\r\nX: ")
        assert connection.recv(1) == b""


@pytest.mark.long
def test_page_refreshes(serve: Serve, tmp_path: Path) -> None:
    bytes_held = [100]

    def take() -> Profile:
        return profile([sample(1, [frame("f"), frame("main")], (bytes_held[0], 1, 100, 1, 0))])

    endpoint = serve(take)
    with Chrome(tmp_path / "browser") as chrome:
        chrome.open(endpoint.url)
        assert chrome.evaluate("document.getElementById('subtitle').innerText").startswith("100 B")
        chrome.evaluate("page.zoomTo(page.tree.find(['server', 'main']))")
        bytes_held[0] = 250
        chrome.evaluate("page.update().then(() => 1)")
        assert chrome.evaluate("document.getElementById('subtitle').innerText").startswith("250 B")
        assert chrome.evaluate("page.tree.nameOf(page.zoom)") == "main"
        assert chrome.evaluate("page.data.refresh") == 5
        endpoint.close()
        chrome.evaluate("page.update().then(() => 1)")
        assert "no longer answers" in chrome.evaluate("document.getElementById('notes').innerText")


def test_addresses_and_tokens() -> None:
    assert parse_listen("6060") == ListenAddress("127.0.0.1", 6060)
    assert parse_listen("0.0.0.0:1") == ListenAddress("0.0.0.0", 1)
    assert parse_listen("[::1]:80") == ListenAddress("::1", 80)
    assert parse_listen("host.name:0") == ListenAddress("host.name", 0)
    for wrong in ("", ":80", "a:b", "1.2.3.4", "70000", "::1:80", "http://x:1", "-1", "unix:/x"):
        with pytest.raises(ValueError, match=r"is not \[HOST:\]PORT"):
            parse_listen(wrong)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TracellocError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            listen_on(ListenAddress("127.0.0.1", port))
    with pytest.raises(TracellocError, match=r"cannot listen on no\.such\.host\.invalid:1: "):
        listen_on(ListenAddress("no.such.host.invalid", 1))
    for host, public in (("0.0.0.0", True), ("127.0.0.1", False), ("::1", False)):
        endpoint = listening(ListenAddress(host, 0))
        assert endpoint.is_loopback is not public
        endpoint.close()
    families = {f.name: f for f in text_string_to_metric_families(metrics([profile([])]))}
    assert families["tracelloc_live_bytes"].samples[0].value == 1
    address = ListenAddress("127.0.0.1", 0, token="s3cret")
    assert "s3cret" not in repr(address)
    endpoint = listening(address, "s3cret")
    basic = b64encode(b"anybody:s3cret").decode()
    for header, status in (
        ("Bearer s3cret", 200), (f"Basic {basic}", 200), (f"basic {basic}", 200),
        ("Bearer s3cre", 401), ("Basic s3cret", 401), ("Basic \xff", 401),
        ("s3cret", 401), ("", 401),
    ):  # fmt: skip
        for path in ("/metrics", "/", "/debug/pprof/heap", "/nothing"):
            answer = ask(endpoint, path, Authorization=header)
            expected = 404 if path == "/nothing" and status == 200 else status
            assert answer.status == expected, (header, path)
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="tracelloc"'
    endpoint.close()


def listening(address: ListenAddress, *secrets: str) -> Endpoint:
    return Endpoint(listen_on(address), lambda: [small()], *secrets)
