"""A real process, asked over HTTP while it is traced, and pushed."""

import json
import os
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.harness import CHAIN_BYTES, Builder, Targets, Tracelloc, run_tracelloc
from tests.unit.otlpmessages import resource_of
from tests.unit.otlpmessages import sums as sums_by_type
from tests.unit.receivers import serving
from tests.unit.show.export.test_export_formats import decoded, go_pprof
from tests.unit.show.publish.test_push import StandIn, sums
from tests.unit.show.publish.test_push_otlp import OtlpReceiver

pytestmark = pytest.mark.bpf


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        content: bytes = answer.read()
    return content


@pytest.mark.long
def test_listen(targets: Targets, tmp_path: Path) -> None:
    target = targets.c("chain")
    tracer = Tracelloc("-p", target.pid, "--json", "--listen", "0")
    url = tracer.wait_for("listening on").split()[-1]
    assert url.startswith("http://127.0.0.1:")
    assert target.ask("go") == "done"
    top = go_pprof(tmp_path, "-top", "-unit=B", "-nodefraction=0", f"{url}debug/pprof/heap")
    assert f"{CHAIN_BYTES}B total" in top
    assert "innermost" in top
    message = decoded(fetch(f"{url}debug/pprof/heap"))
    assert sum(s.value[1] for s in message.sample) == CHAIN_BYTES
    families = {f.name: f for f in text_string_to_metric_families(fetch(f"{url}metrics").decode())}
    (live,) = families["tracelloc_live_bytes"].samples
    assert live.value == CHAIN_BYTES
    assert live.labels["pid"] == str(target.pid)
    assert len(families["tracelloc_stack_bytes"].samples) == 4
    assert b'"recurse"' in fetch(url)
    assert {"main", "recurse"} <= set(json.loads(fetch(f"{url}flamegraph.json"))["names"])
    assert tracer.final_report()["live_bytes"] == CHAIN_BYTES
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2])))


def test_push(targets: Targets) -> None:
    target = targets.c("chain")
    with serving(StandIn()) as server:
        options = ["--push", server.url, "--push-label", "env=test", "--push-interval", "1h"]
        tracer = Tracelloc("-p", target.pid, *options)
        tracer.wait_for("pushing to")
        assert target.ask("go") == "done"
        # What happened until the end is in the last one.
        assert tracer.stop() == 0
    (got,) = server.got
    assert sums(got) == [4, CHAIN_BYTES, 4, CHAIN_BYTES]
    assert f"pid={target.pid},env=test" in got["query"]["name"]


def test_push_by_otlp(builder: Builder, targets: Targets) -> None:
    program = builder.c("chain")
    target = targets.start(program)
    with serving(OtlpReceiver()) as server:
        options = ["--push", server.url, "--push-name", "shop", "--push-interval", "1h"]
        tracer = Tracelloc("-p", target.pid, *options)
        tracer.wait_for("pushing to")
        assert target.ask("go") == "done"
        assert tracer.stop() == 0
    ((_, message),) = server.got
    assert sums_by_type(message) == {
        "inuse_objects": 4, "inuse_space": CHAIN_BYTES,
        "alloc_objects": 4, "alloc_space": CHAIN_BYTES,
    }  # fmt: skip
    resource = resource_of(message.resource_profiles[0].resource)
    assert resource.items() >= {
        "service.name": "shop", "process.pid": target.pid, "host.name": os.uname().nodename,
        "process.executable.path": str(program), "process.executable.name": program.name,
    }.items()  # fmt: skip


def test_a_port_that_is_taken(targets: Targets) -> None:
    target = targets.c("chain")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_tracelloc("-p", target.pid, "--listen", port)
    assert result.returncode == 1
    assert result.stderr == (
        f"tracelloc: error: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )
