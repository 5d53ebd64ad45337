"""Names in reports of real processes, and what ``tracelloc symbols`` says of them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.commands import outcome, run
from tests.harness import TARGETS, Builder, Targets, Tracelloc, tracelloc_command, wait_until


def symbols(*arguments: object) -> subprocess.CompletedProcess[str]:
    return outcome(*tracelloc_command("symbols", *map(str, arguments)))


@pytest.mark.bpf
def test_generated_code_in_a_report(targets: Targets) -> None:
    target = targets.c("jit", "JS:*render /srv/page.js:12:3")
    try:
        tracer = Tracelloc("-p", target.pid, "--json", "--top", 3)
        assert target.ask("go") == "done"
        assert tracer.stop() == 0
    finally:
        Path(f"/tmp/perf-{target.pid}.map").unlink(missing_ok=True)
    (site,) = tracer.last()["top_allocators"]
    frames = [(f["symbol"], f["file"] and Path(f["file"]).name, f["line"]) for f in site["stack"]]
    assert frames[0][:2] == ("keep", "jit.c")
    assert frames[1] == ("render", "/srv/page.js".rpartition("/")[2], 12)
    assert frames[2][:2] == ("main", "jit.c")


CALLBACKS = """const kept = [];
function innermost() { kept.push(new ArrayBuffer(70001)); }
function throughMap() { [1].map(function inMap() { innermost(); }); }
function throughJson() {
  JSON.parse('[1]', function inReviver(key, value) { if (key) throughMap(); return value; });
}
function throughReplace() { 'x'.replace(/x/, function inReplace() { throughJson(); return ''; }); }
function throughSort() { [2, 1].sort(function inSort() { throughReplace(); return 1; }); }
function throughProxy() { new Proxy({}, {get: function inProxy() { throughSort(); }}).any; }
process.stdin.on('data', () => {
  for (let n = 0; n < 20; n++) throughProxy();
  process.stdout.write('done\\n');
});
process.stdout.write('ready\\n');
"""


def whole_stacks(report: dict[str, Any]) -> list[list[tuple[str, str, int]]]:
    """Stacks of a kind of blocks. Some of the first ones are partial, and say so."""
    blocks = [b for b in report["top_allocations"] if b["size_bytes"] == 70001]
    stacks = [[(f["symbol"] or "", f["file"], f["line"]) for f in b["stack"]] for b in blocks]
    return [stack for stack in stacks if not stack[-1][0].startswith("[partial")]


@pytest.mark.long
@pytest.mark.bpf
def test_javascript_between_native_functions(targets: Targets, tmp_path: Path) -> None:
    """V8 keeps frame pointers everywhere: no function is missing, in whichever it was called.

    Functions of a real just-in-time compiler are named with file and line.
    """
    script = tmp_path / "callbacks.js"
    script.write_text(CALLBACKS)
    flags = ("--perf-basic-prof", "--interpreted-frames-native-stack", "--no-opt")
    target = targets.start(shutil.which("node") or "node", *flags, script, cwd=tmp_path)
    try:
        tracer = Tracelloc("-p", target.pid, "--json", "--top", 400, "--interval", 1)

        def are_there() -> bool:
            assert target.ask("go") == "done"
            return any(whole_stacks(report) for report in tracer.reports()[-1:])

        wait_until(are_there, 0.2)
        assert tracer.stop() == 0
    finally:
        Path(f"/tmp/perf-{target.pid}.map").unlink(missing_ok=True)
    whole = "Proxy", "Sort", "Replace", "Reviver", "Map"
    expected = [
        f"{kind}{name.replace('Reviver', 'Json') if kind == 'through' else name}"
        for name in whole
        for kind in ("through", "in")
    ]
    stacks = whole_stacks(tracer.last())
    assert stacks
    for stack in stacks:
        own = [name for name, *_ in stack if name in {*expected, "innermost"}]
        assert own[::-1] == [*expected, "innermost"]
        assert {("innermost", str(script), 2), ("inMap", str(script), 3)} <= set(stack)


def test_symbols_of_a_process(builder: Builder, targets: Targets) -> None:
    path = builder.c("chain")
    target = targets.start(path)
    done = symbols("-p", target.pid)
    assert (done.returncode, done.stderr) == (0, "")
    paragraphs = done.stdout.split(f"{path}\n")
    assert len(paragraphs) == 2
    lines = paragraphs[1].splitlines()[:3]
    assert lines[0].endswith("functions from its symbol table")
    assert lines[1] == "    lines   from its own DWARF"
    assert lines[2] == "    unwind  .eh_frame"
    reports = {report["module"]: report for report in json.loads(symbols(
        "-p", target.pid, "--json").stdout)}  # fmt: skip
    assert reports[str(path)]["advice"] is None
    assert reports["[vdso]"]["functions"] >= 4
    nm = run("nm", "-n", path)
    functions = {line.split()[2] for line in nm.splitlines() if " t " in line or " T " in line}
    assert reports[str(path)]["functions"] >= len(functions) - 3  # some are no functions
    assert len(reports[str(path)]["build_id"]) == 40


def test_symbols_of_a_stripped_program(targets: Targets, tmp_path: Path) -> None:
    path = tmp_path / "stripped"
    run("gcc", "-O1", "-s", "-pthread", TARGETS / "chain.c", "-o", path)
    text = symbols("-p", targets.start(path).pid).stdout.partition(f"{path}\n")[2]
    lines = text.splitlines()[:4]
    assert lines[0].endswith("functions from its exported functions only (.dynsym)")
    assert lines[1] == "    lines   none: no debug information (DWARF)"
    assert lines[3] == "    to add  build it with -g, don't strip it"


def test_symbols_without_a_process() -> None:
    done = symbols("-p", 4194304)
    assert done.returncode == 1
    assert done.stderr.startswith("tracelloc: error: there is no process 4194304")
    assert done.stderr.count("\n") == 1
    done = symbols()
    assert done.returncode == 2
    assert "a process is required" in done.stderr
