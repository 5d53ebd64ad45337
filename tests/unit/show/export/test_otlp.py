"""OTLP files, read by the official definitions."""

import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.commands import outcome
from tests.unit.otlpmessages import (
    attributes_of,
    decoded_file,
    profiles,
    resource_of,
    stacks_of,
    sums,
    type_of,
)
from tests.unit.profiles import HOSTILE, frame, hostile, large, peaked, profile, sample, small
from tracelloc import __version__
from tracelloc.errors import UsageError
from tracelloc.model.frames import Frame
from tracelloc.model.process import Target
from tracelloc.show.export import EXPORTERS, exporter_for
from tracelloc.show.export.otlp import request_headers, service_attributes
from tracelloc.show.presentation.combined import difference, joined_profile
from tracelloc.show.presentation.profile import FIGURES, LIVE_BYTES, Metric, Profile
from tracelloc.text import printable

CONTAINER = "0123456789abcdef" * 4
VARIABLES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def message_of(found: Profile, metric: Metric = Metric.BYTES) -> Any:
    return decoded_file(b"".join(EXPORTERS[".otlp"].write(found, metric)))


def test_one_profile_for_each_sample_type() -> None:
    message = message_of(small())
    (each,) = message.resource_profiles
    (scope,) = each.scope_profiles
    assert (scope.scope.name, scope.scope.version) == ("tracelloc", __version__)
    types = [type_of(message, p.sample_type) for p in scope.profiles]
    assert types == [
        ("inuse_space", "bytes"), ("inuse_objects", "count"),
        ("alloc_space", "bytes"), ("alloc_objects", "count"),
    ]  # fmt: skip
    for one in scope.profiles:
        assert type_of(message, one.period_type) == ("space", "bytes")
        assert one.period == 1
        assert one.duration_nano == 90_000_000_000
        assert one.time_unix_nano + one.duration_nano == 1_700_000_000_500_000_000
        assert attributes_of(message, one) == {
            "tracelloc.notes": ["lost 0 events, 12 unmatched frees"]
        }
    live, count, allocated, _ = (stacks_of(message, p) for p in scope.profiles)
    assert live == [
        (400, [[("grow", 7), ("push", 7), ("handle", 7)], [("main", 1)]]),
        (300, [[("[runtime]", 3)], [("main", 1)]]),
        (16, [[("[no call stack]", 0)], [("[unknown]", 0)]]),
    ]
    assert [value for value, _ in count] == [2, 1, 1]
    assert allocated[3] == (5000, [[("temporary", 1)], [("main", 1)]])


def test_mappings_and_processes() -> None:
    python = Frame(1 << 62 | 1, "handler", "handler (app.py:3)", None, None, "[Python]", None,
                   None, "app.py", 7)  # fmt: skip
    generated = Frame(0x1234, "jit", "jit", 0, None, "[generated code]", None)
    found = profile([sample(1, [frame("f"), python, generated, frame("main")], (8, 1, 8, 1, 0))])
    message = message_of(found)
    _, app = message.dictionary.mapping_table
    assert attributes_of(message, app) == {"process.executable.build_id.gnu": "ab" * 20}
    kinds = [
        (message.dictionary.string_table[
            message.dictionary.function_table[at.lines[0].function_index].name_strindex],
         attributes_of(message, at).get("profile.frame.type"), at.address)
        for at in message.dictionary.location_table[1:]
    ]  # fmt: skip
    assert kinds == [
        ("f", "native", frame("f").address - 1), ("handler", "cpython", 0),
        ("jit", None, 0x1233), ("main", "native", frame("main").address - 1),
    ]  # fmt: skip
    # A stack that two processes share is in the tables once.
    other = replace(small(), target=Target(43, "worker", number=1))
    message = message_of(joined_profile([small(), other]))
    assert [resource_of(r.resource)["process.pid"] for r in message.resource_profiles] == [42, 43]
    assert sums(message)["inuse_space"] == 2 * sums(message_of(small()))["inuse_space"]
    assert len(message.dictionary.stack_table) == 1 + 4
    facts = {"lost_events": 3, "lost": {"lost_allocs": 2, "lost_frees": 1}, "unmatched_frees": 4,
             "truncated_stacks": 5}  # fmt: skip
    message = message_of(replace(small(), facts=facts, sample_bytes=4096))
    for _, one in profiles(message):
        assert one.period == 4096
        assert attributes_of(message, one) == {
            "tracelloc.lost_events": 3, "tracelloc.lost.lost_allocs": 2,
            "tracelloc.lost.lost_frees": 1, "tracelloc.unmatched_frees": 4,
            "tracelloc.truncated_stacks": 5, "tracelloc.sample_bytes": 4096,
            "tracelloc.notes": ["lost 0 events, 12 unmatched frees"],
        }  # fmt: skip


