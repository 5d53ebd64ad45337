"""Compiles the probes by bcc: a module, and a program of its own.

bcc loads LLVM, 150 MiB that are not needed after compiling. Therefore
``precompiled`` runs this file in a child process, where it imports no tracelloc module.

bcc is part of the distribution (python3-bpfcc on Debian and Ubuntu), never of PyPI,
where that name belongs to a crystal-lattice package.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import sys
from typing import Any, Final

from tracelloc.dataclass import asdict, dataclass

INSTALL_HINT: Final = (
    "install the distribution's package: apt install python3-bpfcc (Debian, Ubuntu), "
    "dnf install python3-bcc (Fedora, RHEL); only the distribution's own Python sees it, and "
    "environments made by /usr/bin/python3 -m venv --system-site-packages"
)
INSTRUCTION_BYTES: Final = 8
# Operation (BPF_LD | BPF_IMM | BPF_DW) and source (BPF_PSEUDO_MAP_FD) of an instruction that loads
# the address of a map: the immediate operand identifies the map.
LOAD_MAP: Final = (0x18, 1)


@dataclass(frozen=True, slots=True)
class MapSpec:
    """The specification of a BPF map to create."""

    name: str
    kind: int  # enum bpf_map_type, include/uapi/linux/bpf.h
    key_bytes: int
    value_bytes: int
    max_entries: int
    flags: int  # BPF_F_ flags of map creation


@dataclass(frozen=True, slots=True)
class CompiledProbes:
    """BPF programs as instructions, and the maps that they use."""

    maps: tuple[MapSpec, ...]
    # Instructions by program name. One that refers to a map has its index in `maps` as operand.
    programs: dict[str, bytes]

    def to_json(self) -> dict[str, Any]:
        """Encodes the programs and maps for the cache, and for the child's answer."""
        code = {name: base64.b64encode(code).decode() for name, code in self.programs.items()}
        return {"maps": [asdict(spec) for spec in self.maps], "programs": code}

    @classmethod
    def from_json(cls, content: Any) -> CompiledProbes:
        """Decodes output of ``to_json``. Raises ValueError, KeyError or TypeError if malformed."""
        return cls(
            tuple(MapSpec(**spec) for spec in content["maps"]),
            {name: base64.b64decode(code) for name, code in content["programs"].items()},
        )


class _BccError(Exception):
    """Raised if bcc can't be used; the message says why."""


def import_bcc() -> Any:
    """Imports the distribution's bcc module. Raises an exception that explains the problem."""
    try:
        bcc = importlib.import_module("bcc")
    except ImportError as error:
        is_there = error.name not in ("bcc", None)
        why = f"bcc cannot be imported: {error}" if is_there else "bcc is not installed"
        raise _BccError(why, INSTALL_HINT) from error
    except OSError as error:
        raise _BccError(f"bcc cannot be loaded: {error}", INSTALL_HINT) from error
    if not hasattr(bcc, "BPF"):
        raise _BccError(
            "the installed bcc is PyPI's crystal-lattice package, not the BPF compiler",
            f"pip uninstall bcc, then {INSTALL_HINT}",
        )
    return bcc


def compile_here(source: str, cflags: list[str], kernel_source: str) -> CompiledProbes:
    """Compiles with bcc in this process. Raises whatever bcc raises."""
    bcc = import_bcc()
    os.environ["BCC_KERNEL_SOURCE"] = kernel_source
    module = bcc.BPF(text=source.encode(), cflags=cflags)
    lib, handle = bcc.lib, module.module
    lib.bpf_table_name.restype = ctypes.c_char_p
    lib.bpf_table_name.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    maps, places = [], {}
    for number in range(lib.bpf_num_tables(handle)):
        # bcc has already created the maps; the instructions refer to them by descriptor.
        name = lib.bpf_table_name(handle, number)
        places[lib.bpf_table_fd_id(handle, number)] = number
        facts = ("type", "key_size", "leaf_size", "max_entries", "flags")
        numbers = (getattr(lib, f"bpf_table_{fact}_id")(handle, number) for fact in facts)
        maps.append(MapSpec(name.decode(), *numbers))
    programs = {}
    for number in range(lib.bpf_num_functions(handle)):
        name = lib.bpf_function_name(handle, number)
        programs[name.decode()] = with_maps(module.dump_func(name), places)
    return CompiledProbes(tuple(maps), programs)


def with_maps(code: bytes, places: dict[int, int]) -> bytes:
    """Returns instructions with maps renumbered: ``places`` maps old numbers to new ones."""
    changed = bytearray(code)
    for at in range(0, len(code), INSTRUCTION_BYTES):
        if (code[at], code[at + 1] >> 4) == LOAD_MAP:
            old = int.from_bytes(code[at + 4 : at + 8], "little")
            changed[at + 4 : at + 8] = places[old].to_bytes(4, "little")
    return bytes(changed)


def main() -> int:
    """Compiles for a parent: reads a request from standard input, answers on standard output."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # libbcc may print
    wish = json.load(sys.stdin)
    try:
        answer = compile_here(wish["source"], wish["cflags"], wish["kernel"]).to_json()
    except _BccError as error:
        message, hint = error.args
        answer = {"error": message, "hint": hint}
    except Exception as error:  # noqa: BLE001 - bcc raises no narrower one
        answer = {"error": f"bcc could not compile the probes: {error}"}
    with os.fdopen(answer_fd, "w") as out:
        json.dump(answer, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
