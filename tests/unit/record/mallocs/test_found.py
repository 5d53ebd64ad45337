"""What is said of the allocators that were found, and of memory that can't be seen."""

from pathlib import Path

from tests.harness import Builder
from tests.unit.references import module_of
from tracelloc.model.process import FoundLibrary, UnseenFunction
from tracelloc.record.mallocs.discovery import why_no_allocator
from tracelloc.show.presentation.facts import found_json, found_lines

REASON = "it makes its block by itself"
FOUND = (
    FoundLibrary("malloc", "/lib/libc.so.6", ("malloc", "free"), ()),
    FoundLibrary(
        "pool\x1b[31m",
        "/opt/app",
        ("take",),
        tuple(UnseenFunction(f"f{n}", REASON) for n in range(5)),
    ),
)


def test_lines_and_json() -> None:
    """One for all that is traced, one for each reason why something is not; hostile names tamed."""
    first, second = found_lines(FOUND)
    assert first.startswith("malloc libraries: malloc in /lib/libc.so.6 (2 functions), pool")
    assert "\x1b" not in first
    assert second == f"not probed: f0, f1, f2 and 2 more in app: {REASON}"
    assert list(found_lines(())) == []
    first, second = found_json(FOUND)
    assert first == {
        "name": "malloc", "file": "/lib/libc.so.6", "functions": ["malloc", "free"],
        "not_probed": [],
    }  # fmt: skip
    assert second["not_probed"][4] == {"name": "f4", "reason": REASON}


def test_why_there_is_no_allocator(builder: Builder) -> None:
    def why(path: Path) -> str:
        return why_no_allocator(str(path), [module_of(path)])[0]

    assert why(builder.c("plain", "-static", "-s")) == "it is a static program without symbols"
    assert why_no_allocator(None, [])[0] == "its executable can't be read"