def test_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(42, "server", 7, executable="/opt/shop/bin/server-1.2",
                    container_id=CONTAINER, host="node-3", machine="arm64",
                    pod_uid="0e7a")  # fmt: skip
    message = message_of(replace(small(), target=target))
    assert resource_of(message.resource_profiles[0].resource) == {
        "service.name": "server", "process.pid": 42, "process.parent_pid": 7,
        "process.executable.name": "server-1.2",
        "process.executable.path": "/opt/shop/bin/server-1.2",
        "container.id": CONTAINER, "k8s.pod.uid": "0e7a",
        "host.name": "node-3", "host.arch": "arm64",
    }  # fmt: skip
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment=eu%2C1, x.y = z")
    resource = resource_of(message_of(small()).resource_profiles[0].resource)
    assert (resource["service.name"], resource["deployment"], resource["x.y"]) == ("a", "eu,1", "z")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    resource = resource_of(message_of(small()).resource_profiles[0].resource)
    assert (resource["service.name"], resource["process.pid"]) == ("shop", 42)


@pytest.mark.parametrize("text", ["service.name", "=x", "a=b,c"])
def test_variables_that_make_no_sense(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", text)
    with pytest.raises(UsageError, match="OTEL_RESOURCE_ATTRIBUTES must look like KEY=VALUE"):
        exporter_for("x.otlp")


def test_headers() -> None:
    variable = "OTEL_EXPORTER_OTLP_HEADERS"
    assert request_headers({}) == {}
    assert request_headers({variable: "api-key=a%20b,x=1"}) == {"api-key": "a b", "x": "1"}
    own = {"OTEL_EXPORTER_OTLP_PROFILES_HEADERS": "y=2", variable: "x=1"}
    assert request_headers(own) == {"y": "2"}
    for wrong in ("key: secret", "x=secret%0d%0aHost: b", "a b=secret"):
        with pytest.raises(UsageError, match=variable) as caught:
            request_headers({variable: wrong})
        assert "secret" not in str(caught.value)
    assert service_attributes({"OTEL_SERVICE_NAME": ""}) == {}


@pytest.mark.parametrize("metric", Metric)
def test_sums_are_exact_and_the_metric_comes_first(metric: Metric) -> None:
    found = peaked()
    message = message_of(found, metric)
    kinds = {f.sample_type: f for f in FIGURES if f.sample_type}
    expected = {
        name: sum(kinds[name].value_of(s.stat) for s in found.samples) for name in sums(message)
    }
    assert sums(message) == expected
    first = message.resource_profiles[0].scope_profiles[0].profiles[0]
    wanted = metric.figure if metric.figure.sample_type else LIVE_BYTES
    assert type_of(message, first.sample_type)[0] == wanted.sample_type
    assert {"inuse_space", "inuse_objects", "alloc_space", "alloc_objects"} <= set(expected)


def test_differences_numbers_and_large_profiles() -> None:
    message = message_of(difference(small(), replace(small(), samples=())))
    assert sums(message)["inuse_space"] == -716
    _, first = next(profiles(message))
    assert attributes_of(message, first)["tracelloc.difference"] is True
    names = set(message_of(hostile()).dictionary.string_table)
    assert {printable(name) for name in HOSTILE} <= names
    assert not any("\x1b" in name or "\u202e" in name for name in names)
    found = profile([sample(1, [frame("f\udcff", line=1 << 70)], (1 << 80, 1, -(1 << 80), 1, 0))])
    found = replace(found, target=Target(1 << 70, "\udc80", executable="/x/\udc80\x1b[31m"))
    assert sums(message_of(found))["inuse_space"] == (1 << 63) - 1
    assert sums(message_of(profile([])))["inuse_space"] == 0
    found = large(2000)
    message = message_of(found)
    assert sums(message)["inuse_space"] == found.total(Metric.BYTES)
    assert sums(message)["alloc_space"] == found.total(Metric.ALLOCATED)


@pytest.mark.parametrize(
    ("prelude", "words"),
    [
        ("sys.modules['opentelemetry.proto'] = None", "pip install 'opentelemetry-proto>=1.40,<2'"),
        (("import opentelemetry.proto.profiles.v1development as d, "
         "opentelemetry.proto.common.v1.common_pb2 as c; d.profiles_pb2 = c; "
         "sys.modules['opentelemetry.proto.profiles.v1development.profiles_pb2'] = c"),
         "opentelemetry-proto defines no ProfilesDictionary.stack_table"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["-o x.otlp", "--push otlp+http://localhost:4318"])
def test_without_the_definitions(prelude: str, words: str, option: str) -> None:
    program = f"import sys; {prelude}\nfrom tracelloc.__main__ import main\n"
    program += f"sys.argv = ['tracelloc', '-p', '1', *{option.split()!r}]; sys.exit(main())"
    done = outcome(sys.executable, "-c", program)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
