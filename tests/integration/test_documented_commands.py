"""Every command that the README and the manual show is run, on small targets of the same names.

A line is run by the shell as it stands, but for what ``prepared`` replaces: processes, ports,
addresses and times. The targets and files that it names are in its directory.
"""

import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import outcome, run
from tests.harness import PATIENCE_S, TARGETS, Target
from tests.unit.leaks import watched
from tests.unit.receivers import Handler, Receiver
from tests.unit.reports import json_report
from tests.unit.test_docs import DOCS, PAGES, ROOT, fenced
from tracelloc.command.subcommands import all_subcommands
from tracelloc.show.recording.reader import RecordedTrace

pytestmark = [pytest.mark.bpf, pytest.mark.long]

# Why lines are not run, and how these begin.
NOT_RUN = {
    "installs packages": ("make install", "pip install", "make nightly"),
    "needs a terminal: test_record opens recordings": ("tracelloc open",),
    "needs a program that reports, or a GPU: test_usdt has one": (
        "sudo tracelloc -p 1234 --source usdt", "sudo tracelloc -p 1234 --allocators cuda.toml"),
    "is run beside this test, on the whole tree": ("make lint", "make test", "make long"),
    "waits for a program or needs a control group: test_groups has both": (
        "sudo tracelloc -n shop --wait", "sudo tracelloc --group"),
    "runs until a signal comes: test_machine_watch runs it": (
        "sudo tracelloc watch", "tracelloc watch --listen"),
    "needs a server: test_debuginfod has one": ("sudo DEBUGINFOD_URLS=",),
    "needs tests: test_pytest_plugin has some": ("pytest --tracelloc",),
    "needs a container runtime": ("docker ", "crictl "),
    "is the target: every command has one of its own": ("./shop &",),
    "test_mcp has it": ("tracelloc mcp --skill",),
    "writes to the home directory: test_package installs one": ("tracelloc completion bash >",),
}  # fmt: skip
# Commands in running text that are forms, not examples.
SPOKEN_OF = re.compile(
    r"CMD|FILE|PID|NAME|…|run --leaks$|mcp --skill$"
    r"|tracelloc (diff|heap|holders|leaks|mcp|objects|top|watch)$"
)
LOOKS = " (objects|heap|holders|leaks) "  # Subcommands that look at a process without tracing it
AT_ONCE = 4
DURATION = "1s"
# Programs that are started, and end soon
STARTED = ("server", "mydaemon", "integration-tests", "kiosk", "kiosk-old")
SOON = """
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    for (int n = 0; n < 100; n++) {
        if (n % 10)
            free(malloc(100));
        else if (!malloc(1000))
            return 1;
        usleep(1000);
    }
    return 0;
}
"""
SCRIPTS = {
    "app.py": "import time\nkept = [bytearray(1000) for _ in range(100)]\ntime.sleep(0.2)\n",
    "app.js": "const kept = Buffer.alloc(100000); setTimeout(() => kept.length, 100);\n",
    "worker.php": "<?php $kept = str_repeat('x', 100000); usleep(100000);\n",
    "known.supp": "leak:known_to_leak\n",
    "Makefile": "all: one two\none two:\n\t./server >$@\ncheck:\n\t./server\n",
}


@dataclass
class Scene:
    """Compiled programs, files that commands read, and a server that takes profiles."""

    files: Path
    push_url: str
    pushed: list[str]

    def place(self) -> Path:
        """A new directory with all of it."""
        place = tempfile.mkdtemp(dir=self.files.parent)
        return Path(shutil.copytree(self.files, place, dirs_exist_ok=True))


