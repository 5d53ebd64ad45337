"""The pictures in ``img/`` show today's program, and all of them are used."""

from tests.screenshots import IMAGES, ROOT, STATE, sources_hash


def test_pictures_are_not_older_than_what_they_show() -> None:
    assert STATE.read_text().strip() == sources_hash(), "make screenshots"


def test_every_picture_is_used() -> None:
    pages = [ROOT / "README.md", *(ROOT / "tracelloc/docs").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    pictures = [path for path in IMAGES.iterdir() if path.suffix in (".svg", ".png")]
    assert len(pictures) == 6
    assert [path.name for path in pictures if f"img/{path.name}" not in text] == []
