"""The protocol of ``tracelloc mcp``, and what its tools refuse."""

import io
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tracelloc.command.agenttools import ANSWER_BYTES, TOOLS, AgentTools, ToolError, structured
from tracelloc.command.cli import main
from tracelloc.command.mcpserver import serve


class QuietTools(AgentTools):
    """Notes commands instead of running them."""

    def __init__(self, *allowed: str, output: str = "") -> None:
        super().__init__(allowed)
        self.lines: list[list[str]] = []
        self._output = output

    def command(self, *words: object, **_how: Any) -> str:
        self.lines.append([str(word) for word in words])
        return self._output


@pytest.fixture
def tools() -> Iterator[QuietTools]:
    found = QuietTools("42", "./server", output="é" * 10 + "\n" + "a line of an answer\n" * 500)
    yield found
    found.close()


def answers(tools: AgentTools, *messages: object) -> list[dict[str, Any]]:
    """What the server says to messages; texts are sent as they are."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in messages]
    out = io.BytesIO()
    serve(io.BytesIO("".join(f"{line}\n" for line in lines).encode()), out, tools)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_messages_and_answers_have_what_further_tools_take() -> None:
    found = answers(
        QuietTools(),
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "1999"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        "garbage",
        "[" * 200_000,
        [],
        {"jsonrpc": "2.0", "id": 3, "method": "resources/list"},
        {"jsonrpc": "2.0", "id": None, "method": "ping"},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"name": "nothing"}},
    )
    assert [answer["id"] for answer in found] == [1, "a", 2, None, None, None, 3, None, 4]
    assert found[0]["result"]["protocolVersion"] == "2025-11-25"
    listed = {tool["name"]: tool for tool in found[2]["result"]["tools"]}
    assert list(listed) == list(TOOLS)
    assert listed["trace"]["inputSchema"]["required"] == ["pid"]
    read_only = [name for name, tool in listed.items() if tool["annotations"]["readOnlyHint"]]
    assert set(listed) - set(read_only) == {"trace", "check"}
    assert [answer["error"]["code"] for answer in found[3:8]] == [
        -32700, -32700, -32600, -32601, -32600,
    ]  # fmt: skip
    assert found[8]["result"]["isError"]
    assert "use one of processes" in found[8]["result"]["content"][0]["text"]
    lines = "".join(f"    f{n} in /app (/src/a.c:{n // 2})\n" for n in range(200))
    given = {"name": "trace", "arguments": {"pid": 42, "confirm": True}}
    refused = {"name": "trace", "arguments": {"pid": 42}}
    listed, *called = answers(
        QuietTools("42", output=f"{lines}==> [more: read_more reference=7 offset=8]\nend\n"),
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": given},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": refused},
    )
    answer, error = (one["result"] for one in sorted(called, key=lambda one: one["id"]))
    found, text = answer["structuredContent"], answer["content"][0]["text"]
    assert found["places"] == [{"file": "/src/a.c", "line": n} for n in range(5)]
    assert found["more"]["reference"] == 1, "of the answer, not of a name in it"
    assert text.endswith(f"reference=1 offset={found['more']['offset']}]")
    assert f"recording: {found['recording']}\n" in text
    schemas = {json.dumps(tool["outputSchema"]) for tool in listed["result"]["tools"]}
    (schema,) = map(json.loads, schemas)
    assert schema["properties"].keys() == found.keys()
    assert "structuredContent" not in error


def test_long_answers_and_traces(tools: QuietTools) -> None:
    whole = tools.command()
    text = tools.call("report", {"file": "a.rec"})
    seen = ""
    for _ in range(20):
        assert len(text.encode()) <= ANSWER_BYTES
        part, more, rest = text.partition("[more: read_more reference=1 offset=")
        seen += part
        if not more:
            break
        text = tools.call("read_more", {"reference": 1, "offset": int(rest.rstrip("]"))})
    assert seen == whole
    with pytest.raises(ToolError, match="not kept any more"):
        tools.call("read_more", {"reference": 9, "offset": 0})
    # Of the largest blocks, those stay whose stacks stand only there.
    block = "    0x0000000000000010: 9 B (3.2 s old)"
    first = f"==> 2 top allocations out of 9 for a total of 9 B\n{block}\n    main+0x1 (/a.c:3)\n"
    stack = "==> 1 top allocators\n     0: 9 B in 2 allocations, growing, in main (a.c:3)\n"
    for suspect in ("pid=42 suspect=leaking\n", ""):
        tools = QuietTools("42", output=f"{suspect}{first}{block}, in main (a.c:3)\n{stack}")
        text = tools.call("trace", {"pid": 42, "confirm": True})
        assert text.endswith(f".rec\n{suspect}{first}{stack}")
        assert structured(text)["places"][0] == {"file": "/a.c", "line": 3}
        assert text.startswith("recording: " if suspect else "no suspect yet: leaks are called")
        tools.close()


def test_what_touches_needs_permission_and_confirmation(tools: QuietTools) -> None:
    for name, given, error in (
        ("check", {"command": ["/bin/rm", "x"]}, "start tracelloc mcp with --allow-trace /bin/rm"),
        ("check", {"command": ["./server", "-v"]}, r"this would run \./server -v to its end"),
        ("trace", {"pid": 1}, "not permitted"),
        ("trace", {"pid": 42}, "this would attach probes to process 42"),
    ):
        with pytest.raises(ToolError, match=error):
            tools.call(name, given)
    assert tools.lines == []
    tools.call("check", {"command": ["./server", "--top"], "confirm": True})
    assert tools.lines == [["run", "--leaks", "--top", "8", "--", "./server", "--top"]]
    tools.call("trace", {"pid": 42, "confirm": True, "seconds": 1000})
    assert tools.lines[1][:3] == ["record", "-p", "42"]
    assert tools.lines[1][-1] == "60s"
    assert tools.call("trace", {"pid": 42, "confirm": True, "seconds": 1000}).startswith(
        "60 s is the most, not 1000 s\n"
    )


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def test_messages_of_a_revision_without_sessions() -> None:
    def message(number: int, method: str, **meta: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {"_meta": META | meta}}

    key = "io.modelcontextprotocol/protocolVersion"
    found = answers(
        QuietTools(),
        message(1, "server/discover"),
        message(2, "tools/list"),
        message(3, "ping"),
        message(4, "tools/list", **{key: "2027-01-01"}),
        {"jsonrpc": "2.0", "id": 5, "method": "server/discover"},
        message(6, "tools/call"),
    )
    discovered, listed, *errors, called = found
    assert discovered["result"]["supportedVersions"] == ["2026-07-28"]
    for answer in (discovered, listed):
        assert answer["result"]["ttlMs"] > 0
        assert answer["result"]["cacheScope"] == "public"
    assert {answer["result"]["resultType"] for answer in (discovered, listed, called)} == {
        "complete"
    }
    assert [answer["error"]["code"] for answer in errors] == [-32601, -32022, -32602]
    assert errors[1]["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2027-01-01"}


class SlowTools(QuietTools):
    """Commands take until they are cancelled, or told to go on."""

    def __init__(self) -> None:
        super().__init__("42")
        self.may_end = threading.Event()

    def command(self, *words: object, **how: Any) -> str:
        while not self.may_end.wait(0.01):
            self._call.watch(1.5, how.get("whole_s"))
        return super().command(*words)


class Client:
    """A client that writes and reads a message at a time."""

    def __init__(self, tools: AgentTools) -> None:
        reads, writes = os.pipe(), os.pipe()
        self._out, self._in = os.fdopen(reads[1], "wb", 0), os.fdopen(writes[0], "rb")
        self._sink = os.fdopen(writes[1], "wb")
        self._server = threading.Thread(
            target=serve, args=(os.fdopen(reads[0], "rb"), self._sink, tools)
        )
        self._server.start()

    def send(self, **message: Any) -> None:
        self._out.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        return json.loads(self._in.readline())

    def close(self) -> None:
        self._out.close()
        self._server.join(60)
        assert not self._server.is_alive()


def test_a_server_listens_while_tools_run() -> None:
    tools = SlowTools()
    arguments = {"pid": 42, "seconds": 30, "confirm": True}
    given = {"name": "trace", "arguments": arguments, "_meta": {"progressToken": "t"}}
    with closing(Client(tools)) as client:
        client.send(id=1, method="tools/call", params=given)
        told = client.hear()
        assert told["method"] == "notifications/progress"
        assert told["params"] == {"progressToken": "t", "progress": 1.5, "total": 30}
        client.send(id=2, method="ping")
        while (answer := client.hear()).get("id") != 2:
            assert answer == told
        client.send(method="notifications/cancelled", params={"requestId": 1})
        client.send(id=3, method="tools/call", params={"name": "heap", "arguments": {"pid": 1}})
        client.send(id=4, method="ping")
        while (answer := client.hear()).get("id") != 4:
            assert answer == told
        tools.may_end.set()
        while (answer := client.hear()).get("id") != 3:
            assert answer == told, "no answer to what was cancelled"
    assert ["heap", "-p", "1"] in tools.lines


def test_an_unknown_argument_names_the_right_one(tools: QuietTools) -> None:
    with pytest.raises(ToolError, match="trace has no argument 'secs': did you mean 'seconds'"):
        tools.call("trace", {"pid": 42, "secs": 3})


def test_arguments_are_no_options(tools: QuietTools, tmp_path: Path) -> None:
    for name, given in (
        ("report", {"file": "--output=x.json"}),
        ("compare", {"before": "a", "after": "-o"}),
        ("holders", {"pid": 1, "what": "--json"}),
        ("lost_blocks", {"pid": "1 --every 1s"}),
        ("lost_blocks", {}),
    ):
        with pytest.raises(ToolError):
            tools.call(name, given)
    assert tools.lines == []
    secret = tmp_path / "secret.c"
    secret.write_text("nobody has named this\n")
    with pytest.raises(ToolError, match="only files that an earlier answer has named"):
        tools.call("source", {"file": str(secret), "line": 1})


def test_a_profile_permits_no_file_outside_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, outside = tmp_path / "checkout", tmp_path / "secret.c"
    inside, hidden = checkout / "main.c", checkout / ".ssh" / "key.c"
    hidden.parent.mkdir(parents=True)
    for file in (inside, hidden, outside):
        file.write_text("a line\n")
    profile, empty = checkout / "a.folded", checkout / "b.folded"
    empty.write_text("app;other 1\n")
    profile.write_text(
        "".join(f"app;main ({file}:1);f 9999\n" for file in (inside, hidden, outside))
    )
    monkeypatch.chdir(checkout)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with closing(AgentTools(())) as tools:
        # That one of them is a recording of its own changes nothing.
        (own,) = (folder / "42.folded" for folder in temporary.iterdir())
        shutil.copy(empty, own)
        for before in (empty, own):
            tools.call("compare", {"before": str(before), "after": str(profile)})
        assert "a line" in tools.call("source", {"file": str(inside), "line": 1})
        for file in (hidden, outside):
            with pytest.raises(ToolError, match="only files"):
                tools.call("source", {"file": str(file), "line": 1})


def test_the_skill_has_a_command_for_each_tool(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["mcp", "--skill"]) == 0
    _, head, text = capsysbinary.readouterr().out.decode().split("---\n", 2)
    assert [line.partition(":")[0] for line in head.splitlines()] == ["name", "description"]
    commands = dict(re.findall(r"^\| `(\w+)`[^|]* \| ([^|]*) \|", text, re.MULTILINE))
    assert list(commands) == list(TOOLS)
    assert sum(command.startswith("`tracelloc ") for command in commands.values()) == 8
    assert "suspect=leaking" in text
    assert "SKILL.md" not in text
