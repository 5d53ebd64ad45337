"""Rules for machine code, by architecture: where probes may sit, how code is decoded."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tracelloc.architecture import Architecture
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.dataclass import dataclass
from tracelloc.errors import UnsupportedError
from tracelloc.files.machinecode import armcode, probeoffsets
from tracelloc.files.machinecode.instruction import Instruction, ProbeOffset


@dataclass(frozen=True, slots=True)
class CodeRules:
    """The functions of one architecture's module, which has their documentation."""

    find_probe_offset: Callable[[bytes, Iterable[str]], ProbeOffset | None]
    at_entry: Callable[[bytes], ProbeOffset | None]
    nop_at: Callable[[bytes], tuple[int, bool]]
    decode: Callable[[bytes, int], Iterator[Instruction]]


_RULES: Final = {
    X86_64: CodeRules(
        probeoffsets.find_probe_offset,
        probeoffsets.at_entry,
        probeoffsets.nop_at,
        probeoffsets.decode,
    ),
    AARCH64: CodeRules(armcode.find_probe_offset, armcode.at_entry, armcode.nop_at, armcode.decode),
}


def rules_for(architecture: Architecture | None) -> CodeRules:
    """Returns an architecture's rules. Raises UnsupportedError for an unknown one."""
    if architecture is None:
        raise UnsupportedError("its code is of an unknown machine")
    return _RULES[architecture]
