"""The Model Context Protocol over standard input and output: one JSON-RPC message a line.

Specification: modelcontextprotocol.io, tools only. Revisions 2024-11-05 to 2025-11-25 begin with
``initialize``; from 2026-07-28 on, each request has its revision in ``params._meta``, and the
server keeps nothing from one request to the next. Each tool runs on a thread of its own,
so that the input is read all the time: pings are answered, and calls can be cancelled.
"""

import json
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Event, Lock, Thread
from typing import Any, BinaryIO, Final

from tracelloc import __version__
from tracelloc.command import agenttools
from tracelloc.errors import MalformedError, TracellocError
from tracelloc.system.bounded import parse_json

Message = dict[str, Any]

_REVISION: Final = "2026-07-28"
_SESSION_REVISIONS: Final = "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"
_KEY: Final = "io.modelcontextprotocol/"  # Of entries of `_meta`
_SERVER: Final = {"name": "tracelloc", "version": __version__}
_CAPABILITIES: Final[Message] = {"tools": {}}
# Answers that are the same for everybody, as long as this version runs.
_CACHED: Final = {"ttlMs": 3_600_000, "cacheScope": "public"}
_LONGEST_LINE: Final = 1 << 20
_MOST_CALLS: Final = 8
_PARSE_ERROR, _INVALID, _NO_METHOD, _PARAMETERS = -32700, -32600, -32601, -32602
_NO_REVISION: Final = -32022
_INSTRUCTIONS: Final = (
    "Find memory leaks. A program you can run: check. A running process: processes, then "
    "lost_blocks (what), then trace (which call stack), then source. tracelloc help agents has "
    "more."
)


class _RpcError(Exception):
    def __init__(self, code: int, message: str, data: Message | None = None) -> None:
        super().__init__(message)
        self.answer = {"code": code, "message": message} | ({"data": data} if data else {})


def serve(source: BinaryIO, sink: BinaryIO, tools: agenttools.AgentTools) -> None:
    """Answers messages until the input ends, and calls that are under way are answered."""
    with closing(tools):
        server = _Server(sink, tools)
        while line := source.readline(_LONGEST_LINE):
            server.take(line)
        server.wait()


class _Server:
    def __init__(self, sink: BinaryIO, tools: agenttools.AgentTools) -> None:
        self._sink, self._tools = sink, tools
        self._lock = Lock()  # For `_sink`
        # Calls under way, by the id of their request.
        self._calls: dict[Any, tuple[Thread, Event]] = {}

    def take(self, line: bytes) -> None:
        """Answers a message, at once or, if it calls a tool, when that is done."""
        number: Any = None
        try:
            try:
                message = parse_json(line)
            except (ValueError, MalformedError):
                raise _RpcError(_PARSE_ERROR, "a line is not a JSON text") from None
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                raise _RpcError(_INVALID, "a message needs a method")
            method, given = message["method"], _object(message.get("params"))
            if "id" not in message:
                if method == "notifications/cancelled":
                    called = given.get("requestId")
                    if isinstance(called, str | int) and called in self._calls:
                        self._calls[called][1].set()
                return
            if not isinstance(message["id"], str | int):
                raise _RpcError(_INVALID, "an id is a text or an integer")
            number, meta = message["id"], _object(given.get("_meta"))
            finish = _finisher(method, meta)
            if method == "tools/call":
                self._begin(number, given, meta, finish)
            else:
                self._send({"id": number, "result": finish(_result(method, given))})
        except _RpcError as error:
            self._send({"id": number, "error": error.answer})

    def wait(self) -> None:
        """Waits until no call is under way."""
        for thread, _ in list(self._calls.values()):
            thread.join()

    def _send(self, message: Message) -> None:
        text = json.dumps({"jsonrpc": "2.0"} | message, separators=(",", ":"))
        # A client that has gone reads nothing, and closes our input.
        with self._lock, suppress(BrokenPipeError):
            self._sink.write(text.encode() + b"\n")
            self._sink.flush()

    def _begin(
        self, number: Any, given: Message, meta: Message, finish: Callable[[Message], Message]
    ) -> None:
        if number in self._calls or len(self._calls) >= _MOST_CALLS:
            raise _RpcError(_INVALID, f"a call with this id is running, or {_MOST_CALLS} are")
        is_cancelled, token = Event(), meta.get("progressToken")

        def watch(elapsed_s: float, whole_s: float | None) -> None:
            if is_cancelled.is_set():
                raise agenttools.CallCancelledError
            if token is not None:
                told = {"progressToken": token, "progress": round(elapsed_s, 1)}
                told |= {"total": whole_s} if whole_s else {}
                self._send({"method": "notifications/progress", "params": told})

        def run() -> None:
            name, arguments = str(given.get("name")), _object(given.get("arguments"))
            try:
                text, failed = self._tools.call(name, arguments, watch), False
            except agenttools.CallCancelledError:
                text, failed = "", True
            except (agenttools.ToolError, TracellocError, OSError, ValueError) as error:
                text, failed = str(error)[:1000], True
            if not is_cancelled.is_set():
                result: Message = {"content": [{"type": "text", "text": text}], "isError": failed}
                result |= {} if failed else {"structuredContent": agenttools.structured(text)}
                self._send({"id": number, "result": finish(result)})
            del self._calls[number]

        thread = Thread(target=run, name=f"call {number}"[:40])
        self._calls[number] = thread, is_cancelled
        thread.start()


def _object(value: Any) -> Message:
    return value if isinstance(value, dict) else {}


def _finisher(method: str, meta: Message) -> Callable[[Message], Message]:
    """Returns what makes a result one of the request's revision. Raises _RpcError."""
    revision = meta.get(f"{_KEY}protocolVersion")
    if revision is None and method != "server/discover":
        return lambda result: result
    if not isinstance(revision, str) or not isinstance(meta.get(f"{_KEY}clientCapabilities"), dict):
        needed = f"_meta needs {_KEY}protocolVersion and {_KEY}clientCapabilities"
        raise _RpcError(_PARAMETERS, needed)
    if revision != _REVISION:
        told = {"supported": [_REVISION], "requested": revision}
        raise _RpcError(_NO_REVISION, f"revision {revision[:40]} is not supported", told)
    if method in ("initialize", "ping"):
        raise _RpcError(_NO_METHOD, f"revision {_REVISION} has no method {method}")
    more = _CACHED if method in ("server/discover", "tools/list") else {}
    about = {"resultType": "complete", "_meta": {f"{_KEY}serverInfo": _SERVER}}
    return lambda result: result | about | more


def _result(method: str, given: Message) -> Message:
    if method == "initialize":
        asked = given.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in _SESSION_REVISIONS else _SESSION_REVISIONS[0],
            "capabilities": _CAPABILITIES, "serverInfo": _SERVER, "instructions": _INSTRUCTIONS,
        }  # fmt: skip
    if method == "server/discover":
        more = {"capabilities": _CAPABILITIES, "instructions": _INSTRUCTIONS}
        return {"supportedVersions": [_REVISION], **more}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [tool.listing for tool in agenttools.TOOLS.values()]}
    raise _RpcError(_NO_METHOD, f"there is no method {method[:100]!r}")
