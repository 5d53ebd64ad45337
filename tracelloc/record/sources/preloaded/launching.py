"""Having a program that we start preload our library, so that it does not notice.

The library takes what is added to the environment out again, before any code of the program runs
(``probes/lane/exec.h``). So nothing is added where it is not loaded.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Sequence
from typing import Final

_MARK: Final = b"TRACELLOC_LAUNCH=1"
"""Right before our ``LD_PRELOAD``, at the end: says that both are to be taken out."""
_VARIABLE: Final = b"LD_PRELOAD="
_HIDDEN: Final = b"\1"
"""First byte of the program's own ``LD_PRELOAD`` meanwhile: loaders differ in which one counts."""
_SEPARATORS: Final = b": "
_MOST_PATH_BYTES: Final = 511
_HEAD_BYTES: Final = 256
_ELF_X86_64: Final = b"\x7fELF\x02\x01"
_MACHINE: Final = 62
_PT_INTERP: Final = 3
_NAMES_BYTES: Final = 16 << 20
_FIRST: Final = re.compile(rb"\0lib(clang_rt\.)?(a|hwa|l|t)san[-.]|LeakSanitizer")
"""Sanitizers end a program in which anything comes before them; those that are linked statically
have a malloc that comes first."""
_HEADER: Final = struct.Struct("<16xHHIQQQIHHH")
"""ELF64 header up to e_phnum (System V gABI, chapter 4)."""


def with_preloaded(environment: Sequence[bytes], library: bytes) -> list[bytes]:
    """The environment for a program that is to preload a library, before its own (ld.so(8))."""
    own = [e for e in environment if e.startswith(_VARIABLE)]
    # Of several, glibc's loader takes the last one.
    value = b":".join([library, *(e.removeprefix(_VARIABLE) for e in own[-1:])])
    kept = [_HIDDEN + e[1:] if e in own else e for e in environment]
    return [*kept, _MARK, _VARIABLE + value]


def can_be_read(library: bytes) -> bool:
    """Whether loaders can map it: they complain on standard error otherwise."""
    if len(library) > _MOST_PATH_BYTES or set(library) & set(_SEPARATORS):
        return False
    try:
        return os.access(library, os.R_OK) and not os.statvfs(library).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def preloads(program: bytes) -> bool:
    """Whether a program, or the interpreter of a script, has a loader that takes the library."""
    try:
        for _ in range(2):
            # Whatever it is, a pipe as well.
            with open(program, "rb", 0, opener=_opened_at_once) as file:
                head = file.read(_HEAD_BYTES) or b""
                if not head.startswith(b"#!"):
                    return _is_dynamic(head, file.fileno())
            program = (head[2:].split(b"\n", 1)[0].split() or [b""])[0]
    except OSError:
        pass
    return False


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _is_dynamic(head: bytes, fd: int) -> bool:
    """Whether an executable for this machine has a loader, and gains no rights by its file."""
    if not head.startswith(_ELF_X86_64) or len(head) < _HEADER.size:
        return False
    _, machine, _, _, at, _, _, _, size, count = _HEADER.unpack_from(head)
    if machine != _MACHINE or _gains_rights(fd):
        return False
    headers = os.pread(fd, size * count, at)
    kinds = (headers[n : n + 4] for n in range(0, len(headers), max(size, 4)))
    if not any(int.from_bytes(kind, "little") == _PT_INTERP for kind in kinds):
        return False
    # Names of needed libraries lie in front of the code.
    names = os.pread(fd, _NAMES_BYTES, 0)
    return _FIRST.search(names) is None


def _gains_rights(fd: int) -> bool:
    """Whether an executable is setuid or setgid, or has capabilities: then loaders are careful."""
    if os.fstat(fd).st_mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    try:
        return bool(os.getxattr(fd, "security.capability"))
    except OSError:
        return False
