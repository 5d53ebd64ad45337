"""Asks the tools of ``tracelloc mcp`` about twelve leaking programs, as its manual recommends.

Each must lead to the right file and line, in at most 6 calls and 8 KB of answers:

    python -m tests.bench.agents
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.harness import TARGETS, Builder
from tracelloc.command.agenttools import AgentTools, ToolError

MOST_CALLS: Final = 6
MOST_BYTES: Final = 8192
# The function of `endings.c` that leaks, by its argument.
ENDINGS: Final = {
    "direct": "direct", "indirect": "indirect", "ring": "ring", "realloc": "reallocated",
    "large": "large", "ended": "end_with_block", "headless": "direct", "_exit": "direct",
    "closed": "direct", "leak-fail": "direct",
}  # fmt: skip
_LINE: Final = re.compile(r"^ +(\S+) in \S+ \((\S+):(\d+)\)$", re.MULTILINE)
# Programs that run until they are ended.
SERVERS: Final = {
    "shop.cpp": """
#include <cstring>
#include <cstdlib>
#include <unistd.h>
static void handle_request(int number) {
    char *order = strdup("two books, one lamp"); // leaks here
    if (number % 10)
        free(order);
}
int main() {
    for (int number = 0;; number++) {
        handle_request(number);
        if (number == 500)
            write(1, "\\n", 1);
        usleep(500);
    }
}
""",
    "sessions.cpp": """
#include <map>
#include <string>
#include <unistd.h>
struct Session { std::string user; };
static std::map<int, Session *> sessions;
static Session *begin(int number) {
    return new Session{std::to_string(number)}; // leaks here
}
int main() {
    for (int number = 0;; number++) {
        sessions[number % 100] = begin(number);
        if (number == 500)
            write(1, "\\n", 1);
        usleep(500);
    }
}
""",
}
HELPERS: Final = ("allocate", "make")


class Client(AgentTools):
    """A scripted agent, and what it has cost so far."""

    def __init__(self, *allowed: object) -> None:
        super().__init__([str(name) for name in allowed])
        self.calls = self.bytes = 0

    def ask(self, tool: str, **arguments: Any) -> str:
        try:
            text = self.call(tool, arguments)
        except ToolError as error:
            text = str(error)
        self.calls += 1
        self.bytes += len(text.encode())
        return text


def own_line(text: str) -> tuple[str, str, int]:
    """The first function in a report that is no helper, with its file and line."""
    for name, file, line in _LINE.findall(text):
        if name not in HELPERS:
            return name, file, int(line)
    raise AssertionError(f"no line in {text!r}")


def ask_about_ended(client: Client, program: Path, word: str) -> str:
    """How an agent goes about a program that it can run. Returns the source around the line."""
    command = [str(program), word]
    assert "this would run" in client.ask("check", command=command)
    _, file, line = own_line(client.ask("check", command=command, confirm=True))
    return client.ask("source", file=file, line=line)


def ask_about_running(client: Client, pid: int) -> str:
    """How an agent goes about a process that runs."""
    assert " lost, of " in client.ask("lost_blocks", pid=pid)
    assert "attach probes" in client.ask("trace", pid=pid, seconds=3)
    text = client.ask("trace", pid=pid, seconds=3, confirm=True)
    at = re.search(r"\((/\S+):(\d+)\)", text)
    assert at is not None, text
    return client.ask("source", file=at[1], line=int(at[2]))


def marked(source: str) -> str:
    """The line of a listing that is marked."""
    return next(line for line in source.splitlines() if line.startswith(">"))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        program = Builder(Path(directory)).c("endings")
        lines = (TARGETS / "endings.c").read_text().splitlines()
        for word, function in ENDINGS.items():
            client = Client(program)
            number = int(marked(ask_about_ended(client, program, word)).split()[1])
            client.close()
            # The function whose definition begins last before the line.
            begun = [re.match(r"[\w ]*static .*?(\w+)\(", line) for line in lines[:number]]
            inside = [match[1] for match in begun if match is not None][-1]
            check(word, client, inside == function)
        for name, text in SERVERS.items():
            source = Path(directory) / name
            source.write_text(text)
            compiled = source.with_suffix("")
            command = ["g++", "-O1", "-g", "-fno-builtin", "-o", str(compiled), str(source)]
            subprocess.run(command, check=True, timeout=60)
            with subprocess.Popen([compiled], stdout=subprocess.PIPE) as server:
                try:
                    client = Client(server.pid)
                    server.stdout.readline()
                    listing = ask_about_running(client, server.pid)
                    client.close()
                finally:
                    server.kill()
            check(source.stem, client, "leaks here" in marked(listing))


def check(name: str, client: Client, is_right: bool) -> None:
    """Prints one row, and fails if it is not good enough."""
    outcome = "right" if is_right else "WRONG"
    print(f"{name:>10} {client.calls} calls {client.bytes:>5} bytes {outcome}", flush=True)
    assert is_right
    assert client.calls <= MOST_CALLS
    assert client.bytes <= MOST_BYTES


if __name__ == "__main__":
    main()
