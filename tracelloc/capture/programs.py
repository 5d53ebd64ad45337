"""BPF maps made and programs loaded, by bpf(2) itself (include/uapi/linux/bpf.h)."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from tracelloc import syscalls
from tracelloc.capture.compiler import CompiledProbes, MapSpec, with_maps
from tracelloc.errors import PrivilegeError, UnsupportedError

KPROBE: Final = 2
"""BPF_PROG_TYPE_KPROBE: uprobes, too."""
RAW_TRACEPOINT: Final = 17
"""BPF_PROG_TYPE_RAW_TRACEPOINT."""

_PRIVATE_STACK: Final = re.compile(rb"\x65\x4c\x03[\x0c\x0d]", re.DOTALL)
"""add %gs:this_cpu_off,%r9 (emit_private_frame_ptr in arch/x86/net/bpf_jit_comp.c)."""
_CODE_BYTES: Final = 1 << 18
"""Native code of a program that is looked at."""
_INFO_BYTES: Final = 232
_LICENSE: Final = b"Dual MIT/GPL"
_LOG_BYTES: Final = 16 << 20
_NAME_BYTES: Final = 16


class _MapAttr(ctypes.Structure):
    """``union bpf_attr``, map_create up to map_name."""

    _fields_ = (
        ("map_type", ctypes.c_uint32),
        ("key_size", ctypes.c_uint32),
        ("value_size", ctypes.c_uint32),
        ("max_entries", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("numa_node", ctypes.c_uint32),
        ("map_name", ctypes.c_char * _NAME_BYTES),
    )


class _LoadAttr(ctypes.Structure):
    """``union bpf_attr``, prog_load up to expected_attach_type."""

    _fields_ = (
        ("prog_type", ctypes.c_uint32),
        ("insn_cnt", ctypes.c_uint32),
        ("insns", ctypes.c_uint64),
        ("license", ctypes.c_uint64),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_uint64),
        ("kern_version", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_name", ctypes.c_char * _NAME_BYTES),
        ("prog_ifindex", ctypes.c_uint32),
        ("expected_attach_type", ctypes.c_uint32),
    )


class _TracepointAttr(ctypes.Structure):
    """``union bpf_attr``, raw_tracepoint."""

    _fields_ = (("name", ctypes.c_uint64), ("prog_fd", ctypes.c_uint32))


class _InfoAttr(ctypes.Structure):
    """``union bpf_attr``, obj_get_info_by_fd."""

    _fields_ = (
        ("bpf_fd", ctypes.c_uint32),
        ("info_len", ctypes.c_uint32),
        ("info", ctypes.c_uint64),
    )


class _KeyAttr(ctypes.Structure):
    """``union bpf_attr``, map_*_elem and map_get_next_key."""

    _fields_ = (
        ("map_fd", ctypes.c_uint64),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class Programs:
    """The maps, and those of the programs that are loaded, until ``close``."""

    def __init__(self, probes: CompiledProbes, *, debug: bool = False) -> None:
        """Makes all maps. ``debug``: prints the verifier's log of what it refuses.

        Raises UnsupportedError or PrivilegeError.
        """
        self._probes = probes
        self._debug = debug
        self._maps: dict[str, int] = {}
        self._loaded: dict[str, int] = {}
        try:
            for spec in probes.maps:
                self._maps[spec.name] = _create(spec)
        except BaseException:
            self.close()
            raise

    def map_fd(self, name: str) -> int:
        """The descriptor of a map."""
        return self._maps[name]

    @property
    def loaded(self) -> dict[str, int]:
        """The descriptors of all loaded programs, by name."""
        return dict(self._loaded)

    def load(self, name: str, kind: int, attach_type: int = 0) -> int:
        """Loads a program, for this expected_attach_type, and returns its descriptor.

        One that was loaded under the name before is dropped; what it is attached to keeps
        it. Raises UnsupportedError or PrivilegeError.
        """
        places = dict(enumerate(self._maps.values()))
        code = with_maps(self._probes.programs[name], places)
        attributes = _LoadAttr(
            prog_type=kind,
            insn_cnt=len(code) // 8,
            insns=_address(code),
            license=_address(_LICENSE),
            prog_name=name.encode()[: _NAME_BYTES - 1],
            expected_attach_type=attach_type,
        )
        try:
            descriptor = syscalls.bpf(syscalls.BPF_PROG_LOAD, attributes)
        except OSError as error:
            said = self._refusal(attributes)
            what = f"the kernel refused to load the probes: {error.strerror}"
            if error.errno == errno.EPERM:
                raise PrivilegeError(what, hint="run tracelloc as root (sudo)") from error
            hint = "run again with --debug to see the verifier's log"
            raise UnsupportedError(f"{what} ({name}: {said})", hint=hint) from error
        self.drop(name)
        self._loaded[name] = descriptor
        if has_private_stack(descriptor):
            raise UnsupportedError(
                f"this kernel gives probe {name!r} a stack that other threads' probes overwrite",
                hint="tracing would crash the machine; please report this kernel's version",
            )
        return descriptor

    def _refusal(self, attributes: _LoadAttr) -> str:
        """What the verifier says last of a program that was refused."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        attributes.log_level, attributes.log_size = 1, _LOG_BYTES
        attributes.log_buf = ctypes.addressof(log)
        with suppress(OSError):
            os.close(syscalls.bpf(syscalls.BPF_PROG_LOAD, attributes))
        text = log.value.decode(errors="replace")
        if self._debug:
            print(text, file=sys.stderr)
        lines = [line for line in text.splitlines() if not line.startswith("processed ")]
        return lines[-1] if lines else "no reason given"

    def drop(self, name: str) -> None:
        """Unloads a program, if it is loaded, as soon as nothing is attached to it."""
        descriptor = self._loaded.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def attach_tracepoint(self, name: str, tracepoint: str) -> int:
        """A loaded program at a raw tracepoint, until the descriptor is closed.

        Raises UnsupportedError.
        """
        where = tracepoint.encode()
        attributes = _TracepointAttr(name=_address(where), prog_fd=self._loaded[name])
        try:
            return syscalls.bpf(syscalls.BPF_RAW_TRACEPOINT_OPEN, attributes)
        except OSError as error:
            raise UnsupportedError(
                f"the kernel refused to watch {tracepoint}: {error.strerror}"
            ) from error

    def close(self) -> None:
        """Unloads the programs and frees the maps."""
        for descriptor in (*self._loaded.values(), *self._maps.values()):
            os.close(descriptor)
        self._loaded.clear()
        self._maps.clear()


