"""Pushing by OTLP to a receiver that takes nothing but what the definitions describe."""

import gzip
import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

from tests.unit.otlpmessages import decoded_request, profiles, resource_of, sums
from tests.unit.receivers import Handler, Receiver, serving
from tests.unit.show.publish.test_push import Heap, config_of, pushed, pusher
from tracelloc.show.publish.address import parse_push_url

Response = profiles_service_pb2.ExportProfilesServiceResponse


class Export(Handler):
    def checked(self, body: bytes) -> tuple[dict[str, str], Any]:
        assert self.path == "/v1development/profiles"
        assert self.headers["Content-Type"] == "application/x-protobuf"
        assert self.headers["Content-Encoding"] == "gzip"
        return dict(self.headers), decoded_request(gzip.decompress(body))


OtlpReceiver = partial(Receiver, Export, "otlp+http")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    with serving(OtlpReceiver()) as server:
        yield server


def test_profiles_arrive(receiver: Receiver) -> None:
    started_ns = time.time_ns()
    assert pushed(receiver, 3)[1] == []
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


def test_names_passwords_and_headers(receiver: Receiver) -> None:
    said: list[str] = []
    url = receiver.url.replace("//", "//user:s%20cret@")
    pushing = pusher(url, Heap(), said, name="shop", headers=(("X-Key", "s cret"),))
    assert "cret" not in repr(config_of(url))
    pushing.start()
    pushing.close()
    headers, message = receiver.got[0]
    assert headers["Authorization"] == "Basic dXNlcjpzIGNyZXQ="
    assert headers["X-Key"] == "s cret"
    assert headers["User-Agent"].startswith("tracelloc/")
    assert resource_of(message.resource_profiles[0].resource)["service.name"] == "shop"


def test_partial_success_is_shown_once(receiver: Receiver) -> None:
    refusing = Response()
    refusing.partial_success.rejected_profiles = 2
    refusing.partial_success.error_message = "no \x1b[31mroom"
    remark = Response()
    remark.partial_success.error_message = "use https"
    receiver.answers = [(200, refusing.SerializeToString())] * 2
    receiver.answers += [(200, b""), (200, remark.SerializeToString()), (200, b"\xff")]
    _, said = pushed(receiver, 6)
    url = f"{receiver.url.removeprefix('otlp+')}/v1development/profiles"
    assert said == [
        f"{url}: 2 profiles refused: no \\x1b[31mroom",
        f"{url}: use https",
        f"{url}: its answer cannot be read",
        "4 profiles could not be pushed",
    ]


def test_what_is_tried_again(receiver: Receiver) -> None:
    receiver.answers = [(503, b""), (429, b""), (200, b""), (500, b""), (400, b"")]
    heap = Heap()
    _, said = pushed(receiver, 7, heap)
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
