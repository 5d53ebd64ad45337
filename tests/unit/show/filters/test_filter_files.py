"""Files of filter rules: what is wrong in them and where, layers, and the user's own."""

import os
import pwd
import stat
import threading
import tomllib
from pathlib import Path

import pytest

from tests.options import parse_options
from tracelloc.errors import TracellocError, UsageError
from tracelloc.show.filters.files import append_rules, given_text, load_filters, own_text
from tracelloc.show.filters.rules import Action, Match, On, Rule, RuleFile, find_line, parse_rules
from tracelloc.system.invoker import Invoker, effective_user, invoker, rights_of

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")


def test_lines_keys_and_the_command_line() -> None:
    text = (
        "# one\n[[rule]]\npattern = 'x'\n[[ 'rule' ]]\n\"why\" = 'w'\n\n"
        "[groups]\n'x.y' = true\na.b=1\n"
    )
    tomllib.loads(text)
    assert [find_line(text, key, "rule") for key in ("pattern", "why")] == [3, 2]
    assert [find_line(text, key, "rule", 1) for key in ("pattern", "why")] == [4, 5]
    assert [find_line(text, key, "groups") for key in ("x.y", "a", "none")] == [8, 9, 7]
    assert [find_line(text, key) for key in ("rule", "groups", "none")] == [2, 7, 1]
    # Rules as an array have no lines of their own: the array's stands for them.
    assert find_line("\n\nrule = [{pattern = 'x'},\n {}]\n", "pattern", "rule", 1) == 3
    text = (
        '[[rule]]\npattern = "a"\nmatch = "regex"\non = "file"\naction = "collapse"\n'
        'as = "A"\ngroup = "g"\nwhy = "w"\n[[rule]]\npattern = "b"\n[groups]\ng = false\n'
    )
    parsed = parse_rules(text, "f")
    first = Rule("a", Match.REGEX, On.FILE, Action.COLLAPSE, "A", "g", "w")
    assert parsed.rules == (first, Rule("b"))
    assert parsed.groups == {"g": False}
    assert parse_rules("", "f").rules == ()
    with pytest.raises(UsageError, match="cannot be kept in a file: it is not Unicode"):
        Rule("a\udc80").to_toml()
    options = parse_options(
        ["-p", "1", "--filters", "a", "--filters", "b", "--filter-group", "qt=off",
         "--filter-group", "a=b=on"]
    )  # fmt: skip
    assert options.filters_paths == [Path("a"), Path("b")]
    assert options.filter_groups == [("qt", False), ("a=b", True)]
    assert options.use_filters
    for wrong in ("qt", "qt=", "=on", "qt=ON", "qt=true"):
        with pytest.raises(UsageError, match="is not NAME=on or NAME=off"):
            parse_options(["-p", "1", "--filter-group", wrong])


