"""Makes programs that tracelloc starts preload the library, without the program noticing.

The library removes tracelloc's additions to the environment before any code of the program runs
(``probes/preloaded/exec.h``). So nothing may be added if the library is not loaded.
"""

import atexit
import os
import re
import shutil
import stat
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracelloc.architecture import native
from tracelloc.record.process import ptrace
from tracelloc.system.syscalls import opened_at_once

# Entry right before tracelloc's `LD_PRELOAD`, at the end: the library removes both.
_MARK: Final = b"TRACELLOC_LAUNCH=1"
_VARIABLE: Final = b"LD_PRELOAD="
# First byte of the program's hidden `LD_PRELOAD`: loaders differ in which entry they use.
_HIDDEN: Final = b"\1"
_SEPARATORS: Final = b": "
_MOST_PATH_BYTES: Final = 511
_HEAD_BYTES: Final = 256
_ELF64: Final = b"\x7fELF\x02\x01"
_PT_INTERP: Final = 3
_NAMES_BYTES: Final = 16 << 20
# Sanitizers end a program that preloads a library before them; statically linked ones define a
# malloc that takes precedence.
_FIRST: Final = re.compile(rb"\0lib(clang_rt\.)?(a|hwa|l|t)san[-.]|LeakSanitizer")
# ELF64 header up to e_phnum (System V gABI, chapter 4).
_HEADER: Final = struct.Struct("<16xHHIQQQIHHH")
_WORD: Final = struct.Struct("<Q")


def with_preloaded(environment: Sequence[bytes], library: bytes) -> list[bytes]:
    """Returns an environment that preloads a library before the program's own (ld.so(8))."""
    own = [e for e in environment if e.startswith(_VARIABLE)]
    # If there are several, glibc's loader uses the last one.
    value = b":".join([library, *(e.removeprefix(_VARIABLE) for e in own[-1:])])
    kept = [_HIDDEN + e[1:] if e in own else e for e in environment]
    return [*kept, _MARK, _VARIABLE + value]


def path_for_loaders(library: Path) -> Path:
    """Returns the path of a library for ``LD_PRELOAD``, where it can't have spaces and colons.

    If the library's path has any, returns that of a link, which is removed when tracelloc ends.
    """
    if not set(bytes(library)) & set(_SEPARATORS):
        return library
    try:
        directory = Path(tempfile.mkdtemp(prefix="tracelloc-"))
    except OSError:
        return library
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)  # the program may belong to another user
    link = directory / library.name
    link.symlink_to(library)
    return link


def can_be_read(library: bytes) -> bool:
    """Returns whether loaders can map a library; otherwise they complain on standard error."""
    if len(library) > _MOST_PATH_BYTES or set(library) & set(_SEPARATORS):
        return False
    try:
        return os.access(library, os.R_OK) and not os.statvfs(library).f_flag & os.ST_NOEXEC
    except OSError:
        return False


def preloads(program: bytes) -> bool:
    """Returns whether the loader of a program, or a script's interpreter, preloads libraries."""
    try:
        for _ in range(2):
            # The file may be anything, even a pipe.
            with open(program, "rb", 0, opener=opened_at_once) as file:
                head = file.read(_HEAD_BYTES) or b""
                if not head.startswith(b"#!"):
                    return _is_dynamic(head, file.fileno())
            program = (head[2:].split(b"\n", 1)[0].split() or [b""])[0]
    except OSError:
        pass
    return False


def _is_dynamic(head: bytes, fd: int) -> bool:
    """Returns whether a loader of this machine loads an executable, which gains no privileges."""
    if not head.startswith(_ELF64) or len(head) < _HEADER.size:
        return False
    _, machine, _, _, at, _, _, _, size, count = _HEADER.unpack_from(head)
    if machine != native().elf_machine or gains_rights(fd):
        return False
    headers = os.pread(fd, size * count, at)
    kinds = (headers[n : n + 4] for n in range(0, len(headers), max(size, 4)))
    if not any(int.from_bytes(kind, "little") == _PT_INTERP for kind in kinds):
        return False
    # The names of needed libraries precede the code.
    names = os.pread(fd, _NAMES_BYTES, 0)
    return _FIRST.search(names) is None


def gains_rights(program: int | Path) -> bool:
    """Returns whether executing a file grants rights; its loader preloads nothing then."""
    try:
        is_set = os.stat(program).st_mode & (stat.S_ISUID | stat.S_ISGID)
        return bool(is_set or os.getxattr(program, "security.capability"))
    except OSError:
        return False


_STACK_BYTES: Final = 8 << 20  # Most bytes of arguments and environment that are read


def preload_into(pid: int, library: bytes) -> None:
    """Makes a process preload a library, as ``with_preloaded`` does, by changing its stack.

    It is stopped by ptrace(2) before its program's first instruction. Nothing is changed if the
    program can't load the library, or does anyway. Raises OSError.
    """
    if not (can_be_read(b"/proc/%d/root%s" % (pid, library)) and preloads(b"/proc/%d/exe" % pid)):
        return
    path = Path(os.fsdecode(library))
    modes = [path.stat().st_mode >> 2, *(each.stat().st_mode for each in path.parents)]
    if os.stat(f"/proc/{pid}").st_uid != os.geteuid() and not all(mode & 1 for mode in modes):
        return  # its user may not read it
    registers = ptrace.registers(pid)
    start = registers.stack_pointer
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        stack = os.pread(memory.fileno(), _STACK_BYTES, start)
        words = [each for (each,) in _WORD.iter_unpack(stack[: len(stack) & ~7])]
        first = 2 + words[0]  # behind the arguments' number, the arguments, and a zero
        last = words.index(0, first)
        # Behind a zero, the auxiliary vector: pairs, the last one of type 0.
        end = next(at for at in range(last + 1, len(words), 2) if not words[at]) + 2
        places = (at - start for at in words[first:last])
        entries = [stack[at : stack.index(b"\0", at)] for at in places]
        if _MARK in entries:
            return
        changed = with_preloaded(entries, library)
        strings = b"\0".join(changed[-2:]) + b"\0"
        top = start + 8 * end
        start = (top - 8 * (end + 2) - len(strings)) & -16
        at = start + 8 * (end + 2)
        added = [at, at + len(_MARK) + 1]
        vector = [*words[:last], *added, *words[last:end]]
        os.pwrite(memory.fileno(), struct.pack(f"<{len(vector)}Q", *vector) + strings, start)
        for address, entry in zip(words[first:last], changed, strict=False):
            if entry.startswith(_HIDDEN):
                os.pwrite(memory.fileno(), _HIDDEN, address)
    registers.stack_pointer = start
    ptrace.set_registers(pid, registers)
