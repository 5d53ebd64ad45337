"""README and manual against the program: commands, options, files and links are those there are."""

import ast
import re
import shlex
import sys
from argparse import SUPPRESS
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import ROOT
from tests.options import actions_of, parse_options
from tests.unit.test_architecture import MODULES
from tracelloc.command.commandline import split_command
from tracelloc.command.customallocators import KINDS
from tracelloc.command.parser import build_parser, subcommand_parser
from tracelloc.command.subcommands import all_subcommands, find_subcommand, subcommand_names
from tracelloc.machine import processes
from tracelloc.machine.machinewatch import MOST_NAMES
from tracelloc.model.verdicts import Verdict
from tracelloc.record.kernel.captureconfig import CaptureConfig
from tracelloc.record.runtimes.cpython import paths, watch
from tracelloc.record.symbolization import debuginfod
from tracelloc.show import manual
from tracelloc.show.export import EXPORTERS, FORMATS
from tracelloc.show.filters.files import shipped_rules
from tracelloc.show.filters.rules import LONGEST_SUBJECT
from tracelloc.show.presentation.profile import METRICS
from tracelloc.show.publish import endpoint
from tracelloc.show.publish.address import PUSH_INTERVAL_S
from tracelloc.show.publish.publishing import MOST_WAITING
from tracelloc.show.report.content import FULL_AGAIN_S
from tracelloc.show.report.optional import SECTIONS
from tracelloc.ui.live_screen import LIVE_KEYS, view_keys
from tracelloc.ui.state import MOST_MARKS, VIEWS
from tracelloc.verdict.parameters import P

DOCS = ROOT / "tracelloc" / "docs"
GITHUB = [ROOT / ".github" / f"{name}.md" for name in ("CONTRIBUTING", "DESIGN", "SECURITY")]
PAGES = [ROOT / "README.md", *GITHUB, *sorted(DOCS.glob("*.md"))]
ids = [page.stem for page in PAGES]
STAND_INS = {"PID": "1", "TOPIC": "glossary", "SHELL": "bash"}
SHELL = {"|", "&&", "&", ";", ">", "\\", "#"}
# Command lines that are named, not shown.
SPOKEN_OF = ["diff"], ["heap"], ["holders"], ["leaks"], ["objects"], ["symbols"]
# Options of other programs.
OF_OTHERS = {
    "--basetemp", "--bashrc", "--check", "--dist", "--foreground", "--format", "--global",
    "--inspect", "--interpreted-frames-native-stack", "--no-install-recommends", "--only",
    "--output", "--perf-basic-prof", "--pid=host", "--port", "--privileged", "--profile",
    "--python", "--rm", "--rounds", "--strict", "--system-site-packages", "--template", "--tool",
    "--image", "--target", "--trace-children", "--unix-socket", "--wrapper",
}  # fmt: skip


def fenced(text: str) -> Iterator[str]:
    """Lines of code blocks that hold commands."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if kind in ("sh", "ini"):
            yield from block.splitlines()


def words_of(text: str) -> Iterator[list[str]]:
    """The words after ``tracelloc`` of each command line."""
    inline = re.findall(r"`((?:sudo )?tracelloc [^`\n]*)`", text)
    for line in [*fenced(text), *inline]:
        words = shlex.split(re.sub(r"\$\(pidof \w+\)", "1", line), comments=True)
        for at, word in enumerate(words):
            # In front of it: sudo, a path, or another program that is given a command.
            if word.removeprefix("ExecStart=").rpartition("/")[2] == "tracelloc":
                end = next((n for n, w in enumerate(words) if n > at and w in SHELL), None)
                found = [STAND_INS.get(w, w) for w in words[at + 1 : end] if w != "…"]
                if found not in SPOKEN_OF:
                    yield found
                break


def test_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that no test runs."""
    every = [words for page in PAGES for words in words_of(page.read_text())]
    assert len(every) > 45
    for words in every:
        if words and words[0] in subcommand_names():
            subcommand = find_subcommand(words[0])
            options = split_command(words[1:])[0] if subcommand.takes_command else words[1:]
            subcommand_parser(subcommand).parse_args(options)
        elif {"--help", "--help-all", "--version"} & set(words):
            with pytest.raises(SystemExit, match="0"):
                parse_options(words)
        elif words:
            with suppress(processes.NoGroupError):  # groups of other machines
                parse_options(words, terminal=True)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_options_are_those_there_are(page: Path) -> None:
    known = set(build_parser().flags()) | OF_OTHERS
    plugin = (ROOT / "tracelloc/testing/plugin.py").read_text()
    known.update(re.findall(r'"(--tracelloc[a-z-]*)"', plugin))
    for subcommand in all_subcommands():
        known.update(subcommand_parser(subcommand).flags())
    shown = re.findall(r"(?<![\w-])--[a-z][\w-]+(?:=host)?", page.read_text())
    assert {option for option in shown if option not in known} == set()


