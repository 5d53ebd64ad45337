"""Pushing against a stand-in that takes nothing but what Pyroscope's API describes."""

import email
import email.policy
import json
import re
import time
import urllib.parse
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness import wait_until
from tests.unit.profiles import frame, profile, sample
from tests.unit.receivers import Handler, Receiver, serving
from tests.unit.show.export.test_export_formats import decoded
from tracelloc.errors import TracellocError
from tracelloc.model.process import Target
from tracelloc.show.presentation.combined import MAPPED
from tracelloc.show.presentation.profile import Profile
from tracelloc.show.publish.address import (
    PushConfig,
    authorization,
    is_open_to_readers,
    parse_label,
    parse_push_url,
    read_secret,
)
from tracelloc.show.publish.publishing import MOST_WAITING, Pusher, Sharing

NAME = re.compile(r"[^{},=\"\s]+\{([^{},=\"\s]+=[^{},=\"\s]+(,[^{},=\"\s]+=[^{},=\"\s]+)*)?\}")


class Ingest(Handler):
    def checked(self, body: bytes) -> dict[str, Any]:
        parts = urllib.parse.urlsplit(self.path)
        assert parts.path == "/ingest"
        query = dict(urllib.parse.parse_qsl(parts.query, strict_parsing=True))
        assert query["format"] == "pprof"
        assert NAME.fullmatch(query["name"]), query["name"]
        assert int(query["from"]) <= int(query["until"])
        assert abs(int(query["until"]) - time.time()) < 3600
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        assert form.get_content_type() == "multipart/form-data"
        found = {
            part.get_param("name", header="content-disposition"): part.get_payload(decode=True)
            for part in form.iter_parts()  # type: ignore[attr-defined]
        }
        assert set(found) == {"profile", "sample_type_config"}
        message = decoded(found["profile"])
        types = json.loads(found["sample_type_config"])
        text = message.string_table
        assert set(types) == {text[t.type] for t in message.sample_type}
        for kind in types.values():
            assert kind["units"] in ("objects", "bytes")
            assert kind["aggregation"] in ("sum", "average")
        return {"query": query, "message": message, "headers": dict(self.headers)}


StandIn = partial(Receiver, Ingest)


@pytest.fixture
def server() -> Iterator[Receiver]:
    with serving(StandIn()) as stand_in:
        yield stand_in


