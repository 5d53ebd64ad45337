"""Files that are written follow nobody else's links. Real users, links and directories."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.commands import outcome
from tests.harness import DATA
from tracelloc.command.outputs import open_report
from tracelloc.errors import TracellocError
from tracelloc.record.kernel.compiler import CompiledProbes
from tracelloc.record.kernel.precompiled import _Cache
from tracelloc.show.export import exporter_for
from tracelloc.show.export.outputfile import OutputFile
from tracelloc.show.filters.files import append_rules
from tracelloc.show.filters.rules import Rule
from tracelloc.show.recording.writer import RecordingWriter
from tracelloc.system.invoker import Invoker, User, effective_user, invoker, is_changed_only_by
from tracelloc.system.safefiles import writing

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")

ALICE, MALLORY, ROOT = User(64101, 64101), User(64102, 64102), User(0, 0)
SECRET = b"root's own\n"
REFUSED = "is a link that another user could have made"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users reach, with homes for two of them and a file of root's."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        root = Path(name)
        root.chmod(0o755)
        for home, user in (("alice", ALICE), ("mallory", MALLORY)):
            (root / home).mkdir(mode=0o755)
            os.chown(root / home, *user)
        (root / "shared").mkdir()
        (root / "shared").chmod(0o1777)
        (root / "own").mkdir()
        (root / "own/secret").write_bytes(SECRET)
        yield root


@pytest.fixture
def under_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(ALICE.uid))
    monkeypatch.setenv("SUDO_GID", str(ALICE.gid))


def link(at: Path, to: str | Path, owner: User) -> Path:
    at.symlink_to(to)
    os.chown(at, *owner, follow_symlinks=False)
    return at


def owner_of(path: Path) -> User:
    status = path.lstat()
    return User(status.st_uid, status.st_gid)


def write_output(path: Path) -> None:
    output = OutputFile(path, exporter_for(str(path)))
    output.check()
    output.write([b"new"])


def write_report(path: Path) -> None:
    with open_report(path) as stream:
        stream.write(b"new")


WRITERS = pytest.mark.parametrize("write", [write_output, write_report])


def untouched(place: Path) -> bool:
    secret = place / "own/secret"
    return secret.read_bytes() == SECRET and owner_of(secret) == ROOT


@WRITERS
@pytest.mark.parametrize("where", ["mallory", "alice", "shared"])
@pytest.mark.parametrize("sudo", [False, True])
def test_a_link_of_somebody_else(
    place: Path, request: pytest.FixtureRequest, write, where: str, sudo: bool
) -> None:
    """Neither the file that it leads to is touched, nor another one made there."""
    if sudo:
        request.getfixturevalue("under_sudo")
    for name, target in (("a.json", "own/secret"), ("b.json", "own/none"), ("c", "own")):
        path = link(place / where / name, place / target, MALLORY)
        if target == "own":
            path /= "secret"
        with pytest.raises(TracellocError, match=f"{REFUSED}; name"):
            write(path if path.suffix else path.with_suffix(".json"))
    assert untouched(place)
    assert [path.name for path in (place / "own").iterdir()] == ["secret"]


@pytest.mark.usefixtures("under_sudo")
@WRITERS
def test_a_link_of_the_callers(place: Path, write) -> None:
    """It works for the caller's own files, with the caller's rights, and leads to no others."""
    own = place / "alice"
    for name, target in (("old.json", place / "alice/real.json"), ("new.json", "made.json")):
        if name == "old.json":
            target.write_bytes(b"a longer one")
            os.chown(target, *ALICE)
        path = link(own / name, target, ALICE)
        write(path)
        assert path.is_symlink()
        assert path.read_bytes() == b"new"
        assert owner_of(own / target) == ALICE
    for name, target in (("bad.json", "own/secret"), ("worse.json", "own/none")):
        with pytest.raises(TracellocError, match=REFUSED):
            write(link(own / name, place / target, ALICE))
    assert untouched(place)
    assert not (place / "own/none").exists()


@WRITERS
def test_links_of_roots(place: Path, write) -> None:
    """In a directory where nobody else can put them; elsewhere they could be moved."""
    write(link(place / "own/good.json", place / "own/made.json", ROOT))
    assert (place / "own/made.json").read_bytes() == b"new"
    write(link(place / "own/directory", place / "own", ROOT) / "more.json")
    assert (place / "own/more.json").read_bytes() == b"new"
    with pytest.raises(TracellocError, match=REFUSED):
        write(link(place / "mallory/moved.json", place / "own/secret", ROOT))
    # In a sticky directory it is root's, but might be a second name of a link elsewhere.
    os.link(place / "own/good.json", place / "shared/second.json", follow_symlinks=False)
    with pytest.raises(TracellocError, match=REFUSED):
        write(place / "shared/second.json")
    assert untouched(place)


def test_directories_that_are_renamed_meanwhile(place: Path) -> None:
    """What was a directory when the path was resolved is a link when the file is finished."""
    own, moved = place / "mallory/directory", place / "mallory/moved"
    own.mkdir()
    (own / "secret").write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        own.rename(moved)
        own.symlink_to(place / "own")

    writing.replace_file(own / "secret", pieces(), [ROOT])
    assert untouched(place)
    assert (moved / "secret").read_bytes() == b"new"
    assert [path.name for path in moved.iterdir()] == ["secret"]


def test_half_written_files_are_removed_where_they_are(place: Path) -> None:
    own = place / "mallory/directory"
    own.mkdir()

    def pieces() -> Iterator[bytes]:
        yield b"new"
        assert len(list(own.iterdir())) == 1
        writing.discard_unfinished()
        assert list(own.iterdir()) == []
        raise KeyboardInterrupt

    with pytest.raises(OSError, match="No such file"):
        writing.replace_file(own / "a", pieces(), [ROOT])


@pytest.mark.usefixtures("under_sudo")
def test_whose_files_they_are(place: Path) -> None:
    """The caller's, wherever; one of root's stays root's, and no others' is emptied."""
    for where in ("alice", "shared", "own"):
        for write in (write_output, write_report):
            path = place / where / f"{write.__name__}.json"
            write(path)
            status = path.stat()
            assert owner_of(path) == ALICE
            assert stat.S_IMODE(status.st_mode) == 0o600
            write(path)
            assert path.read_bytes() == b"new"
    write_report(place / "own/secret")
    assert (owner_of(place / "own/secret"), (place / "own/secret").read_bytes()) == (ROOT, b"new")
    for name, owner in (
        ("own/kept", ROOT), ("mallory/own.json", MALLORY), ("shared/own.json", MALLORY),
    ):  # fmt: skip
        (place / name).write_bytes(b"kept")
        os.chown(place / name, *owner)
    os.link(place / "own/kept", place / "alice/second.json")
    for name, why in (
        ("mallory/own.json", "it belongs to another user"),
        ("shared/own.json", "it belongs to another user"),
        ("alice/second.json", "it has a second name"),
    ):
        with pytest.raises(TracellocError, match=why):
            write_report(place / name)
        assert (place / name).read_bytes() == b"kept"
    # These are replaced, which leaves the other name's content.
    write_output(place / "alice/second.json")
    assert (place / "own/kept").read_bytes() == b"kept"
    write_output(place / "shared/own.json")
    assert owner_of(place / "shared/own.json") == ALICE


def test_devices_and_descriptors(place: Path) -> None:
    """``/dev/fd/N`` is what a shell's ``>(command)`` is; others' links to devices are refused."""
    with pytest.raises(TracellocError, match=REFUSED):
        write_output(link(place / "mallory/null.json", "/dev/null", MALLORY))
    write_report(Path("/dev/null"))
    reader, writer = os.pipe()
    with open(reader, "rb") as stream:
        write_report(Path(f"/dev/fd/{writer}"))
        os.close(writer)
        assert stream.read() == b"new"
    descriptor = os.open(place / "own/secret", os.O_RDONLY)
    assert writing.status_of(Path(f"/proc/self/fd/{descriptor}"), [ROOT]).st_size == len(SECRET)
    os.close(descriptor)
    with pytest.raises(TracellocError, match=REFUSED):
        write_report(Path(f"/proc/{os.getppid()}/exe"))


def test_other_root_directories(place: Path) -> None:
    """The links inside are their own root's."""
    inside = Path(f"/proc/{os.getpid()}/root") / place.relative_to("/")
    write_output(inside / "own/through.json")
    assert (place / "own/through.json").read_bytes() == b"new"
    link(place / "own/link.json", "/etc/none.json", ROOT)
    with pytest.raises(TracellocError, match=REFUSED):
        write_output(inside / "own/link.json")