def test_every_option_is_documented() -> None:
    """``--allocator`` is an old name, and the same as ``--malloc``."""
    text = "".join(page.read_text() for page in PAGES)
    hidden = {"-h", "--allocator", "--pid", "--name", "--output"}
    flags = [flag for flag in build_parser().flags() if flag not in hidden]
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_that_are_named_are_there(page: Path) -> None:
    """In code, relative to the top or to the package."""
    for name in re.findall(r"`([a-z_]+/[a-z_/.]*)`", page.read_text()):
        assert any((base / name).exists() for base in (ROOT, ROOT / "tracelloc")), name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_classes_that_are_named_are_there(page: Path) -> None:
    source = "".join(path.read_text() for path in [*MODULES, *sorted((ROOT / "ui").glob("*.py"))])
    for name in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", page.read_text()):
        if page in GITHUB or page.stem == "internals":
            assert re.search(rf"^class {name}\b", source, re.MULTILINE), name


def test_every_folder_has_a_line_in_the_house() -> None:
    text = (ROOT / ".github" / "DESIGN.md").read_text()
    house = text.partition("## The house")[2].partition("\n## ")[0]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in MODULES} - {"tracelloc"}
    folders = {each.removeprefix("tracelloc/") for each in folders}
    assert not [each for each in folders - {"files", "record", "show"} if f"`{each}/`" not in house]


def test_pages_are_short() -> None:
    lengths = {"README.md": 150, "CHANGELOG.md": 60, ".github/DESIGN.md": 320}
    assert {name: n for name, n in lengths.items()
            if len((ROOT / name).read_text().splitlines()) > n} == {}  # fmt: skip
    texts = [page.read_text() for page in DOCS.glob("*.md")]
    assert len(texts) <= 20
    assert sum(text.count("\n") for text in texts) <= 2400
    prose = re.sub(r"```.*?```", "", "".join(texts), flags=re.DOTALL).splitlines()
    assert max(len(line) for line in prose if line[:1] not in "|![") <= 120
    design = (ROOT / ".github" / "DESIGN.md").read_text()
    assert len(re.findall(r"`[a-z]+(?:/[a-z_]+)*/?(?:\.py|\.h|\.bpf\.c)?`", design)) > 50
    readme = (ROOT / "README.md").read_text()
    assert all(words in readme for words in ("make install", "make test"))


def test_topics_are_the_files() -> None:
    assert manual.topics() == sorted(page.stem for page in DOCS.glob("*.md"))
    contents = manual.contents()
    for topic in manual.topics():
        assert manual.text_of(topic).startswith("# ")
        assert f"\n| {topic} | " in contents
    assert contents.startswith("# Start here\n")
    readme = (ROOT / "README.md").read_text()
    assert [t for t in manual.topics() if f"tracelloc/docs/{t}.md" not in readme] == []


