"""Checks whether this machine can trace, before compiling; gives one clear reason if not."""

import ctypes
import errno
import importlib.util
import os
import platform
import re
import resource
from pathlib import Path
from typing import Final

from tracelloc.architecture import ARCHITECTURES, machine_architecture, machine_name
from tracelloc.errors import PrivilegeError, TracellocError, UnsupportedError
from tracelloc.record.kernel.compiler import INSTALL_HINT
from tracelloc.system import syscalls

# On older kernels, maps that allocate on demand taint the kernel ("trace type BPF program uses
# run-time allocation"), and probes that preempt each other may be skipped.
MINIMUM_KERNEL: Final = (6, 1)
UPROBE_MULTI_KERNEL: Final = (6, 6)  # The first kernel with uprobe_multi links
UPROBE_SESSION_KERNEL: Final = (6, 13)  # The first kernel where one link covers entries and returns
FileLimit = tuple[int, int]  # The soft and the hard limit of open files

ALL: Final = "CAP_SYS_ADMIN"  # Implies all the others
NEEDED: Final = ("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE")  # Without these nothing can be traced
MAPPED_FILES: Final = "CAP_CHECKPOINT_RESTORE"  # Allows reading mapped files whose names are gone
# By number, include/uapi/linux/capability.h.
CAPABILITIES: Final = {
    "CAP_SYS_PTRACE": 19, ALL: 21, "CAP_PERFMON": 38, "CAP_BPF": 39, MAPPED_FILES: 40,
}  # fmt: skip
_ROOT_HINT: Final = f"run it as root, or give it {', '.join(NEEDED)}"
_CONTAINER_HINT: Final = (
    "docker run --privileged has it, or --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE "
    "with a seccomp profile that allows bpf(2)"
)


def missing_rights() -> str:
    """Returns what the user lacks if the kernel refuses probes, in a word for messages."""
    if os.geteuid() != 0:
        return "root"
    return "BPF" if has_bcc() else "bcc"


def has_bcc() -> bool:
    """Returns whether Python finds a package named bcc, which should be the probes' compiler."""
    return importlib.util.find_spec("bcc") is not None


def why_no_probes() -> TracellocError | None:
    """Returns why there can't be probes; None if there can. Raises UnsupportedError."""
    check_machine(machine_name())
    try:
        check_all()
    except (PrivilegeError, UnsupportedError) as error:
        return error
    return None


def check_all() -> None:
    """Raises UnsupportedError or PrivilegeError for the first missing requirement of probes."""
    check_machine(machine_name())
    check_kernel(platform.release())
    try:
        check_capabilities(Path("/proc/self/status").read_text())
        check_bpf()
    except PrivilegeError as error:
        if has_bcc():
            raise
        hint = f"{error.hint}; {INSTALL_HINT}"
        raise PrivilegeError(f"{error.message}, and bcc is not installed", hint=hint) from error
    if not has_bcc():
        raise UnsupportedError("bcc is not installed", hint=INSTALL_HINT)


def check_machine(machine: str) -> None:
    """Raises UnsupportedError unless tracelloc records programs on the machine."""
    if machine_architecture(machine) is None:
        known = ", ".join(each.name for each in ARCHITECTURES)
        raise UnsupportedError(f"tracelloc does not run on {machine}", hint=f"it knows {known}")


def kernel_is_at_least(release: str, version: tuple[int, int]) -> bool:
    """Returns whether ``release`` (from uname -r) is ``version`` or newer; True if unclear."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return match is None or (int(match[1]), int(match[2])) >= version


def check_kernel(release: str) -> None:
    """Raises UnsupportedError if the kernel is too old; ``release`` is printed by uname -r."""
    if not kernel_is_at_least(release, MINIMUM_KERNEL):
        hint = f"it needs {'.'.join(map(str, MINIMUM_KERNEL))} or newer"
        raise UnsupportedError(f"Linux {release} is too old for tracelloc", hint=hint)


def check_capabilities(status: str) -> None:
    """Raises PrivilegeError without root's capabilities; ``status`` is /proc/self/status."""
    held = held_capabilities(status)
    missing = [name for name in NEEDED if name not in held]
    if ALL in held or not missing:
        return
    if missing_rights() == "root":
        raise PrivilegeError("probes need root (sudo)", hint=_ROOT_HINT)
    what = f"probes need {', '.join(missing)}, which root lacks here"
    raise PrivilegeError(what, hint=_CONTAINER_HINT)


def held_capabilities(status: str) -> set[str]:
    """Returns the effective ``CAPABILITIES``; ``status`` is the text of /proc/self/status."""
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    held = int(match[1], 16) if match else 0
    return {name for name, number in CAPABILITIES.items() if held >> number & 1}


def check_bpf() -> None:
    """Creates and closes a tiny map, to see whether the kernel permits BPF."""
    attributes = (ctypes.c_uint32 * 18)(2, 4, 8, 1)  # BPF_MAP_TYPE_ARRAY, key, value, entries
    try:
        os.close(syscalls.bpf(syscalls.BPF_MAP_CREATE, attributes))
    except OSError as error:
        explain_bpf_refusal(error.errno or 0)


def explain_bpf_refusal(code: int) -> None:
    """Raises the error that explains an errno of bpf(2)."""
    if code == errno.ENOSYS:
        hint = "it must be built with CONFIG_BPF_SYSCALL=y"
        raise UnsupportedError("this kernel has no BPF", hint=hint)
    if code in (errno.EPERM, errno.EACCES):
        hint = f"{_CONTAINER_HINT}; under kernel lockdown it is not available"
        raise PrivilegeError("the kernel refuses BPF here", hint=hint)
    raise UnsupportedError(f"the kernel cannot create BPF maps: {os.strerror(code)}")


def raise_file_limit() -> FileLimit:
    """Raises the soft limit of open files, one per library; returns the limits before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard
