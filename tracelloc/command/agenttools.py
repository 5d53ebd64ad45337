"""The tools that ``tracelloc mcp`` offers to agents: each runs one of tracelloc's commands.

Answers are text below two kilobytes; longer ones are kept, and read on by reference. Tools that
trace or run a process need the user's permission on the command line, and say before that
what they are going to do.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tracelloc.dataclass import dataclass
from tracelloc.model.process import matching_processes
from tracelloc.record.process.processlist import ProcessScan
from tracelloc.record.process.procfs import Process
from tracelloc.system.invoker import invoker, rights_of
from tracelloc.text import format_size, printable, signed_size

ANSWER_BYTES: Final = 1900  # Longest text of an answer
_KEPT_BYTES: Final = 1 << 20
_MOST_KEPT: Final = 64
_PATIENCE_S: Final = 120.0
_LONGEST_S: Final = 60
_ENDING_S: Final = 10.0  # Time that a cancelled command has to end
_AROUND: Final = 8
_SOURCE_BYTES: Final = 4 << 20
# Parameters that commands could take for options.
_OPERANDS: Final = "file!", "before!", "after!", "what"
# How many files commands read, after their names: figures of others may lie
_READ_FILES: Final = {"report": 1, "diff": 2}
# Blocks whose call stack stands elsewhere; the first one of a stack has its lines of source.
_BLOCKS: Final = re.compile(r"(?m)^    0x[0-9a-f]{16}: .* old\), in .*\n")
_VERDICT: Final = "leaks are called after about a minute: trace with seconds=60 while it works"
_NAMED: Final = re.compile(r"\(([^()\s:]+):(\d{1,9})\)")  # Source lines in the text of a command
_REST: Final = re.compile(r"\[more: read_more reference=(\d{1,9}) offset=(\d{1,9})\]\Z")
_RECORDED: Final = re.compile(r"^recording: (.+)$", re.MULTILINE)
_MOST_PLACES: Final = 5


# Is called each second with the seconds that a call has taken, and those that it will take as far
# as that is known. What it raises ends the call.
Watch = Callable[[float, float | None], None]


class ToolError(Exception):
    """A tool failed; the text says what to do next."""


class CallCancelledError(Exception):
    """The client has cancelled the call."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool, as clients see it."""

    name: str
    about: str  # Description for agents
    run: Callable[[AgentTools, dict[str, Any]], str]
    # JSON type and description, by name; those that are required end with `!`.
    parameters: dict[str, tuple[str, str]]
    is_read_only: bool = True  # Whether the tool changes nothing

    @property
    def listing(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.about,
            "inputSchema": {
                "type": "object",
                "properties": {
                    name.rstrip("!"): {"type": kind, "description": about}
                    | ({"items": {"type": "string"}} if kind == "array" else {})
                    for name, (kind, about) in self.parameters.items()
                },
                "required": [name[:-1] for name in self.parameters if name.endswith("!")],
            },
            "outputSchema": _OUTPUT,
            "annotations": {"readOnlyHint": self.is_read_only, "openWorldHint": False},
        }


_KINDS: Final = {"places": "array", "more": "object", "recording": "string"}
_OUTPUT: Final = {
    "type": "object",
    "properties": {name: {"type": kind} for name, kind in _KINDS.items()},
    "description": "arguments for further tools: source, read_more, and report or compare",
}


def structured(text: str) -> dict[str, Any]:
    """Returns the arguments for further tools that an answer contains (``_OUTPUT``)."""
    places = list(dict.fromkeys(_NAMED.findall(text)))[:_MOST_PLACES]
    found: dict[str, Any] = {"places": [{"file": file, "line": int(line)} for file, line in places]}
    if rest := _REST.search(text):
        found["more"] = {"reference": int(rest[1]), "offset": int(rest[2])}
    if recorded := _RECORDED.search(text):
        found["recording"] = recorded[1]
    return found