def test_words_lead_to_topics_sections_and_files() -> None:
    assert not set(manual.ALIASES) & set(manual.topics())
    for name, found in manual.ALIASES.items():
        section = manual.text_of(name)
        assert section.startswith("## " if "#" in found else "# "), name
        assert len(section) > 200, name
    expected = {
        "leak": "leaks", "Docker": "docker", "kernels": "kernel", "verdict": "verdicts",
        "gloss": "glossary", "cuda.toml": "cuda.toml",
    }  # fmt: skip
    assert {word: manual.find_topic(word) for word in expected} == expected
    starts = {
        "rss": "# Why is the process so large?", "oom": "## Killed by the kernel",
        "fragmentation": "# Why is", "arena": "# Why is", "valgrind": "# Tests",
        "sudo": "# Without root",
        "memleak": "# Lost blocks", "gdb": "## Limits of following", "kubernetes": "## Kubernetes",
        "preload": "## When probes", "recordings": "## Recordings", "cuda.toml": "# Calls of CUDA",
    }  # fmt: skip
    for word, start in starts.items():
        assert manual.text_of(manual.find_topic(word)).startswith(start), word
    refused = {
        "verdcits": "did you mean verdicts?",
        "overhed": "did you mean overhead or max-overhead?",
        "clone_vm": "the word is in processes",
        "xyzzy": "tracelloc help lists the topics",
    }
    for word, meant in refused.items():
        with pytest.raises(ValueError, match=f"there is no topic '{word}'; {re.escape(meant)}"):
            manual.find_topic(word)


@pytest.mark.parametrize(
    ("topic", "names"),
    [
        ("allocators", KINDS), ("exports", EXPORTERS), ("exports", METRICS),
        ("exports", FORMATS), ("filters", {rule.group for rule in shipped_rules().rules}),
        ("glossary", [verdict.value for verdict in Verdict]), ("reports", SECTIONS),
        ("verdicts", [verdict.value for verdict in Verdict]),
    ],
)  # fmt: skip
def test_what_there_is_to_choose_from_is_described(topic: str, names: Iterable[str]) -> None:
    text = manual.text_of(topic)
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}\b", text)] == []


def test_help_that_messages_name_is_there() -> None:
    files = (path for path in MODULES if path.suffix == ".py")
    source = " ".join(" ".join(path.read_text().split()) for path in files).replace('" f"', "")
    found = set(re.findall(r"tracelloc help ([a-z-]+)", source)) - {"has", "lists"}
    assert {"cost", "preload", "watch"} <= found
    for word in found - set(subcommand_names()):
        assert manual.find_topic(word) == word


def test_every_key_of_the_screen_is_described() -> None:
    text = manual.text_of("screen").replace("`1` … `8`", "`1` `2` `3` `4` `5` `6` `7` `8`")
    keys = {"slash": "/", "question_mark": "?", "greater_than_sign": ">", "less_than_sign": "<",
            "space": "space", "escape": "Esc"}  # fmt: skip
    bindings = [*LIVE_KEYS, *view_keys(VIEWS)]
    shown = [keys.get(binding.key, binding.key) for binding in bindings]
    assert [key for key in shown if not re.search(rf"[`|] ?{re.escape(key)}[`, ]", text)] == []


def test_errors_are_those_of_the_program() -> None:
    """The first column of the tables of what goes wrong quotes what the program says."""
    source = "".join(path.read_text() for path in sorted((ROOT / "tracelloc").rglob("*.py")))
    source = re.sub(r'"\s+f?"', "", source)
    rows = re.findall(r"^\| (`.*?) \|", manual.text_of("troubleshooting"), re.MULTILINE)
    quotes = [quote for row in rows for quote in re.findall("`([^`]+)`", row)]
    assert len(quotes) > 10
    for quote in quotes:
        if "sudo: " in quote:
            continue
        for piece in re.split(r"…|\bNAME\b|\bN\b|unknown", quote):
            assert piece.strip(" .") in source, quote


