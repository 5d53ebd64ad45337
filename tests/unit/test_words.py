"""One name for one thing: classes are told apart, and the project's words are the field's."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_architecture import PACKAGE, TOP
from tests.unit.test_architecture import PYTHON as MODULES

PAGES = sorted((PACKAGE / "show" / "export" / "web").iterdir())

# What a docstring can't begin with: an IDE shows it alone, without what it refers to.
BAD_BEGINNING = re.compile(
    r"(Of|As|And|The same|Likewise|Those|These|Than|Whose|Its|It|They|Their|That)\b"
)

# Words that must not come back, and what to say instead.
RETIRED = {
    r"strangers?": "unmatched free",
    r"put(s|ting)? up with": "suppressed",
    r"(take|takes|taken|took) back": "retracted",
    r"dear probes?": "slow probe",
    r"made here": "allocated here",
    r"(worked out|kept|put) aside": "in the background, overflow map",
    r"turn(s|ed)? round|other way round": "reverse, invert",
    r"spreads": "histogram, distribution",
    r"when most was": "high-water mark",
    r"filtered out": "hidden",
    r"handed on": "freed by others",
    r"not sure yet": "possible leak",
    r"held and rising": "live and rising",
    r"take(s|n)? \w+ together": "collapse",
    r"can be given several times|several times if you like": "repeatable",
    r"must not pay for": "lower overhead, estimated figures",
    r"spill map": "overflow map",
}
# The same for what users read: README, manual, help.
RETIRED_SENTENCES = {
    r"depends on what you do": "Pick the case that fits:",
    r"what points to the rest": "what keeps the rest alive",
    r"only looks, unless permitted": "Read-only by default.",
    r"that is what, but not who": "This shows what was lost. Next: who allocated it.",
    r"with who keeps them": "with the containers that hold them",
    r"static ones need": "a statically linked malloc needs a symbol table",
    r"nothing can free them": "X of Y blocks older than 10 s are unreachable",
    r"no suspect\b": "not yet a suspect",
    r"besides the way|till|anew|mend(s|ed|ing)?": "until, again, fix",
    r"(is|are) said to (be|have)": "name the actor",
    r"the lane|by lane": "the preloaded library",
    r"several times if you like": "repeatable",
    r"dear probes?|strangers?|taken back": "slow probe, unmatched free, retracted",
}
MANUAL = [TOP / "README.md", TOP / "CHANGELOG.md", *sorted((PACKAGE / "docs").glob("*.md"))]
RETIRED_NAMES = {
    "format_age", "format_roughly", "taken_back", "watch_more_s", "handed_bytes", "handed_count",
    "look_at_others", "strangers_share", "explained_share", "heed_pointers", "find_proof",
    "Dissector", "dissector", "nodes_of", "see_off", "begin_stranger", "unborn", "lender",
    "SpaceWords", "BackgroundTurns", "FollowLoad", "GapBook", "say_aside", "heed_memory",
    "heed_interrupts", "heeded", "said_again_if", "is_news", "kept_sentence", "kept_facts",
}  # fmt: skip


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def words(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is a name) of a module's strings, comments and names."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, tokenize.NAME):
            yield token.start[0], token.string, token.type == tokenize.NAME


def test_a_class_name_stands_once() -> None:
    found = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert not {name for name, count in found.items() if count > 1}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_docstrings_stand_alone(path: Path) -> None:
    bad = [
        f"{path}:{line}: {text.splitlines()[0]}"
        for line, text in docstrings(ast.parse(path.read_text()))
        if BAD_BEGINNING.match(text)
    ]
    assert not bad


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_retired_words_do_not_come_back(path: Path) -> None:
    for line, text, is_name in words(path.read_text()):
        if is_name:
            assert text.lstrip("_") not in RETIRED_NAMES, f"{path}:{line}: {text}"
            continue
        plain = " ".join(text.split())
        for pattern, instead in RETIRED.items():
            found = re.search(rf"\b({pattern})\b", plain, re.IGNORECASE)
            assert found is None, f"{path}:{line}: {found and found[0]!r}: say {instead}"


@pytest.mark.parametrize("path", MANUAL, ids=lambda path: path.stem)
def test_the_manual_keeps_to_the_words(path: Path) -> None:
    plain = " ".join(re.sub(r"```.*?```|`[^`]*`", "", path.read_text(), flags=re.DOTALL).split())
    for pattern, instead in (RETIRED | RETIRED_SENTENCES).items():
        found = re.search(rf"\b({pattern})\b", plain, re.IGNORECASE)
        assert found is None, f"{path}: {found and found[0]!r}: say {instead}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_keep_to_the_words(path: Path) -> None:
    plain = " ".join(path.read_text().split())
    for pattern, instead in RETIRED.items():
        found = re.search(rf"\b({pattern})\b", plain, re.IGNORECASE)
        assert found is None, f"{path}: {found and found[0]!r}: say {instead}"


def test_the_rules_find_what_they_are_for() -> None:
    ((line, text),) = docstrings(ast.parse('class A:\n    """Of these, some."""\n'))
    assert line == 2
    assert BAD_BEGINNING.match(text)
    assert not BAD_BEGINNING.match("Offset in the file.")
    assert [w for w in words('taken_back = "x"  # y\n') if w[2]] == [(1, "taken_back", True)]