def block(page: Path, kind: str, number: int = 0) -> str:
    """A fenced block of a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)[number]


def compile_c(source: str, out: Path) -> None:
    out.with_suffix(".c").write_text(source)
    run("gcc", "-g", "-O1", "-o", out, f"{out}.c")


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    files = tmp_path_factory.mktemp("commands") / "files"
    (files / "bin").mkdir(parents=True)
    compile_c(block(ROOT / "README.md", "c"), files / "shop")
    compile_c(SOON, files / "server")
    for name in STARTED[1:]:
        shutil.copy(files / "server", files / name)
    for name, text in SCRIPTS.items():
        (files / name).write_text(text)
    (files / "pool.toml").write_text(block(DOCS / "allocators.md", "toml"))
    (files / "shop.toml").write_text(block(DOCS / "reports.md", "toml"))
    example = (DOCS / "files" / "watch.toml").read_text()
    (files / "watch.toml").write_text(re.sub("^listen.*\n", "", example, flags=re.MULTILINE))
    write_script(files / "bin/tracelloc", f'exec {sys.executable} -m tracelloc "$@"')
    write_script(files / "bin/sudo", 'exec env "$@"')
    (files / "bin/python3").symlink_to("/usr/bin/python3")

    class Taker(Handler):
        def checked(self, body: bytes) -> str:
            return self.path

    server = Receiver(Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scene = Scene(files, server.url, server.got)
    before = " ".join(f"-o {name}" for name in ("before.pb.gz", "after.pb.gz", "release.pb.gz",
                                               "before.json", "after.json"))  # fmt: skip
    place = scene.place()
    done = run_line(scene, f"tracelloc -p 1234 {before}", place)
    assert done.returncode == 0, done.stderr
    for path in (*place.glob("*.json"), *place.glob("*.pb.gz")):
        shutil.copy(path, files)
    done = run_line(scene, "tracelloc record -p 1234 -o server.rec --duration 1s", place)
    assert done.returncode == 0, done.stderr
    for name in ("server", "monday", "tuesday", "before", "after", "web-1"):
        shutil.copy(place / "server.rec", files / f"{name}.rec")
    yield scene
    server.shutdown()
    server.server_close()


UNITS = [*DOCS.glob("files/*.service"), *(ROOT / ".github" / "packaging").glob("*.service")]
# What each subcommand's help ends with.
EXAMPLES = [one.about.rpartition("\n  ")[2].strip() for one in all_subcommands()]


def shown() -> list[list[str]]:
    """The lines of each block of commands, in order, and the commands in running text."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for lines in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            found.append([line for line in lines.splitlines() if line and reason(line) is None])
        inline = re.findall(r"`((?:sudo )?tracelloc [^`\n]*)`", text)
        inline += EXAMPLES if page == ROOT / "README.md" else []
        found += [[each] for each in inline if not SPOKEN_OF.search(each) and reason(each) is None]
    found += [re.findall("^ExecStart=(.*)", unit.read_text(), re.MULTILINE) for unit in UNITS]
    return [list(lines) for lines in dict.fromkeys(map(tuple, found)) if lines]


def reason(line: str) -> str | None:
    return next((why for why, starts in NOT_RUN.items() if line.startswith(starts)), None)


def prepared(line: str, scene: Scene, place: Path) -> tuple[str, list[str]]:
    """The line as it is run, and the programs to be started before."""
    line = re.sub(r"^/usr/local/bin/", "", line).replace("/var/log/", "").replace("%%", "%")
    for server in ("http://pyroscope:4040", "http://collector:4318"):
        line = line.replace(server, scene.push_url)
    line = line.replace("--listen 6060", "--listen 0").replace("-p $(pidof shop)", "-p 1234")
    # Any program has blocks of this size.
    line = re.sub(r"(holders -p 1234) (app::|0x)\w+", r"\1 64", line)
    targets = []
    named = re.search(r"-n (\S+)", line)
    if named and re.search(LOOKS, line):
        line = line.replace(named[0], "-p 1234")
    elif named:
        # Another run of the same test may have one of this name.
        unique = f"{named[1]}-{os.getpid()}-{place.name}"
        line = line.replace(named[0], f"-n {unique}")
        targets.append(unique)
    if "-p 1234" in line:
        targets.append("shop")
    line = re.sub(r"--duration \S+", f"--duration {DURATION}", line)
    if " record " in line:
        recording = re.search(r"-o (\w+\.rec)", line)
        line = f"rm -f {recording[1] if recording else 'server.rec'}; {line}"
    # The recording that is there lasts for a second.
    line = re.sub(r"(--at[ =]|--since |\.rec@)[^\s]+", r"\g<1>+0s", line)
    has_end = re.search("--duration|--count|symbols|doctor", line)
    if "tracelloc top" in line:
        line = line.replace(" top", " top --count 1")
    elif " watch --config /etc/tracelloc/" in line:
        line = line.replace("/etc/tracelloc/", "") + f" --directory {place} --count 1"
    elif re.search(LOOKS, line):
        line = line.replace("--every 30s", "--every 100ms --count 2")
    elif targets and not has_end:
        line = re.sub("tracelloc( record)?", rf"tracelloc\1 --duration {DURATION}", line, count=1)
    return line, targets


