"""Loads BPF programs and their maps directly with bpf(2) (include/uapi/linux/bpf.h)."""

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tracelloc.architecture import native
from tracelloc.errors import PrivilegeError, UnsupportedError, privilege_hint, scarcity
from tracelloc.record.kernel.bpfmaps import NAME_BYTES, create_map, set_entry
from tracelloc.record.kernel.btf import with_iterators
from tracelloc.record.kernel.compiler import CompiledProbes, with_maps
from tracelloc.system import syscalls
from tracelloc.system.syscalls import U32, U64, closed_after, layout


class ProgramInfo(ctypes.Structure):
    """``struct bpf_prog_info`` up to verified_insns (Linux 5.16), include/uapi/linux/bpf.h."""

    run_time_ns: int  # Total time of the program's runs while `statistics` were on
    run_cnt: int  # Number of the program's runs while `statistics` were on
    # Runs that the kernel skipped, as another was active on that processor. Always counted.
    recursion_misses: int
    # Instructions that the verifier processed before it accepted the program; at most 10**6.
    verified_insns: int
    jited_prog_len: int  # Bytes of native code
    # Address to which the native code was written; 0 if the kernel does not show it.
    jited_prog_insns: int

    _fields_ = layout(
        (ctypes.c_uint8 * 16, "head"),
        (U32, "jited_prog_len xlated_prog_len"),
        (U64, "jited_prog_insns"),
        (ctypes.c_uint8 * 160, "others"),
        (U64, "run_time_ns run_cnt recursion_misses"),
        (U32, "verified_insns"),
    )


class _InfoAttr(ctypes.Structure):
    _fields_ = layout((U32, "bpf_fd info_len"), (U64, "info"))


def program_info(program_fd: int, native_code: ctypes.Array[Any] | None = None) -> ProgramInfo:
    """Returns a program's information; ``native_code`` gets its code. Raises OSError."""
    info = ProgramInfo()
    if native_code is not None:
        info.jited_prog_len = len(native_code)
        info.jited_prog_insns = ctypes.addressof(native_code)
    attributes = _InfoAttr(program_fd, ctypes.sizeof(info), ctypes.addressof(info))
    syscalls.bpf(syscalls.BPF_OBJ_GET_INFO_BY_FD, attributes)
    return info


@contextmanager
def statistics() -> Iterator[None]:
    """A context in which the kernel adds up BPF programs' run times. Raises OSError."""
    with closed_after(syscalls.bpf(syscalls.BPF_ENABLE_STATS, (ctypes.c_uint32 * 1)(0))):
        yield


KPROBE: Final = 2  # BPF_PROG_TYPE_KPROBE, also used for uprobes
RAW_TRACEPOINT: Final = 17  # BPF_PROG_TYPE_RAW_TRACEPOINT
TRACING: Final = 26  # BPF_PROG_TYPE_TRACING, also used for iterators

_PROGRAM_ARRAY: Final = 3  # BPF_MAP_TYPE_PROG_ARRAY, include/uapi/linux/bpf.h
_CODE_BYTES: Final = 1 << 18  # Most native code of a program that is searched
_LICENSE: Final = b"Dual MIT/GPL"
_LOG_BYTES: Final = 16 << 20
_MOST_INTERRUPTIONS: Final = 20  # Signals while one program is verified


class _LoadAttr(ctypes.Structure):
    _fields_ = layout(
        (U32, "prog_type insn_cnt"),
        (U64, "insns license"),
        (U32, "log_level log_size"),
        (U64, "log_buf"),
        (U32, "kern_version prog_flags"),
        (ctypes.c_char * NAME_BYTES, "prog_name"),
        (U32, "prog_ifindex expected_attach_type prog_btf_fd func_info_rec_size"),
        (U64, "func_info"),
        (U32, "func_info_cnt line_info_rec_size"),
        (U64, "line_info"),
        (U32, "line_info_cnt attach_btf_id"),
    )


class _TracepointAttr(ctypes.Structure):
    _fields_ = layout((U64, "name"), (U32, "prog_fd"))


