"""The Model Context Protocol over standard input and output: one JSON-RPC message a line.

Specification: modelcontextprotocol.io, revisions 2024-11-05 to 2025-06-18; tools only.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any, BinaryIO, Final

from tracelloc import __version__
from tracelloc.command.agenttools import TOOLS, AgentTools, ToolError
from tracelloc.errors import MalformedError, TracellocError
from tracelloc.system.bounded import parse_json

_REVISIONS: Final = "2025-06-18", "2025-03-26", "2024-11-05"
_LONGEST_LINE: Final = 1 << 20
_PARSE_ERROR, _INVALID, _NO_METHOD = -32700, -32600, -32601
_INSTRUCTIONS: Final = (
    "Find memory leaks. A program you can run: check. A running process: processes, then "
    "lost_blocks (what), then trace (which call stack), then source. tracelloc help agents has "
    "more."
)


class _RpcError(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def serve(source: BinaryIO, sink: BinaryIO, tools: AgentTools) -> None:
    """Answers messages until the input ends."""
    with closing(tools):
        while line := source.readline(_LONGEST_LINE):
            answer = _answer(line, tools)
            if answer is not None:
                sink.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
                sink.flush()


def _answer(line: bytes, tools: AgentTools) -> dict[str, Any] | None:
    """Returns the answer to a line; None for notifications."""
    number: Any = None
    try:
        try:
            message = parse_json(line)
        except (ValueError, MalformedError):
            raise _RpcError(_PARSE_ERROR, "a line is not a JSON text") from None
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            raise _RpcError(_INVALID, "a message needs a method")
        if "id" not in message:
            return None
        number = message["id"]
        given = message.get("params")
        result = _result(message["method"], given if isinstance(given, dict) else {}, tools)
    except _RpcError as error:
        return {
            "jsonrpc": "2.0",
            "id": number,
            "error": {"code": error.code, "message": str(error)},
        }
    return {"jsonrpc": "2.0", "id": number, "result": result}


def _result(method: str, given: dict[str, Any], tools: AgentTools) -> dict[str, Any]:
    if method == "initialize":
        asked = given.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in _REVISIONS else _REVISIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tracelloc", "version": __version__},
            "instructions": _INSTRUCTIONS,
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [tool.listing for tool in TOOLS.values()]}
    if method != "tools/call":
        raise _RpcError(_NO_METHOD, f"there is no method {method[:100]!r}")
    arguments = given.get("arguments")
    try:
        text, failed = tools.call(
            str(given.get("name")), arguments if isinstance(arguments, dict) else {}
        ), False  # fmt: skip
    except (ToolError, TracellocError, OSError, ValueError) as error:
        text, failed = str(error)[:1000], True
    return {"content": [{"type": "text", "text": text}], "isError": failed}