KEYS = ("pattern", "match", "on", "action", "as", "group", "why")
RULE = '# one\n[[rule]]\npattern = "x"\n\n[[rule]]\n# two\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULE, "f:5: rule 2: pattern is missing"),
        (RULE + "pattern = ''", "f:7: rule 2: pattern is empty: it would match every frame"),
        (RULE + "why = 'x'\npatern = 'x'",
         "f:8: rule 2: unknown key 'patern'; did you mean 'pattern'?"),
        (RULE + "qqq = 'x'",
         "f:7: rule 2: unknown key 'qqq'; known are " + ", ".join(KEYS)),
        (RULE + "pattern = [\n3]", "f:7: rule 2: pattern must be a string"),
        (RULE + "pattern = '*'\nmatch = 'regex'",
         "f:7: rule 2: pattern is not a regular expression: nothing to repeat at position 0"),
        (RULE + "pattern = 'x'\nmatch = 'glob'",
         "f:8: rule 2: match cannot be 'glob'; known are prefix, regex"),
        (RULE + "pattern = 'x'\non = 'line'",
         "f:8: rule 2: on cannot be 'line'; known are symbol, trait, module, file"),
        (RULE + "pattern = 'x'\naction = 'fold'",
         "f:8: rule 2: action cannot be 'fold'; known are hide, collapse, show"),
        (RULE + "pattern = 'x'\naction = 'collapse'",
         "f:8: rule 2: collapse needs a name for what it collapses: as = \"…\""),
        (RULE + "pattern = 'x'\nas = 'y'",
         "f:8: rule 2: as belongs to collapse, and this rule's action is hide"),
        ("\n[[rules]]\n", "f:2: unknown key 'rules'; did you mean 'rule'?"),
        ("\ngroup.x = true\n", "f:2: unknown key 'group'; did you mean 'groups'?"),
        ("\n\n[rule]\n", "f:3: rule must be written as [[rule]]"),
        ("rule = [3]", "f:1: rule must be written as [[rule]]"),
        ("\ngroups = 3", "f:2: groups must be a table: [groups]"),
        ("[groups]\nx = true\ny = 'on'", "f:3: groups: y must be true or false"),
        ("\n[[rule", "f:2: this is not TOML: Expected ']]' at the end of an array declaration"),
        ("a = 1\na = 2\n", "f:2: this is not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 100_000, "f: this is not TOML: brackets are nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_wrong_and_where(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules(text, "f")
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["a", 'a"\\', "a\nb\tc", "\x1b[31m\x7f\x00", "ü😀", "'''", '"""'])
def test_rules_survive_being_written(text: str) -> None:
    for rule in (
        Rule(text, Match.PREFIX, On.MODULE, Action.SHOW, None, text, text),
        Rule(text, action=Action.COLLAPSE, label=text),
    ):
        assert parse_rules(rule.to_toml(), "f").rules == (rule,)


def test_whose_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert invoker({"HOME": "/h"}).filters == Path("/h/.config/tracelloc/filters.toml")
    assert invoker({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).config == Path("/x")
    assert invoker({"HOME": "/h", "XDG_CONFIG_HOME": "x"}).config == Path("/h/.config")
    assert invoker({}).config == Path("/nonexistent/.config")
    assert invoker({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).cache == Path("/h/.cache")
    assert invoker({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).cache == Path("/x")
    # Who is not root has not been made so by sudo.
    assert invoker({"HOME": "/h", "SUDO_UID": "65534"}).uid == 1000
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert invoker({"HOME": "/root", "SUDO_UID": str(NOBODY)}) == Invoker(
        NOBODY, NOBODY, Path("/nonexistent/.config"), Path("/nonexistent/.cache")
    )
    for strange in ("", "-1", "4000000", "x", "٣", "9" * 30):
        who = invoker({"HOME": "/root", "SUDO_UID": strange})
        assert (who.uid, who.config) == (0, Path("/root/.config"))


def test_effective_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one who called sudo, even where $HOME is still that one's."""
    cache = Path("/var/cache") if os.geteuid() == 0 else Path("/h/.cache")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/h")
    assert effective_user().cache == cache
    monkeypatch.setenv("SUDO_UID", "65534")
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert effective_user().config == Path(home) / ".config"
    assert effective_user().cache == (Path(home) / ".cache" if os.geteuid() else cache)
    assert effective_user().uid == os.geteuid()


@pytest.fixture
def me(tmp_path: Path) -> Invoker:
    who = Invoker(os.geteuid(), os.getegid(), tmp_path / "config", tmp_path / "cache")
    who.filters.parent.mkdir(parents=True, mode=0o700)
    return who


def write(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_layers_and_switches(me: Invoker, tmp_path: Path) -> None:
    """Shipped, the user's own, files in their order, then the command line's switches."""
    write(me.filters, '[[rule]]\npattern = "own"\ngroup = "g"\n[groups]\nqt = false\n')
    one = write(tmp_path / "1.toml", '[[rule]]\npattern = "one"\n[groups]\ng = false\nglib = false')
    two = write(tmp_path / "2.toml", '[[rule]]\npattern = "two"\n[groups]\nglib = true\n')
    filters, warnings = load_filters([one, two], [("qt", True), ("rust", False)], who=me)
    assert warnings == []
    assert [rule.pattern for rule in filters.rules[-3:]] == ["own", "one", "two"]
    assert len(filters.rules) > 50
    switched = {group: on for group, on in filters.groups.items() if not on}
    assert switched == {"g": False, "rust": False}
    assert filters.groups["qt"]
    three = write(tmp_path / "3.toml", '[[rule]]\npattern = "three"\n')
    only, _ = load_filters([three], standing=False, who=me)
    assert [rule.pattern for rule in only.rules] == ["three"]
    assert load_filters(standing=False, who=me)[0].rules == ()


def test_switches_of_unknown_groups(me: Invoker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no filter group 'tokyo'; did you mean 'tokio'"):
        load_filters([], [("tokyo", False)], who=me)
    with pytest.raises(UsageError, match="there is no filter group 'qt'; there is none"):
        load_filters([], [("qt", False)], standing=False, who=me)
    path = write(tmp_path / "f.toml", "\n[groups]\nqt = true\nglibb = false\n")
    with pytest.raises(UsageError) as caught:
        load_filters([path], who=me)
    assert str(caught.value) == f"{path}:4: there is no group 'glibb'; did you mean 'glib'?"


def read_rules(path: Path) -> RuleFile:
    return parse_rules(given_text(path, "filters"), str(path))


def own_rules(who: Invoker) -> tuple[RuleFile | None, str]:
    text, warnings = own_text(who.filters, who)
    return None if text is None else parse_rules(text, str(who.filters)), "".join(warnings)


def test_files_that_cannot_be_read(tmp_path: Path, me: Invoker) -> None:
    with pytest.raises(TracellocError, match="cannot be read: No such file"):
        read_rules(tmp_path / "none")
    with pytest.raises(TracellocError, match="cannot be read: Is a directory"):
        read_rules(tmp_path)
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(TracellocError, match="cannot be read: it is not UTF-8"):
        read_rules(tmp_path / "latin")
    os.mkfifo(me.filters, 0o600)
    assert own_rules(me)[1].endswith("is not used: it is not a regular file")
    me.filters.unlink()
    write(me.filters, "#" * ((4 << 20) + 1))
    assert own_rules(me)[1].endswith("is not used: it is larger than 4 MiB")
    me.filters.write_bytes(b"\xff")
    assert own_rules(me)[1].endswith("is not used: it is not UTF-8")


def test_the_own_file_is_read_and_checked(me: Invoker) -> None:
    assert own_rules(me) == (None, "")
    assert own_rules(Invoker(me.uid, me.gid, me.config / "nowhere", me.cache)) == (None, "")
    write(me.filters, '[[rule]]\npattern = "x"\n')
    rules, warning = own_rules(me)
    assert (rules.rules, warning) == ((Rule("x"),), "")
    write(me.filters, "\n[[rule]]\n")
    with pytest.raises(UsageError, match=f"^{me.filters}:2: rule 1: pattern is missing$"):
        own_rules(me)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_could_write(me: Invoker, mode: int) -> None:
    write(me.filters, "nonsense", mode)
    reason = "other users can write it (chmod go-w makes it yours)"
    assert own_rules(me) == (None, f"{me.filters} is not used: {reason}")
    assert load_filters(who=me)[1] == [f"{me.filters} is not used: {reason}"]
    with pytest.raises(TracellocError, match="could not be written: other users can write it"):
        append_rules(me, [Rule("x")])
    assert me.filters.read_text() == "nonsense"


def test_a_directory_that_others_could_write(me: Invoker, tmp_path: Path) -> None:
    write(me.filters, "nonsense")
    me.filters.parent.chmod(0o777)
    assert "other users can write its directory" in own_rules(me)[1]
    me.filters.parent.chmod(0o700)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    me.filters.unlink()
    me.filters.symlink_to(write(open_to_all / "f.toml", "nonsense"))
    assert "other users can write its directory" in own_rules(me)[1]


@needs_root
def test_a_file_of_another_user(me: Invoker) -> None:
    os.chown(write(me.filters, ""), NOBODY, NOBODY)
    assert own_rules(me)[1].endswith("is not used: it belongs to another user")


def test_appending(me: Invoker, tmp_path: Path) -> None:
    old = "# my own rules\r\n[groups] # all on\nqt = true\n\n[[rule]]\npattern='x' # why not"
    write(me.filters, old, 0o640)
    rules = [Rule("a", Match.REGEX), Rule("b", action=Action.COLLAPSE, label="B", group="mine")]
    assert append_rules(me, rules) == me.filters
    append_rules(me, [Rule("c")])
    assert me.filters.read_bytes().decode().startswith(old + "\n\n[[rule]]\n")
    assert parse_rules(me.filters.read_text(), "f").rules == (Rule("x"), *rules, Rule("c"))
    assert stat.S_IMODE(me.filters.stat().st_mode) == 0o640
    assert list(me.filters.parent.iterdir()) == [me.filters]
    me = Invoker(os.geteuid(), os.getegid(), tmp_path / "a" / "b", tmp_path)
    append_rules(me, [Rule("x")])
    assert me.filters.read_text() == (
        '[[rule]]\npattern = "x"\nmatch = "prefix"\non = "symbol"\naction = "hide"\n'
    )
    assert stat.S_IMODE(me.filters.stat().st_mode) == 0o600
    assert stat.S_IMODE(me.filters.parent.stat().st_mode) == 0o700


def test_appending_leaves_a_link_one(me: Invoker, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles"
    kept.mkdir(mode=0o700)
    me.filters.symlink_to(write(kept / "f.toml", "# kept\n"))
    append_rules(me, [Rule("x")])
    assert me.filters.is_symlink()
    assert (kept / "f.toml").read_text().startswith("# kept\n\n[[rule]]\n")


def test_appending_to_what_cannot_be_appended_to(me: Invoker) -> None:
    for old in ("rule = [{pattern = 'x'}]\n", "[[rule"):
        write(me.filters, old)
        with pytest.raises(UsageError, match="is not TOML"):
            append_rules(me, [Rule("x")])
        assert me.filters.read_text() == old
    assert list(me.filters.parent.iterdir()) == [me.filters]


@needs_root
def test_under_sudo_files_are_the_callers(tmp_path: Path) -> None:
    """Written as the user, not as root: what is made is the user's, what isn't stays so."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    above = [p for p in tmp_path.parents if p.name.startswith(("pytest-", "popen-"))]
    for folder in (home, tmp_path, *above):
        folder.chmod(0o755)
    who = Invoker(NOBODY, NOBODY, home / ".config", home / ".cache")
    append_rules(who, [Rule("x")])
    for path in (who.config, who.filters.parent, who.filters):
        assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
    rules, _ = own_rules(who)
    assert rules is not None
    # This thread is root again, and the others always were.
    assert write(tmp_path / "roots", "# root's\n", 0o600).stat().st_uid == 0
    who.filters.unlink()
    who.filters.symlink_to(tmp_path / "roots")
    assert own_rules(who) == (None, f"{who.filters} is not used: Permission denied")
    with pytest.raises(TracellocError, match="could not be written: Permission denied"):
        append_rules(who, [Rule("x")])
    assert (tmp_path / "roots").read_text() == "# root's\n"


@needs_root
def test_other_threads_keep_their_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    who = Invoker(NOBODY, NOBODY, tmp_path, tmp_path)
    ready = threading.Event()
    asked = threading.Event()

    def standing() -> None:
        ready.wait(10)
        (tmp_path / "stood").touch()
        asked.set()

    thread = threading.Thread(target=standing)
    thread.start()
    with rights_of(who):
        ready.set()
        assert asked.wait(10)
        with pytest.raises(PermissionError):
            (tmp_path / "mine").touch()
    thread.join()
    assert (tmp_path / "stood").stat().st_uid == 0