class AgentTools:
    """The state of one client's session: permissions, cut answers, recordings."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """``allowed``: PIDs and names of programs that may be traced or run."""
        self._allowed = set(allowed)
        self._texts: dict[int, str] = {}
        self._number = 0
        self._files: set[str] = set()  # Source files that answers have named
        self._directory = tempfile.TemporaryDirectory(prefix="tracelloc-")
        self._lock = threading.Lock()  # For `_texts`
        self._call = threading.local()  # The `watch` of the thread's call

    def call(self, name: str, given: dict[str, Any], watch: Watch = lambda *_: None) -> str:
        """Runs a tool. Raises ToolError. May be called by several threads at a time."""
        self._call.watch = watch
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name[:100]!r}; use one of {', '.join(TOOLS)}")
        known = [parameter.rstrip("!") for parameter in tool.parameters]
        for parameter in given:
            if parameter not in known:
                meant = difflib.get_close_matches(parameter[:100], known, 1, 0)
                what = f"did you mean {meant[0]!r}?" if meant else "it has none"
                raise ToolError(f"{name} has no argument {parameter[:100]!r}: {what}")
        kinds = {"integer": int, "string": str, "array": list, "boolean": bool}
        for parameter, (kind, _) in tool.parameters.items():
            value = given.get(parameter.rstrip("!"))
            if value is None and not parameter.endswith("!"):
                continue
            if not isinstance(value, kinds[kind]):
                raise ToolError(f"{name} needs {parameter.rstrip('!')}, of type {kind}")
            if isinstance(value, str) and value.startswith("-") and parameter in _OPERANDS:
                raise ToolError(f"{parameter.rstrip('!')} can't begin with '-': write ./{value}")
        return self._cut(tool.run(self, given))

    def close(self) -> None:
        self._directory.cleanup()

    def _cut(self, text: str, number: int | None = None, start: int = 0) -> str:
        """Returns a part of a text, followed by how to get the rest."""
        part = text[start:]
        if len(part.encode()) <= ANSWER_BYTES:
            return part
        part = part.encode()[: ANSWER_BYTES - 60].decode(errors="ignore")
        part = part[: part.rfind("\n") + 1] or part
        if number is None:
            with self._lock:
                self._number += 1
                number = self._number
                self._texts[number] = text
                self._texts.pop(number - _MOST_KEPT, None)
        return f"{part}[more: read_more reference={number} offset={start + len(part)}]"

    def read_more(self, given: dict[str, Any]) -> str:
        number, offset = given["reference"], given["offset"]
        text = self._texts.get(number)
        if text is None or not 0 <= offset < len(text):
            raise ToolError("that answer is not kept any more: call its tool again")
        return self._cut(text, number, offset)

    def command(
        self, *words: object, statuses: Sequence[int] = (0, 3), is_message: bool = False,
        whole_s: float | None = None,
    ) -> str:  # fmt: skip
        """Runs tracelloc, raising ToolError. ``is_message``: it reports on standard error.

        ``whole_s``: how long it takes, if that is known. Files that it reads may name any source
        file: of these, only those below the working directory may be shown.
        """
        line = [sys.executable, "-m", "tracelloc", *map(str, words)]
        with (
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
            subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process,
        ):
            try:
                self._wait(process, whole_s)
            except BaseException:
                process.send_signal(signal.SIGINT)  # It detaches, or ends what it runs
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING_S)
                process.kill()
                raise
            begin = max(0, os.fstat(err.fileno()).st_size - _KEPT_BYTES)
            errors, text = (os.pread(file.fileno(), _KEPT_BYTES, at).decode(errors="replace")
                            for file, at in ((err, begin), (out, 0)))  # fmt: skip
        if process.returncode not in statuses:
            last = errors.strip().rpartition("\n")[2] or f"its status is {process.returncode}"
            raise ToolError(last.removeprefix("tracelloc: "))
        named = [file for file, _ in _NAMED.findall(text + errors)]
        files = words[1 : 1 + _READ_FILES.get(str(words[0]), 0)]
        own = Path(self._directory.name)
        is_trusted = all(Path(str(file)).parent == own for file in files)
        self._files.update(each for each in named if is_trusted or _is_in_checkout(each))
        return errors if is_message else text

    def _wait(self, process: subprocess.Popen[bytes], whole_s: float | None) -> None:
        began_s = time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                return
            elapsed_s = time.monotonic() - began_s
            self._call.watch(elapsed_s, whole_s)
            if elapsed_s > _PATIENCE_S:
                raise ToolError(f"this took more than {_PATIENCE_S:.0f} s; try a smaller one")

    def processes(self, given: dict[str, Any]) -> str:
        scan = ProcessScan()
        scan.refresh()
        time.sleep(1)
        found = matching_processes(scan.refresh(1.0), given.get("matching") or "")
        lines = [
            f"{info.pid} {format_size(info.rss_bytes)}, "
            f"{signed_size(info.growth_bytes_per_min)}/min: {printable(info.arguments)[:100]}"
            f"{f' ({info.trouble.value})' if info.trouble else ''}"
            for info in found
        ]
        return "PID, resident memory, growth, command\n" + "\n".join(lines)

    def source(self, given: dict[str, Any]) -> str:
        file, line = given["file"], given["line"]
        if file not in self._files:
            raise ToolError("only files that an earlier answer has named can be shown")
        try:
            # The program chooses the names: its user's rights must do.
            with rights_of(invoker()), Path(file).open("rb") as stream:
                lines = stream.read(_SOURCE_BYTES).decode(errors="replace").splitlines()
        except OSError as error:
            raise ToolError(f"{file} cannot be read: {error.strerror}") from error
        first, last = max(1, line - _AROUND), min(len(lines), line + _AROUND)
        return "\n".join(
            f"{'>' if n == line else ' '} {n:>5} {printable(lines[n - 1].expandtabs(4))}"
            for n in range(first, last + 1)
        )

    def trace(self, given: dict[str, Any]) -> str:
        pid, asked_s = given["pid"], given.get("seconds") or 20
        seconds = min(asked_s, _LONGEST_S)
        name = Process(pid).command() if Process(pid).exists() else ""
        what = f"attach probes to process {pid} ({printable(name)}) for {seconds} s, not stop it"
        self._permit(given, {str(pid), name} - {""}, what)
        path = Path(self._directory.name) / f"{pid}-{time.monotonic_ns()}.rec"
        line = "record", "-p", pid, "-o", path, "--duration", f"{seconds}s"
        self.command(*line, whole_s=seconds)
        cut = f"{seconds} s is the most, not {asked_s} s\n" if asked_s > seconds else ""
        report = _BLOCKS.sub("", self.command("report", path, "--top", 5))
        if " suspect=" not in report:
            cut += f"no suspect yet: {_VERDICT}\n"
        return f"{cut}recording: {path}\n{report}"

    def check(self, given: dict[str, Any]) -> str:
        words = [str(word) for word in given["command"]]
        if not words:
            raise ToolError("check needs a command with at least one word")
        self._permit(given, {words[0]}, f"run {' '.join(words)[:200]} to its end, with your rights")
        line = "run", "--leaks", "--top", 8, "--", *words
        return self.command(*line, statuses=range(256), is_message=True)

    def _permit(self, given: dict[str, Any], names: set[str], what: str) -> None:
        """Raises ToolError unless the user permits this, and the agent has confirmed it."""
        if not names & self._allowed:
            option = f"--allow-trace {min(names, key=len) if names else 'PID'}"
            raise ToolError(f"not permitted: ask the user to start tracelloc mcp with {option}")
        if not given.get("confirm"):
            raise ToolError(f"this would {what}: call it again with confirm=true")


def _is_in_checkout(file: str) -> bool:
    """Whether a file lies below the working directory, and not in a hidden folder of it."""
    whole, root = Path(file).resolve(), Path.cwd().resolve()
    return whole.is_relative_to(root) and not any(
        part.startswith(".") for part in whole.relative_to(root).parts
    )


def _look(*words: str) -> Callable[[AgentTools, dict[str, Any]], str]:
    def run(tools: AgentTools, given: dict[str, Any]) -> str:
        more = [given["what"]] if given.get("what") else []
        return tools.command(words[0], *more, "-p", given["pid"], *words[1:])

    return run


def _report(tools: AgentTools, given: dict[str, Any]) -> str:
    at = [f"--at={given['at']}"] if given.get("at") else []
    return tools.command("report", given["file"], "--top", given.get("top") or 5, *at)


def _compare(tools: AgentTools, given: dict[str, Any]) -> str:
    metric = f"--metric={given.get('metric') or 'bytes'}"
    return tools.command("diff", given["before"], given["after"], metric, "--top", 5)


_PID: Final = {"pid!": ("integer", "process")}
_CONFIRM: Final = {"confirm": ("boolean", "true once you know what will be touched")}
_FILE: Final = "string", "path"
# fmt: off
# All tools, in the order in which they are listed.
TOOLS: Final = {tool.name: tool for tool in (
    Tool("processes", "Lists processes with their memory and growth; matching filters by words.",
         AgentTools.processes, {"matching": ("string", "words in the command line")}),
    Tool("lost_blocks", "Blocks of a running process that nothing points to, by size, C++ class "
         "and structure. Neither traces nor stops it.", _look("leaks", "--top", "10"), _PID),
    Tool("heap", "How a process uses its heap: in use, free, fragmentation.", _look("heap"), _PID),
    Tool("holders", "What keeps the memory of a process: the roots, or who points to the blocks "
         "of a class, a size or an address.", _look("holders", "--top", "5"),
         _PID | {"what": ("string", "C++ class, size in bytes, or address")}),
    Tool("trace", "Traces a process for some seconds: call stacks with file and line, verdicts. "
         "Needs permission.", AgentTools.trace,
         _PID | {"seconds": ("integer", "at most 60, default 20")} | _CONFIRM, is_read_only=False),
    Tool("check", "Runs a program and reports what it leaked at its end, by call stack with file "
         "and line. Needs permission.", AgentTools.check,
         {"command!": ("array", "program and arguments")} | _CONFIRM, is_read_only=False),
    Tool("report", "Shows a recording: suspects and top allocators.", _report,
         {"file!": _FILE, "at": ("string", "time"), "top": ("integer", "entries")}),
    Tool("compare", "What grew from one recording or profile to another, by call stack.",
         _compare, {"before!": _FILE, "after!": _FILE,
                    "metric": ("string", "bytes, peak, allocated or blocks")}),
    Tool("source", "Lines of a source file around one that an answer has named.",
         AgentTools.source, {"file!": _FILE, "line!": ("integer", "line")}),
    Tool("read_more", "The rest of an answer that was cut.", AgentTools.read_more,
         {"reference!": ("integer", "from the answer"), "offset!": ("integer", "likewise")}),
)}
# fmt: on
