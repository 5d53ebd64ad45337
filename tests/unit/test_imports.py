"""What is not needed is not imported: that is most of what the start of a command costs."""

import re
import sys
from pathlib import Path

import pytest

import tracelloc
from tests.commands import outcome, run
from tests.harness import DATA

RECORDINGS = DATA / "recordings"
# Libraries that a command without a trace has no use for.
SLOW = {"numpy", "elftools", "capstone", "textual", "rich", "bcc", "ctypes", "subprocess"}
RUN = """
import sys
from tracelloc.__main__ import main
sys.argv = ["tracelloc", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""
TRACE = """
import sys
import tracelloc.command.reports, tracelloc.command.lifecycle
print(*sorted(sys.modules), file=sys.stderr)
"""


def imported_by(program: str) -> set[str]:
    """Names of all modules at its end."""
    done = outcome(sys.executable, "-c", program)
    assert "Traceback" not in done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "call",
    [
        "--version", "--help", "--help-all", "", "--bogus", "-p x", "-p 1 -o file.unknown",
        "-p 1 --fail-if lead", "-p 1 --metric none", "-p 1 --show none", "-p 1 --events-size 0",
        "-p 1 -n x", "help cost", "help costs", "completion bash",
    ],
)  # fmt: skip
def test_help_and_wrong_calls_import_nothing_slow(call: str) -> None:
    found = imported_by(RUN.format(arguments=call.split()))
    assert "tracelloc.__main__" in found
    assert not found & SLOW
    assert not found & {"tracelloc.ui", "tracelloc.record.kernel.attach", "tracelloc.files.elf"}


@pytest.mark.parametrize(
    "call",
    [
        "-p 2147483647", "-n no-such-name", "-- no-such-command", "record -p 2147483647",
        "record -- ./no-such-command", "run -- no-such-command", "doctor -n no-such-name",
        *(f"{name} 2147483647" for name in ("heap", "holders", "leaks", "objects", "symbols")),
        *(f"{name} no-such-name" for name in ("heap", "holders", "leaks", "objects", "symbols")),
    ],
)  # fmt: skip
def test_refusals_import_nothing_slow(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In folders that may not be read, a program may be.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = imported_by(RUN.format(arguments=call.split()))
    assert "tracelloc.command.processargument" in found
    # Checks need two system calls that Python lacks.
    assert not found & SLOW - {"ctypes"}
    assert not found & {"tracelloc.ui", "tracelloc.record.kernel.attach", "tracelloc.files.elf"}


@pytest.mark.parametrize("call", ["report {0}", "diff {0} {1}", "merge {0} {0} -o {2}"])
def test_recordings_need_nothing_that_records(call: str, tmp_path: Path) -> None:
    """They are looked at on machines that could not trace anything."""
    words = call.format(RECORDINGS / "v2.rec", RECORDINGS / "v1.rec", tmp_path / "both.rec")
    found = imported_by(RUN.format(arguments=words.split()))
    assert "tracelloc.show.recording.reader" in found
    assert not {name for name in found if name.startswith("tracelloc.record")}
    assert not found & {"bcc", "capstone"}


def test_version_needs_no_parser() -> None:
    assert "argparse" not in imported_by(RUN.format(arguments=["--version"]))


def test_reports_need_no_screen_and_no_file_format() -> None:
    found = imported_by(TRACE)
    assert "tracelloc.show.report.sections" in found
    assert not found & {"textual", "rich", "bcc", "asyncio", "http.client", "ssl", "email"}
    unwanted = (
        "tracelloc.ui",
        "tracelloc.show.publish",
        "tracelloc.show.importers",
        "tracelloc.show.export.",
    )
    assert {name for name in found if name.startswith(unwanted)} <= {
        "tracelloc.show.export.outputfile",
        "tracelloc.show.publish",
        "tracelloc.show.publish.address",
    }


# Of Python's stable interface, though their names begin as private ones do
STABLE = {
    "_Py_BuildValue_SizeT", "_Py_Dealloc", "_Py_FalseStruct", "_Py_NoneStruct", "_Py_TrueStruct",
    "_PyObject_CallFunction_SizeT", "_PyObject_CallMethod_SizeT", "_PyObject_GC_New",
}  # fmt: skip


def test_what_is_compiled_fits_all_versions_of_python() -> None:
    parts = sorted(Path(tracelloc.__file__).parent.rglob("*.abi3.so"))
    needed = run("nm", "--dynamic", "--undefined-only", *parts)
    assert "_Py_NoneStruct" in needed
    assert set(re.findall(r"\b_Py\w+", needed)) <= STABLE
