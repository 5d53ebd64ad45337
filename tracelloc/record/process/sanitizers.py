"""Detects LeakSanitizer in a program: it fails at the program's end under ptrace(2)."""

import functools
import re
from contextlib import suppress
from typing import Final

from tracelloc.model.codefiles import FileId, base_name
from tracelloc.record.process.space import AddressSpace
from tracelloc.system.syscalls import opened_at_once

UNFOLLOWED: Final = "process {pid} can't be followed, as LeakSanitizer fails under ptrace"

# Names of GCC's and clang's libraries.
_LIBRARY: Final = re.compile(r"lib(clang_rt\.)?(hw)?(a|l)san[-._].*")
_FUNCTIONS: Final = "__lsan_init", "__asan_init", "__hwasan_init"
# Text in its messages; a statically linked copy may have no function names.
_TEXT: Final = b"LeakSanitizer"
_SEARCHED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20


def has_leak_sanitizer(space: AddressSpace) -> bool:
    """Returns whether a process has LeakSanitizer, as a library or linked into its program."""
    for module in space.modules:
        if _LIBRARY.fullmatch(base_name(module.path)):
            return True
        if module.path == space.executable and (
            module.elf.find_functions(_FUNCTIONS) or _has_text(module.open_path, module.file_id)
        ):
            return True
    return False


@functools.lru_cache(maxsize=1 << 10)
def _has_text(path: str, _file_id: FileId) -> bool:
    with suppress(OSError), open(path, "rb", 0, opener=opened_at_once) as file:
        before = b""
        while file.tell() < _SEARCHED_BYTES and (piece := file.read(_PIECE_BYTES)):
            if _TEXT in before + piece:
                return True
            before = piece[-len(_TEXT) :]
    return False