class Programs:
    """The probes' BPF maps and loaded programs, until ``close``."""

    def __init__(
        self,
        probes: CompiledProbes,
        *,
        simpler: Callable[[], CompiledProbes] | None = None,
        debug: bool = False,
    ) -> None:
        """Creates all maps. ``debug`` prints the verifier's log of refused programs.

        ``simpler``: makes simpler code for the same maps, in case the verifier refuses a program.
        Raises UnsupportedError or PrivilegeError.
        """
        self._probes, self._simpler, self._debug = probes, simpler, debug
        self._maps: dict[str, int] = {}
        # Program arrays, by map number and by the attach type of the programs that use them: the
        # kernel lets only programs of one attach type call each other.
        self._arrays: dict[tuple[int, int], int] = {}
        self._loaded: dict[str, int] = {}
        try:
            for spec in probes.maps:
                if spec.kind != _PROGRAM_ARRAY:
                    self._maps[spec.name] = create_map(spec)
        except OSError as error:
            self.close()
            why = scarcity(error) or error.strerror
            raise UnsupportedError(f"the kernel refused to create a BPF map: {why}") from error

    def map_fd(self, name: str) -> int:
        return self._maps[name]

    @property
    def loaded(self) -> dict[str, int]:
        return dict(self._loaded)

    def fd(self, name: str) -> int:
        return self._loaded[name]

    def load(self, name: str, kind: int, attach_type: int = 0, attach_btf_id: int = 0) -> int:
        """Loads a program for this expected_attach_type, and returns its descriptor.

        ``attach_btf_id``: the kernel function that a TRACING program is attached to.

        A suffix after a slash in ``name`` distinguishes variants of a program. A program already
        loaded under this name is dropped; its attachments keep it alive. Raises
        UnsupportedError or PrivilegeError.
        """
        written = name.partition("/")[0]
        code = with_iterators(with_maps(self._probes.programs[written], self._places(attach_type)))
        attributes = _LoadAttr(
            prog_type=kind,
            insn_cnt=len(code) // 8,
            insns=_address(code),
            license=_address(_LICENSE),
            prog_name=written.encode()[: NAME_BYTES - 1],
            expected_attach_type=attach_type,
            attach_btf_id=attach_btf_id,
        )
        try:
            descriptor = _load(attributes)
        except OSError as error:
            if (scarce := scarcity(error)) is not None:
                raise UnsupportedError(f"the probes can't be loaded: {scarce}") from error
            if self._simpler is not None and error.errno != errno.EPERM:
                self._probes, self._simpler = self._simpler(), None
                return self.load(name, kind, attach_type, attach_btf_id)
            said = self._refusal(attributes)
            what = f"the kernel refused to load the probes: {error.strerror}"
            if error.errno == errno.EPERM:
                raise PrivilegeError(what, hint=privilege_hint()) from error
            hint = "run again with --debug to see the verifier's log"
            if error.errno == errno.E2BIG:
                hint = "use fewer --max-frames: older kernels check fewer"
            raise UnsupportedError(f"{what} ({name}: {said})", hint=hint) from error
        self.drop(name)
        self._loaded[name] = descriptor
        if has_private_stack(descriptor):
            raise UnsupportedError(
                f"this kernel gives probe {name!r} a stack that other threads' probes overwrite",
                hint="it could crash the machine; please report this kernel's version",
            )
        return descriptor

    def let_call(self, name: str, attach_type: int, number: int) -> None:
        """Lets programs of an attach type call a loaded one by number. Raises UnsupportedError."""
        try:
            for at, array in self._places(attach_type).items():
                if self._probes.maps[at].kind == _PROGRAM_ARRAY:
                    set_entry(array, ctypes.c_uint32(number), ctypes.c_uint32(self._loaded[name]))
        except OSError as error:
            why = f"the kernel refused a call of {name}: {error.strerror}"
            raise UnsupportedError(why) from error

    def _places(self, attach_type: int) -> dict[int, int]:
        """Returns the descriptors of the maps for programs of this attach type, by map number."""
        places = {}
        for number, spec in enumerate(self._probes.maps):
            if spec.kind != _PROGRAM_ARRAY:
                places[number] = self._maps[spec.name]
                continue
            key = number, attach_type
            if key not in self._arrays:
                self._arrays[key] = create_map(spec)
            places[number] = self._arrays[key]
        return places

    def _refusal(self, attributes: _LoadAttr) -> str:
        """Returns the last line of the verifier's log for a refused program."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        attributes.log_level, attributes.log_size = 1, _LOG_BYTES
        attributes.log_buf = ctypes.addressof(log)
        with suppress(OSError):
            os.close(_load(attributes))
        text = log.value.decode(errors="replace")
        if self._debug:
            print(text, file=sys.stderr)
        lines = [line for line in text.splitlines() if not line.startswith("processed ")]
        return lines[-1] if lines else "no reason given"

    def drop(self, name: str) -> None:
        """Drops a program, if loaded: the kernel unloads it once nothing is attached to it."""
        descriptor = self._loaded.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def attach_tracepoint(self, name: str, tracepoint: str) -> int:
        """Attaches a program to a raw tracepoint; returns a descriptor. Raises UnsupportedError."""
        where = tracepoint.encode()
        attributes = _TracepointAttr(name=_address(where), prog_fd=self._loaded[name])
        try:
            return syscalls.bpf(syscalls.BPF_RAW_TRACEPOINT_OPEN, attributes)
        except OSError as error:
            why = f"the kernel refused to watch {tracepoint}: {error.strerror}"
            raise UnsupportedError(why) from error

    def close(self) -> None:
        for owned in (self._loaded, self._maps, self._arrays):
            while owned:
                os.close(owned.popitem()[1])


def has_private_stack(program_fd: int) -> bool:
    """Returns whether a program's native code, if it is shown, has a private stack per processor.

    ``probes/preemption.h`` prevents that on all known kernels.
    """
    code, pattern = ctypes.create_string_buffer(_CODE_BYTES), native().private_stack_code
    info = program_info(program_fd, code)
    if not info.jited_prog_insns or pattern is None:
        return False
    return pattern.search(code, 0, min(info.jited_prog_len, _CODE_BYTES)) is not None


def _load(attributes: _LoadAttr) -> int:
    """Loads a program. The verifier gives up with EAGAIN when a signal comes: it is asked again."""
    for _ in range(_MOST_INTERRUPTIONS):
        with suppress(BlockingIOError):
            return syscalls.bpf(syscalls.BPF_PROG_LOAD, attributes)
    return syscalls.bpf(syscalls.BPF_PROG_LOAD, attributes)


def _address(content: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0