def has_private_stack(program_fd: int) -> bool:
    """Whether the kernel's native code of a program has a stack per processor.

    That is what ``probes/preemption.h`` prevents on the kernels that are known. False where
    the kernel does not show its code.
    """
    code = ctypes.create_string_buffer(_CODE_BYTES)
    info = ctypes.create_string_buffer(_INFO_BYTES)
    # struct bpf_prog_info: jited_prog_len, jited_prog_insns
    struct.pack_into("<I4xQ", info, 16, _CODE_BYTES, ctypes.addressof(code))
    attributes = _InfoAttr(program_fd, _INFO_BYTES, ctypes.addressof(info))
    syscalls.bpf(syscalls.BPF_OBJ_GET_INFO_BY_FD, attributes)
    used, address = struct.unpack_from("<I4xQ", info, 16)
    return bool(address) and _PRIVATE_STACK.search(code, 0, min(used, _CODE_BYTES)) is not None


def set_entry(map_fd: int, key: ctypes.c_uint32, value: ctypes.c_uint32) -> None:
    """Puts an entry into a hash map. Raises OSError."""
    attributes = _KeyAttr(map_fd, ctypes.addressof(key), ctypes.addressof(value))
    syscalls.bpf(syscalls.BPF_MAP_UPDATE_ELEM, attributes)


def delete_entry(map_fd: int, key: ctypes.c_uint32 | ctypes.c_uint64) -> None:
    """Takes an entry out of a hash map, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        syscalls.bpf(syscalls.BPF_MAP_DELETE_ELEM, _KeyAttr(map_fd, ctypes.addressof(key)))


def keys_of(map_fd: int) -> Iterator[int]:
    """The 64-bit keys of a hash map; those that come or go meanwhile may be missing."""
    key, following = ctypes.c_uint64(), ctypes.c_uint64()
    attributes = _KeyAttr(map_fd, 0, ctypes.addressof(following))
    with suppress(FileNotFoundError):
        while True:
            syscalls.bpf(syscalls.BPF_MAP_GET_NEXT_KEY, attributes)
            yield following.value
            key.value = following.value
            attributes.key = ctypes.addressof(key)


def _create(spec: MapSpec) -> int:
    attributes = _MapAttr(
        map_type=spec.kind,
        key_size=spec.key_bytes,
        value_size=spec.value_bytes,
        max_entries=spec.max_entries,
        map_flags=spec.flags,
        map_name=spec.name.encode()[: _NAME_BYTES - 1],
    )
    try:
        return syscalls.bpf(syscalls.BPF_MAP_CREATE, attributes)
    except OSError as error:
        raise UnsupportedError(
            f"the kernel could not make map {spec.name!r}: {error.strerror}"
        ) from error


def _address(content: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0