def run_line(scene: Scene, line: str, place: Path) -> subprocess.CompletedProcess[str]:
    line, names = prepared(line, scene, place)
    targets = []
    for name in names:
        if not (place / name).exists():
            shutil.copy(place / "shop", place / name)
        if re.search(LOOKS, line):
            targets.append(Target(["/usr/bin/python3", TARGETS / "objects.py"]).process)
        else:
            targets.append(subprocess.Popen([place / name], stdin=subprocess.DEVNULL))
        line = line.replace("-p 1234", f"-p {targets[-1].pid}")
    try:
        env = os.environ | {"PATH": f"{place}/bin:{os.environ['PATH']}"}
        return outcome("sh", "-c", line, cwd=place, timeout=2 * PATIENCE_S, env=env)
    finally:
        for target in targets:
            target.kill()
            target.wait(PATIENCE_S)


# What each kind of file has.
CONTENTS = {".parquet": b"PAR1", ".html": b"<title>"}


def check_file(path: Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".gz":
        assert b"inuse_space" in gzip.decompress(content)
    elif path.suffix == ".rec":
        assert RecordedTrace(path).moments
    else:
        assert CONTENTS[path.suffix] in content[:2000]


def check_outputs(line: str, result: subprocess.CompletedProcess[str], place: Path) -> None:
    """Something of the kind that was asked for was written."""
    files = re.findall(r"-o '?([^\s']+)", line)
    written = re.search(r"(?:--report |> (?=\w\S+$))(\S+)", line)
    text = result.stdout + (result.stderr if " -- " in line or " help" in line else "")
    if written is not None:
        text = (place / written[1].rpartition("/")[2]).read_text()
    for name in files:
        (path,) = place.glob(re.sub("%+[pt]", "*", name.removeprefix("/var/log/")))
        check_file(path)
    if "--listen" in line or "--push" in line:
        assert ("listening on" in result.stderr) == ("--listen" in line)
        assert ("pushing to" in result.stderr) == ("--push" in line)
    elif "| jq" in line or " watch " in line or line.startswith("jq") or "--markdown" in line:
        assert text.strip()
    elif " schema" in line:
        assert json.loads(text)["$defs"]
    elif "--json" in line:
        key = "processes" if "tracelloc top" in line else "live_bytes"
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        assert lines
        assert all(each[key] if key == "processes" else key in each for each in lines)
    elif "library-path" in line:
        assert Path(text.strip()).exists()
    elif re.search("tracelloc (help|completion|doctor|symbols|--help|--version)", line):
        assert len(text.split()) > 1
    elif not files or "--text" in line:
        assert "==> " in text


def run_block(scene: Scene, lines: list[str]) -> list[str]:
    """Runs the lines in one directory. Returns what was wrong."""
    place, wrong = scene.place(), []
    for line in lines:
        if line.startswith("jq"):
            # Leaks take minutes; these are of a replayed program.
            found = watched(400.0)
            with (place / "tracelloc.jsonl").open("a") as log:
                log.write(json_report(found.snapshot(), found.namer, 2))
        result = run_line(scene, line, place)
        try:
            # The server does leak.
            assert result.returncode == (3 if "run --leaks" in line else 0)
            check_outputs(line, result, place)
        except (AssertionError, OSError, ValueError) as error:
            wrong.append(f"{line}\n  status {result.returncode}, {error!r}\n{result.stderr[-800:]}")
    return wrong


def test_commands_do_what_they_are_shown_for(scene: Scene) -> None:
    blocks = shown()
    lines = [line for lines in blocks for line in lines]
    assert len(lines) > 40
    assert {"tracelloc help glossary", "tracelloc diff before.pb.gz after.pb.gz"} <= set(lines)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda lines: run_block(scene, lines), blocks))
    assert not any(found), "\n\n".join(text for wrong in found for text in wrong)
    assert scene.pushed


def test_what_is_not_run_is_shown_somewhere() -> None:
    lines = [line for page in PAGES for line in fenced(page.read_text())] + EXAMPLES
    for start in itertools.chain(*NOT_RUN.values()):
        assert any(line.startswith(start) for line in lines), start


def test_the_demo_ends_and_writes_its_page(scene: Scene) -> None:
    """What ``make demo`` runs, for a shorter time."""
    place = scene.place()
    shutil.copy(place / "shop", place / "leaky")
    words = ROOT / "tests/demo.sh", "./leaky", "bin/tracelloc", "leaky.html"
    result = outcome(*words, cwd=place, env=os.environ | {"DEMO_SECONDS": "1"})
    assert result.returncode == 0, result.stderr
    assert "Probes work here, so tracelloc attaches to it:" in result.stdout
    assert "1 s were too short for a verdict" in result.stdout
    check_file(place / "leaky.html")
