"""Pushing by OTLP to a receiver that takes nothing but what the definitions describe."""

from __future__ import annotations

import gzip
import http.server
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

from tests.harness import PATIENCE_S
from tests.unit.otlpmessages import decoded_request, profiles, resource_of, sums
from tests.unit.test_push import Heap
from tracelloc.model.process import Target
from tracelloc.show.publish.address import PushConfig, parse_push_url
from tracelloc.show.publish.publishing import Pusher
from tracelloc.show.publish.secrets import authorization

Response = profiles_service_pb2.ExportProfilesServiceResponse


class OtlpReceiver(http.server.ThreadingHTTPServer):
    """Checks each request, keeps what it said, and answers what it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Export)
        self.answers: list[tuple[int, bytes]] = []
        self.got: list[tuple[dict[str, str], Any]] = []
        self.wrong: list[str] = []
        self.came = threading.Condition()
        self.requests = 0

    @property
    def url(self) -> str:
        return f"otlp+http://127.0.0.1:{self.server_address[1]}"

    def wait_for(self, requests: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: self.requests >= requests, PATIENCE_S)


class _Export(http.server.BaseHTTPRequestHandler):
    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = self.server.answers.pop(0) if self.server.answers else (200, b"")
        try:
            assert self.path == "/v1development/profiles"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            assert self.headers["Content-Encoding"] == "gzip"
            message = decoded_request(gzip.decompress(body))
            if status == 200:
                self.server.got.append((dict(self.headers), message))
        except Exception as error:  # noqa: BLE001 - told to the test
            self.server.wrong.append(repr(error))
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        with self.server.came:
            self.server.requests += 1
            self.server.came.notify_all()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    with OtlpReceiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        assert server.wrong == []


def pusher(url: str, heap: Heap, said: list[str], **changes: Any) -> Pusher:
    address, user, is_otlp = parse_push_url(url)
    assert is_otlp
    labels = (("env", "test"),)
    config = PushConfig(address, authorization(user, None), 0.02, None, labels, is_otlp=True)
    take = lambda: [heap.take()]  # noqa: E731
    return Pusher(replace(config, **changes), Target(42, "x"), take, said.append, 0.01)


def test_profiles_arrive(receiver: OtlpReceiver) -> None:
    said: list[str] = []
    started_ns = time.time_ns()
    pushing = pusher(receiver.url, Heap(), said)
    pushing.start()
    receiver.wait_for(3)
    pushing.close()
    assert said == []
    messages = [message for _, message in receiver.got]
    # What is outstanding is sent whole, what was allocated since the last time.
    assert [sums(message) for message in messages[:2]] == [
        {"inuse_space": 100, "inuse_objects": 1, "alloc_space": 1005, "alloc_objects": 11},
        {"inuse_space": 200, "inuse_objects": 2, "alloc_space": 1000, "alloc_objects": 10},
    ]
    resource = resource_of(messages[0].resource_profiles[0].resource)
    assert (resource["service.name"], resource["env"]) == ("server", "test")
    times = [next(profiles(message))[1] for message in messages]
    assert abs(times[0].time_unix_nano - started_ns) < 600e9
    for a, b in itertools.pairwise(times):
        assert abs(a.time_unix_nano + a.duration_nano - b.time_unix_nano) < 1e6
    ids = [profile.profile_id for message in messages for _, profile in profiles(message)]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {16}


def test_names_passwords_and_headers(receiver: OtlpReceiver) -> None:
    said: list[str] = []
    url = receiver.url.replace("//", "//user:s%20cret@")
    pushing = pusher(url, Heap(), said, name="shop", headers=(("X-Key", "s cret"),))
    assert "cret" not in repr(pushing._config)
    pushing.start()
    pushing.close()
    headers, message = receiver.got[0]
    assert headers["Authorization"] == "Basic dXNlcjpzIGNyZXQ="
    assert headers["X-Key"] == "s cret"
    assert headers["User-Agent"].startswith("tracelloc/")
    assert resource_of(message.resource_profiles[0].resource)["service.name"] == "shop"


def test_partial_success_is_shown_once(receiver: OtlpReceiver) -> None:
    refusing = Response()
    refusing.partial_success.rejected_profiles = 2
    refusing.partial_success.error_message = "no \x1b[31mroom"
    remark = Response()
    remark.partial_success.error_message = "use https"
    receiver.answers = [(200, refusing.SerializeToString())] * 2
    receiver.answers += [(200, b""), (200, remark.SerializeToString()), (200, b"\xff")]
    said: list[str] = []
    pushing = pusher(receiver.url, Heap(), said)
    pushing.start()
    receiver.wait_for(6)
    pushing.close()
    url = f"{receiver.url.removeprefix('otlp+')}/v1development/profiles"
    assert said == [
        f"{url}: 2 profiles refused: no \\x1b[31mroom",
        f"{url}: use https",
        f"{url}: its answer cannot be read",
        "4 profiles could not be pushed",
    ]


def test_what_is_tried_again(receiver: OtlpReceiver) -> None:
    receiver.answers = [(503, b""), (429, b""), (200, b""), (500, b""), (400, b"")]
    said: list[str] = []
    heap = Heap()
    pushing = pusher(receiver.url, heap, said)
    pushing.start()
    receiver.wait_for(7)
    pushing.close()
    assert "it answered 503" in said[0]
    assert "accepts profiles again" in said[1]
    assert said[-1] == "2 profiles could not be pushed"
    assert len(receiver.got) == heap.taken - 2


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("otlp+http://host:4318", "http://host:4318/v1development/profiles"),
        ("otlp+https://u@host/base/", "https://host/base/v1development/profiles"),
        ("otlp+http://[::1]/v1development/profiles", "http://[::1]/v1development/profiles"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert parse_push_url(text)[::2] == (url, True)
    with pytest.raises(ValueError, match=r"otlp\+http://HOST:4318"):
        parse_push_url("otlp+grpc://host")
