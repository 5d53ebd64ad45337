"""Programs are loaded, whatever comes in between."""

import ctypes
import errno
import os

import pytest

from tracelloc.record.kernel import programs
from tracelloc.system import syscalls


def test_a_signal_while_the_verifier_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops tracelloc, and it continues: bpf(2) fails with EAGAIN."""
    interruptions = iter([errno.EAGAIN] * 3)

    def bpf(_command: int, _attributes: ctypes.Structure) -> int:
        code = next(interruptions, 0)
        if code:
            raise OSError(code, os.strerror(code))
        return 7

    monkeypatch.setattr(syscalls, "bpf", bpf)
    assert programs._load(programs._LoadAttr()) == 7