@pytest.mark.parametrize("path", ["alice/../own/a", "alice/./../own//a", "own/deep/../a"])
def test_dots(place: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "own/deep").mkdir()
    writing.replace_file(Path(f"{place}/{path}"), [b"new"], [ROOT])
    assert (place / "own/a").read_bytes() == b"new"
    monkeypatch.chdir(place / "own/deep")
    writing.replace_file(Path("../b"), [b"new"], [ROOT])
    writing.replace_file(Path("../../own/c"), [b"new"], [ROOT])
    assert {"a", "b", "c"} < {each.name for each in (place / "own").iterdir()}
    with suppress(FileExistsError):
        link(place / "own/loop", "loop", ROOT)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        writing.replace_file(place / "own/loop", [b""], [ROOT])


def test_where_roots_cache_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never where another user could change it, whatever sudo and su leave of the environment."""
    for name in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(name, raising=False)
    default = Path("/var/cache")
    for given, expected in (
        (None, default),
        (place / "alice/.cache", default),
        (place / "alice", default),
        (place / "shared/none", place / "shared/none"),
        (link(place / "shared/link", place / "own", MALLORY), default),
        (place / "own/cache", place / "own/cache"),
        ("relative", default),
    ):
        environment = {"HOME": str(place / "alice")}
        if given is not None:
            environment["XDG_CACHE_HOME"] = str(given)
        found = invoker(environment).cache
        assert found == expected or given == place / "shared/link", given
    (place / "own").chmod(0o775)
    assert not is_changed_only_by(place / "own/cache", ROOT)
    # Under sudo, the caller's is the caller's, and is used with that user's rights.
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setenv("SUDO_GID", "65534")
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "alice/.cache"))
    assert invoker().uid == 65534
    assert effective_user().cache == default


def test_a_cache_that_leads_elsewhere(place: Path) -> None:
    """Nothing is written through a link in it, and nothing removed but old files of its kind."""
    for number in range(20):
        (place / f"own/{number}").write_bytes(SECRET)
    cache = place / "alice/.cache"
    cache.mkdir()
    link(cache / "tracelloc", place / "own", ALICE)
    os.chown(cache, *ALICE)
    who = Invoker(0, 0, place, cache)
    writing.CacheDirectory(who, "", ".probes", 2).remember("x", [b"1"])
    assert len(list((place / "own").iterdir())) == 21
    with pytest.raises(OSError, match="is a link that another user"):
        writing.CacheDirectory(who, "", "", 2).recall("secret", 100)
    good = writing.CacheDirectory(Invoker(0, 0, place, place / "own"), "probes", ".probes", 2)
    good.remember("first", [b"1"])
    (good.path / "other").write_bytes(b"2")
    os.utime(good.path / "other", (0, 0))
    for name in ("second", "third"):
        os.utime(good.path / "first.probes", (1, 1))
        good.remember(name, [name.encode()])
    assert {path.name for path in good.path.iterdir()} == {"other", "second.probes", "third.probes"}
    assert good.recall("third", 100) == b"third"


def test_the_cache_of_a_careless_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root with another user's XDG_CACHE_HOME, as ``sudo -E`` and ``su`` leave it."""
    target = place / "own/precious"
    target.mkdir()
    for number in range(20):
        (target / str(number)).write_bytes(SECRET)
    own = place / "alice/.cache/tracelloc"
    own.mkdir(parents=True)
    os.chown(own, *ALICE)
    os.chown(own.parent, *ALICE)
    link(own / "probes", target, ALICE)
    monkeypatch.setattr("tracelloc.system.invoker._ROOTS_CACHE", place / "own/cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.parent))
    cache, probes = _Cache(b"made of this"), CompiledProbes((), {})
    cache.remember(probes)
    assert cache.recall() == probes
    assert len(list(target.iterdir())) == 20
    assert len(list((place / "own/cache/tracelloc/probes").iterdir())) == 1


def test_rules_of_another_user(place: Path) -> None:
    config = place / "alice/.config"
    config.mkdir()
    link(config / "tracelloc", place / "own", ALICE)
    os.chown(config, *ALICE)
    with pytest.raises(TracellocError, match="could not be written"):
        append_rules(Invoker(0, 0, config, place), [Rule("x")])
    assert [path.name for path in (place / "own").iterdir()] == ["secret"]


def record_to(path: Path) -> None:
    writer = RecordingWriter(path, max_bytes=8 << 20, max_s=1e9, users=writing.output_users())
    writer.copy(path.with_suffix(".copy"))
    for name in ("", "-wal", "-shm"):
        assert stat.S_IMODE(Path(f"{path}{name}").stat().st_mode) == 0o600
    writer.count = 1
    writer.close()


@pytest.mark.usefixtures("under_sudo")
def test_recordings(place: Path) -> None:
    """SQLite opens files by name: with the rights of the user whose directory it is."""
    for where in ("alice", "shared", "own"):
        record_to(place / where / "a.rec")
        for suffix in (".rec", ".copy"):
            assert owner_of(place / where / f"a{suffix}") == ALICE
    link(place / "mallory/d", place / "own", MALLORY)
    with pytest.raises(TracellocError, match=REFUSED):
        record_to(place / "mallory/d/a.rec")
    with pytest.raises(TracellocError, match="Permission denied"):
        record_to(place / "mallory/a.rec")


def test_recordings_of_root_in_another_users_directory(place: Path) -> None:
    record_to(place / "alice/a.rec")
    assert owner_of(place / "alice/a.rec") == ALICE
    record_to(place / "shared/a.rec")
    assert owner_of(place / "shared/a.rec") == ROOT
    (place / "own").chmod(0o777)
    with pytest.raises(TracellocError, match="other users can change its directory"):
        record_to(place / "own/a.rec")


def test_reports_by_the_command(place: Path) -> None:
    """The whole command, as a caller of sudo has it."""
    path = link(place / "alice/a.folded", place / "own/secret", ALICE)
    command = [sys.executable, "-m", "tracelloc", "report", DATA / "recordings/v1.rec", "-o", path]
    environment = {**os.environ, "SUDO_UID": str(ALICE.uid), "SUDO_GID": str(ALICE.gid)}
    done = outcome(*command, env=environment)
    assert done.returncode != 0
    assert "a.folded is a link that another user could have made" in done.stderr
    assert untouched(place)