TRACE = build_parser()
# What pages say of a default or limit of the program, which is put into the braces.
STATED: dict[str, list[tuple[str, object]]] = {
    "cost": [("room for {:,} addresses", CaptureConfig().spill_entries),
             ("deeper than {} frames", CaptureConfig().max_frames)],
    "processes": [("{} processes are traced at a time", TRACE.get_default("most_processes")),
                  ("(`--follow-limit`, up to {:,})", CaptureConfig().max_spaces)],
    "reports": [("entries per section ({})", TRACE.get_default("top")),
                ("one every {:.0f} hours", FULL_AGAIN_S / 3600),
                ("The {} most recently used files", debuginfod._MOST_FILES),
                ("the first {:,} characters", LONGEST_SUBJECT)],
    "exports": [("profile every {:.0f} s", PUSH_INTERVAL_S), ("the last {} profiles", MOST_WAITING),
                ("At most {} clients", endpoint._MOST_CONNECTIONS)],
    "python": [("up to {:,} items", paths._MOST_BOUNDED),
               ("by {} objects and", watch._LEAST_OBJECTS)],
    "screen": [("the last {} are kept", MOST_MARKS)],
    "verdicts": [("by {:.0f} MiB or more", P.referenced_least_bytes / 2**20),
                 ("is {:.0f} KiB a minute or more", P.steady_least_bytes / 2**10),
                 ("at {:.0f} KiB a minute or more", P.material_least_bytes / 2**10),
                 ("a confidence of {:.0f} %", P.suspect_least_confidence * 100),
                 ("leak is, 0 to {:.0f} %", P.most_confidence * 100),
                 ("{:.0f} %, and", P.lost_share * 100), ("and {} blocks, or more", P.lost_least)],
    "watch": [("the {} largest processes", processes._PSS_COUNT),
              ("The {} largest commands and groups", MOST_NAMES)],
}  # fmt: skip


def test_stated_numbers_are_those_of_the_program() -> None:
    pages = {page: " ".join(manual.text_of(page).split()) for page in STATED}
    stated = [(page, text.format(value)) for page in STATED for text, value in STATED[page]]
    assert [(page, text) for page, text in stated if text not in pages[page]] == []
    costs = set(re.findall(r"([\d,]+) ns", (ROOT / "README.md").read_text()))
    assert costs - set(re.findall(r"[\d,]+", manual.text_of("cost"))) == set()
    for parser in (TRACE, *map(subcommand_parser, all_subcommands())):
        for action in actions_of(parser):
            said = re.search(r"\(default (\d+)\)", action.help or "")
            assert said is None or int(said[1]) == action.default, action.dest


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    unit = (ROOT / ".github" / "packaging" / "tracelloc@.service").read_text()
    assert ".github/packaging/tracelloc@.service" in (DOCS / "watch.md").read_text()
    command = f'ExecStart="{sys.executable}" -m tracelloc'
    (tmp_path / "tracelloc@.service").write_text(unit.replace("ExecStart=tracelloc", command))
    done = outcome("systemd-analyze", "verify", "--man=no", tmp_path / "tracelloc@shop.service")
    assert done.returncode == 0
    assert "tracelloc@" not in done.stderr


def test_the_page_of_benchmarks_has_the_question_of_each() -> None:
    text = (ROOT / "tests" / "bench" / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    rows = dict(re.findall(r"`(\w+)\.py` \| (.*) \|$", text, re.MULTILINE))
    files = (path for path in (ROOT / "tests" / "bench").glob("*.py") if path.stem[0] != "_")
    docstrings = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    assert rows == {
        name: text.partition("\n")[0].replace("``", "`") for name, text in docstrings.items()
    }


def test_the_man_page_is_that_of_the_options() -> None:
    """``make docs`` writes it again."""
    page = (DOCS / "tracelloc.1").read_text()
    plain = " ".join(re.sub(r"\\f.|\\,|\\/|\\", "", page).split())
    for action in actions_of(build_parser()):
        if action.help == SUPPRESS or "--help" in action.option_strings:
            continue
        assert all(re.search(rf"{flag}(?![\w-])", plain) for flag in action.option_strings)
        assert " ".join(((action.help or "") % vars(action)).split()) in plain, action.dest
    assert not re.search(r"^\.[^A-Zr]", page, re.MULTILINE), "man takes this line for a request"
