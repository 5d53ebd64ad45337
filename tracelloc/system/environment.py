"""Environment variables of programs that tracelloc starts on a user's behalf."""

import os
import pwd
from collections.abc import Iterable, Mapping

from tracelloc.startup import OWN_PREFIX
from tracelloc.system.invoker import Invoker


def environment_of(who: Invoker, environment: Iterable[bytes]) -> list[bytes]:
    """Returns an environment for a user's program, without tracelloc's and sudo's variables."""
    kept = [e for e in environment if not e.startswith(OWN_PREFIX.encode())]
    if who.uid == os.geteuid():
        return kept
    entry = pwd.getpwuid(who.uid)
    user = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    user["SHELL"] = entry.pw_shell
    dropped = tuple(f"{name}=".encode() for name in user)
    kept = [e for e in kept if not e.startswith((b"SUDO_", *dropped))]
    return kept + [os.fsencode(f"{name}={value}") for name, value in user.items()]


def with_variables(environment: Iterable[bytes], variables: Mapping[str, str]) -> list[bytes]:
    """Returns the environment with ``variables`` set in place of variables of equal names."""
    names = tuple(f"{name}=".encode() for name in variables)
    kept = [entry for entry in environment if not entry.startswith(names)] if names else environment
    return [*kept, *(os.fsencode(f"{name}={value}") for name, value in variables.items())]
