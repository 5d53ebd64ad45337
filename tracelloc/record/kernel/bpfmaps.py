"""Creates BPF maps, changes them, empties them in batches, and waits for all programs.

Calls bpf(2) directly: its batch commands fill numpy arrays with a million entries a second;
one call per entry takes ten times as long.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tracelloc.record.kernel.compiler import MapSpec
from tracelloc.system import syscalls
from tracelloc.system.syscalls import U32, U64, closed_on_error, layout

Columns = npt.NDArray[Any]  # A structured array

NAME_BYTES: Final = 16  # Longest name in the kernel, including the terminating 0 (BPF_OBJ_NAME_LEN)
# Most bytes read per call. The kernel requires more than any bucket of a hash map holds.
_BATCH_BYTES: Final = 1 << 20
_ARRAY: Final = 2
# BPF_MAP_TYPE_ARRAY and BPF_MAP_TYPE_ARRAY_OF_MAPS, include/uapi/linux/bpf.h.
_ARRAY_OF_MAPS: Final = 12


def pick(records: Columns, which: npt.NDArray[Any]) -> Columns:
    """Returns the chosen records. Copies them whole, as numpy copies fields slowly."""
    picked: Columns = records.view(f"V{records.itemsize}")[which].view(records.dtype)
    return picked


class _BatchAttr(ctypes.Structure):
    _fields_ = layout(
        (U64, "in_batch out_batch keys values"), (U32, "count map_fd"), (U64, "elem_flags flags")
    )


class _CreateAttr(ctypes.Structure):
    _fields_ = layout(
        (U32, "map_type key_size value_size max_entries map_flags inner_map_fd numa_node"),
        (ctypes.c_char * NAME_BYTES, "map_name"),
    )


class _ElementAttr(ctypes.Structure):
    _fields_ = layout((U64, "map_fd key value flags"))


def create_map(spec: MapSpec, inner_fd: int = 0) -> int:
    """Creates a map; ``inner_fd`` is a template for its inner maps. Raises OSError."""
    attributes = _CreateAttr(
        map_type=spec.kind,
        key_size=spec.key_bytes,
        value_size=spec.value_bytes,
        max_entries=spec.max_entries,
        map_flags=spec.flags,
        inner_map_fd=inner_fd,
        map_name=spec.name.encode()[: NAME_BYTES - 1],
    )
    return syscalls.bpf(syscalls.BPF_MAP_CREATE, attributes)


def set_entry(
    map_fd: int, key: ctypes.c_uint32 | ctypes.c_uint64, value: ctypes.c_uint32 | ctypes.c_uint64
) -> None:
    """Sets an entry of a BPF map (map_update_elem). Raises OSError."""
    attributes = _ElementAttr(map_fd, ctypes.addressof(key), ctypes.addressof(value))
    syscalls.bpf(syscalls.BPF_MAP_UPDATE_ELEM, attributes)


def take_entry(map_fd: int, key: ctypes.c_uint32) -> int | None:
    """Removes and returns a 32-bit value of a hash map; None if missing. Raises OSError."""
    value = ctypes.c_uint32()
    attributes = _ElementAttr(map_fd, ctypes.addressof(key), ctypes.addressof(value))
    try:
        syscalls.bpf(syscalls.BPF_MAP_LOOKUP_AND_DELETE_ELEM, attributes)
    except FileNotFoundError:
        return None
    return value.value


def delete_entry(map_fd: int, key: ctypes.c_uint32 | ctypes.c_uint64) -> None:
    """Removes an entry from a hash map, if present. Raises OSError."""
    with suppress(FileNotFoundError):
        attributes = _ElementAttr(map_fd, ctypes.addressof(key))
        syscalls.bpf(syscalls.BPF_MAP_DELETE_ELEM, attributes)


def keys_of(map_fd: int) -> Iterator[int]:
    """Yields the 64-bit keys of a hash map; keys added or removed meanwhile may be missing."""
    key, following = ctypes.c_uint64(), ctypes.c_uint64()
    attributes = _ElementAttr(map_fd, 0, ctypes.addressof(following))
    with suppress(FileNotFoundError):
        while True:
            syscalls.bpf(syscalls.BPF_MAP_GET_NEXT_KEY, attributes)
            yield following.value
            key.value = following.value
            attributes.key = ctypes.addressof(key)


class HashMap:
    """A hash map of the probes, read and emptied in batches."""

    def __init__(self, map_fd: int, keys: list[Any], values: list[Any]) -> None:
        """``keys``, ``values``: the fields of each, as numpy's dtype takes them."""
        self._fd = map_fd
        self._keys = np.dtype(keys)
        self._values = np.dtype(values)

    def take_entries(
        self, chosen: Callable[[Columns], npt.NDArray[np.bool_]]
    ) -> Iterator[tuple[Columns, Columns]]:
        """Yields (keys, values) of the chosen keys in batches, and removes them.

        Nobody may change the chosen entries meanwhile; others may come and go, since entries
        never move to another bucket (kernel/bpf/hashtab.c). Raises OSError.
        """
        room = _BATCH_BYTES // (self._keys.itemsize + self._values.itemsize)
        keys = np.empty(room, self._keys)
        values = np.empty(room, self._values)
        cursor = ctypes.c_uint32()
        attributes = _BatchAttr(
            out_batch=ctypes.addressof(cursor),
            keys=keys.ctypes.data,
            values=values.ctypes.data,
            map_fd=self._fd,
        )
        more = True
        while more:
            attributes.count = room
            try:
                syscalls.bpf(syscalls.BPF_MAP_LOOKUP_BATCH, attributes)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
                more = False
            attributes.in_batch = ctypes.addressof(cursor)
            found = keys[: attributes.count]
            mask = chosen(found)
            taken = pick(found, mask), pick(values[: attributes.count], mask)
            if len(taken[0]):
                self._delete(taken[0])
                yield taken

    def _delete(self, keys: Columns) -> None:
        attributes = _BatchAttr(keys=keys.ctypes.data, count=len(keys), map_fd=self._fd)
        syscalls.bpf(syscalls.BPF_MAP_DELETE_BATCH, attributes)


class GracePeriod:
    """A wait for the end of every BPF program that was running when the wait began.

    An update of a map of maps waits for them before it returns to user space, so that no
    program still uses the old map (maybe_wait_bpf_programs() in kernel/bpf/syscall.c): it calls
    synchronize_rcu(), some milliseconds of sleep. membarrier(2) has the same effect, but is
    refused on nohz_full kernels and does nothing on a single processor.
    """

    def __init__(self) -> None:
        """Creates the maps that waiting needs. Raises OSError."""
        self._inner_fd = create_map(MapSpec("inner", _ARRAY, 4, 4, 1, 0))
        with closed_on_error(self._inner_fd):
            outer = MapSpec("outer", _ARRAY_OF_MAPS, 4, 4, 1, 0)
            self._outer_fd = create_map(outer, self._inner_fd)

    def wait(self) -> None:
        """Waits until all BPF programs that run now have ended. Raises OSError."""
        set_entry(self._outer_fd, ctypes.c_uint32(0), ctypes.c_uint32(self._inner_fd))

    def close(self) -> None:
        os.close(self._outer_fd)
        os.close(self._inner_fd)
