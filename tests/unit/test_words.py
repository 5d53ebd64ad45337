"""One name for one thing: classes are told apart, and the project's words are the field's."""

import ast
import re
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
    r"taken back": "retracted",
}
MANUAL = [TOP / "README.md", TOP / "CHANGELOG.md", *sorted((PACKAGE / "docs").glob("*.md"))]


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


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


@pytest.mark.parametrize("path", [*MODULES, *PAGES, *MANUAL], ids=lambda path: path.name)
def test_retired_words_do_not_come_back(path: Path) -> None:
    text, retired = path.read_text(), RETIRED
    if path in MANUAL:
        text = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        retired = RETIRED | RETIRED_SENTENCES
    plain = " ".join(text.split())
    for pattern, instead in retired.items():
        found = re.search(rf"\b({pattern})\b", plain, re.IGNORECASE)
        assert found is None, f"{path}: {found and found[0]!r}: say {instead}"