class Heap:
    """Each profile has more allocated than the one before."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> Profile:
        self.taken += 1
        n = self.taken
        return profile([
            sample(1, [frame("f"), frame("main")], (100 * n, n, 1000 * n, 10 * n, 0)),
            sample(2, [frame("g"), frame("main")], (0, 0, 5, 1, 0)),
        ])  # fmt: skip


def config_of(url: str) -> PushConfig:
    address, user, is_otlp = parse_push_url(url)
    labels = (("env", "test"),)
    return PushConfig(address, authorization(user, None), 0.02, None, labels, is_otlp=is_otlp)


def pusher(url: str, heap: Heap, said: list[str], **changes: Any) -> Pusher:
    config = replace(config_of(url), **changes)
    return Pusher(config, Target(42, "my app=1"), lambda: [heap.take()], said.append, 0.01)


def pushed(server: Receiver, requests: int, heap: Heap | None = None) -> tuple[Pusher, list[str]]:
    """What has pushed until so many requests have come, and what it said."""
    said: list[str] = []
    pushing = pusher(server.url, heap or Heap(), said)
    pushing.start()
    server.wait_for(requests)
    pushing.close()
    return pushing, said


def sums(got: dict[str, Any]) -> list[int]:
    return [sum(s.value[n] for s in got["message"].sample) for n in range(4)]


def test_profiles_arrive_with_names(server: Receiver) -> None:
    pushing, said = pushed(server, 3)
    assert said == []
    first, second, *_ = server.got
    query = first["query"]
    assert query["name"].startswith("my_app_1{hostname=")
    assert query["name"].endswith(",pid=42,env=test}")
    assert query["spyName"] == "tracelloc"
    # What is outstanding is sent whole, what was allocated since the last time.
    assert sums(first) == [1, 100, 11, 1005]
    assert sums(second) == [2, 200, 10, 1000]
    assert sum(sums(got)[3] for got in server.got) == 1000 * len(server.got) + 5
    for a, b in zip(server.got, server.got[1:], strict=False):
        assert int(a["query"]["until"]) <= int(b["query"]["until"])
    assert pushing.dropped == 0
    assert parse_label("a.b=c-d:1") == ("a.b", "c-d:1")
    for wrong in ("a", "=b", "a=", "a=b,c", "1=2", 'a="b"', "a={b}"):
        with pytest.raises(ValueError, match="KEY=VALUE"):
            parse_label(wrong)


def test_errors_are_tried_again_in_order(server: Receiver) -> None:
    server.answers = [(500, b""), (503, b""), (429, b"")]
    heap = Heap()
    pushing, said = pushed(server, 5, heap)
    assert [line.split(": ")[0] for line in said] == [
        "error", f"{server.url}/ingest accepts profiles again",
    ]  # fmt: skip
    assert "it answered 500" in said[0]
    assert sum(sums(got)[3] for got in server.got) == 1000 * heap.taken + 5, "nothing is missing"
    assert pushing.dropped == 0


def test_refused_profiles_are_not_repeated(server: Receiver) -> None:
    server.answers = [(400, b""), (302, b"")]
    pushing, said = pushed(server, 4)
    assert pushing.dropped == 2
    assert "it answered 400" in said[0]
    assert said[-1] == "2 profiles could not be pushed"


def new_in(pushing: Pusher, now: Profile) -> list[tuple[int, int]]:
    """Bytes and blocks of each sample that were allocated since the profile before."""
    stats = [each.stat for each in pushing._with_new_allocations(now).samples]
    return [(stat.allocated_bytes, stat.allocated_count) for stat in stats]


def test_totals_mappings_and_servers_that_are_not_there() -> None:
    """In the next program, as many may have been allocated as before, or less.

    Servers add up what they are sent.
    """
    heap, sent = Heap(), []
    pushing = pusher("http://127.0.0.1:9", heap, [])
    figures = [(1000, 100), (4000, 400), (500, 50), (500, 50), (4000, 400)]
    for table, (size, count) in zip([1, 1, 2, 2, 3], figures, strict=True):
        now = profile([sample(1, [frame("f")], (30, 3, size, count, 0))])
        sent += new_in(pushing, replace(now, table_number=table))
    assert sent == [(1000, 100), (3000, 300), (500, 50), (0, 0), (4000, 400)]
    # What is left of mappings may become less: nothing of it was allocated since.
    pushing = pusher("http://127.0.0.1:9", Heap(), [])
    sent = []
    for blocks, mapped in ((100, 5000), (300, 4096), (300, 8192)):
        now = profile([
            sample(1, [frame("f")], (30, 3, blocks, 1, 0)),
            sample(1, [frame("f"), frame(MAPPED)], (mapped, 1, mapped, 1, 0)),
        ])  # fmt: skip
        sent.append([size for size, _ in new_in(pushing, now)])
    assert sent == [[100, 5000], [200, 0], [0, 4096]]
    said: list[str] = []
    heap = Heap()
    pushing = pusher("http://127.0.0.1:9", heap, said, interval_s=0.002)
    pushing.start()
    wait_until(lambda: heap.taken >= 3 * MOST_WAITING)
    assert len(pushing._waiting) <= MOST_WAITING
    pushing.close()
    assert said[0] == "error: cannot push to http://127.0.0.1:9/ingest: Connection refused"
    assert said[-1] == f"{heap.taken} profiles could not be pushed"
    assert len(said) == 2


def test_a_profile_that_cannot_be_made_is_no_end(server: Receiver) -> None:
    class BrokenHeap(Heap):
        def take(self) -> Profile:
            if not self.taken:
                self.taken = 1
                raise KeyError(1)
            return super().take()

    pushing, said = pushed(server, 2, BrokenHeap())
    assert said[0] == f"error: cannot push to {server.url}/ingest: 1"
    assert pushing.dropped == 1


@pytest.mark.parametrize(
    ("text", "url", "user"),
    [
        ("http://host", "http://host/ingest", None),
        ("https://u:p%40@host:4040/base/", "https://host:4040/base/ingest", "u:p@"),
        ("http://[::1]:4040/ingest", "http://[::1]:4040/ingest", None),
        ("https://u@host", "https://host/ingest", "u"),
    ],
)
def test_urls(text: str, url: str, user: str | None) -> None:
    assert parse_push_url(text) == (url, user, False)


def test_passwords_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """Whoever runs ps sees a command line."""
    secret = tmp_path / "password"
    secret.write_bytes(b"p:\xe9ssword\r\nmore\n")
    variable = {"TRACELLOC_PUSH_PASSWORD": "other"}
    found = read_secret(secret, "TRACELLOC_PUSH_PASSWORD", variable)
    assert b64decode((authorization("u", found) or "").partition(" ")[2]) == b"u:p:\xe9ssword"
    assert authorization(None, "token") == "Bearer token"
    assert authorization("u", None) == f"Basic {b64encode(b'u:').decode()}"
    assert authorization("u:p", "unused") == f"Basic {b64encode(b'u:p').decode()}"
    assert authorization(None, None) is None
    assert read_secret(None, "TRACELLOC_PUSH_PASSWORD", variable) == "other"
    assert read_secret(None, "TRACELLOC_PUSH_PASSWORD", {}) is None
    secret.write_bytes(b"\n")
    for path, reason in ((secret, "has no secret"), (tmp_path / "none", "cannot be read: No such")):
        with pytest.raises(TracellocError, match=reason):
            read_secret(path, "TRACELLOC_PUSH_PASSWORD", {})


@pytest.mark.parametrize(
    ("url", "is_open"),
    [
        ("http://pyroscope:4040/ingest", True), ("http://10.0.0.1/ingest", True),
        ("https://pyroscope/ingest", False), ("http://localhost:4040/ingest", False),
        ("http://127.0.0.2/ingest", False), ("http://[::1]:4040/ingest", False),
    ],
)  # fmt: skip
def test_plain_http_to_other_machines_is_warned_of(url: str, is_open: bool) -> None:
    assert is_open_to_readers(url) is is_open
    said: list[str] = []
    sharing = Sharing(None, PushConfig(url, "Bearer x", 3600, None, ()), said.append)
    sharing.start(Target(42, "app"), None, None)  # type: ignore[arg-type]
    sharing._pusher = None
    warning = f"warning: profiles and the password can be read on the way to {url}: use https"
    assert said == [f"pushing to {url}", *([warning] if is_open else [])]


@pytest.mark.parametrize("text", ["host:4040", "ftp://host", "http://", "http://u:secret@h:x", ""])
def test_wrong_urls(text: str) -> None:
    with pytest.raises(ValueError, match="must look like") as caught:
        parse_push_url(text)
    assert "secret" not in str(caught.value)
