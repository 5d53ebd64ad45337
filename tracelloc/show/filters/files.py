"""Files of filter rules: the shipped file, the user's own, and those of ``--filters``.

The user's file is ``$XDG_CONFIG_HOME/tracelloc/filters.toml``, by default in ``~/.config``.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from tracelloc.errors import TracellocError
from tracelloc.show.filters import Filters
from tracelloc.show.filters.rules import Rule, RuleFile, parse_rules
from tracelloc.system.invoker import Invoker, invoker, rights_of, trusted_bytes
from tracelloc.system.safefiles.resolve import directory_made
from tracelloc.system.safefiles.writing import replace_file
from tracelloc.text import printable

_LARGEST_FILE_BYTES: Final = 4 << 20


def shipped_rules() -> RuleFile:
    """Returns the rules of the filters.toml shipped with tracelloc."""
    text = (files("tracelloc") / "filters.toml").read_text(encoding="utf-8")
    return parse_rules(text, "filters.toml", trusted=True)


def given_text(path: Path, what: str) -> str:
    """Reads a file that an option names; errors call it ``what``. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TracellocError(f"{what} file {path} cannot be read: {_reason(error)}") from error


def own_text(path: Path, who: Invoker) -> tuple[str | None, list[str]]:
    """Reads a user's own file, if any. Returns its text, and a warning if it is not usable."""
    try:
        with rights_of(who):
            return trusted_bytes(path, who, _LARGEST_FILE_BYTES).decode(), []
    except FileNotFoundError:
        return None, []
    except (OSError, UnicodeDecodeError) as error:
        return None, [f"{printable(str(path))} is not used: {_reason(error)}"]


def load_filters(
    paths: Iterable[Path] = (), switches: Iterable[tuple[str, bool]] = (), *, standing: bool = True,
    who: Invoker | None = None,
) -> tuple[Filters, list[str]]:  # fmt: skip
    """Loads filters, and warnings. Without ``standing``, only the rules of ``paths`` apply."""
    layers: list[RuleFile] = []
    warnings: list[str] = []
    if standing:
        layers.append(shipped_rules())
        who = who or invoker()
        own, warnings = own_text(who.filters, who)
        if own is not None:
            layers.append(parse_rules(own, str(who.filters)))
    layers.extend(parse_rules(given_text(path, "filters"), str(path)) for path in paths)
    filters = Filters(layers)
    for group, enabled in switches:
        filters.set_group(group, enabled)
    return filters, warnings


def append_rules(who: Invoker, rules: Sequence[Rule]) -> Path:
    """Appends rules to the user's own file, which is unchanged if it raises TracellocError."""
    path = who.filters
    addition = "\n".join(rule.to_toml() for rule in rules)
    try:
        with directory_made(path.parent, who.user), rights_of(who):
            try:
                old = trusted_bytes(who.filters, who, _LARGEST_FILE_BYTES).decode()
            except FileNotFoundError:
                old = ""
            gap = "" if not old else "\n" if old.endswith("\n") else "\n\n"
            text = old + gap + addition
            parse_rules(text, str(path))
            replace_file(path, [text.encode()], [who.user])
    except (OSError, UnicodeDecodeError) as error:
        where = printable(str(path))
        raise TracellocError(f"{where} could not be written: {_reason(error)}") from error
    return path


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"
