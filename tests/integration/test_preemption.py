"""No program of ours has a stack that another thread's probe could overwrite.

Linux 6.13 and newer give programs that use 64 bytes of stack or more a private stack per
processor, although they can be preempted (probes/preemption.h): the kernel oopses.
"""

import itertools
import platform
from contextlib import closing
from dataclasses import replace

import pytest

from tests.unit.record.kernel.test_bytecode import STACK_LIMIT_BYTES, calls_of, stack_bytes
from tracelloc import probes
from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel.bpf import TRACEPOINTS, WALKER, Capture
from tracelloc.record.kernel.capabilities import kernel_is_at_least
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.programs import has_private_stack

pytestmark = [pytest.mark.bpf, pytest.mark.long]

# Each pair of values of two options (an orthogonal array of strength 2), the extremes among them.
CONFIGS = {
    f"follow={follow} mmap={mappings} sample={sample} rows={follow == mappings} "
    f"spill={follow == sample}": CaptureConfig(
        follow=follow,
        trace_mappings=mappings,
        sample_bytes=4096 if sample else None,
        use_rows=follow == mappings,
        spill_entries=CaptureConfig().spill_entries if follow == sample else 0,
    )
    for follow, mappings, sample in itertools.product((False, True), repeat=3)
}
CONFIGS |= {
    f"python {name}": replace(config, runtime_frames=True)
    for name, config in CONFIGS.items()
    if bool(config.sample_bytes) == bool(config.spill_entries)
}
EXTREMES = {
    "usual": CaptureConfig(),
    "most": CaptureConfig(follow=True, trace_mappings=True, sample_bytes=4096),
    "python": CaptureConfig(runtime_frames=True),
    "most with python": CaptureConfig(
        follow=True, trace_mappings=True, sample_bytes=4096, runtime_frames=True
    ),
}


def all_programs(capture: Capture) -> dict[str, int]:
    """Loads every program, those of tracepoints included."""
    capture.load()
    capture.watch(1)
    wanted = [*capture.programs, *TRACEPOINTS]
    return {
        name: fd for name, fd in capture.loaded.items() if name in wanted or name.startswith(WALKER)
    }


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_bytecode(config: CaptureConfig) -> None:
    """Each program uses less stack than gets a private one, or may tail-call."""
    for name, code in config.compile().programs.items():
        assert stack_bytes(code) < STACK_LIMIT_BYTES or "tail_call" in calls_of(code), name


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("config", EXTREMES.values(), ids=EXTREMES)
def test_native_code(config: CaptureConfig, method: Method) -> None:
    """What this very kernel has made of them."""
    needed = {Method.SESSION: (6, 13), Method.MULTI: (6, 6), Method.PERF: (6, 1)}[method]
    if not kernel_is_at_least(platform.release(), needed):
        pytest.skip("this kernel lacks it")
    with closing(Capture(config, method)) as capture:
        programs = all_programs(capture)
        assert {*capture.programs, "process_execs"} <= set(programs)
        assert any(name.startswith(WALKER) for name in programs) == config.runtime_frames
        assert [name for name, fd in programs.items() if has_private_stack(fd)] == []


def test_these_tests_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tail call that is never made."""
    text = probes.source_text

    def without(**options: object) -> str:
        source = text(**options)  # type: ignore[arg-type]
        assert source.count("if (reached)") == 1
        return source.replace("if (reached)", "if (0)")

    monkeypatch.setattr(probes, "source_text", without)
    config = next(iter(CONFIGS.values()))
    code = config.compile().programs["allocator_call"]
    assert stack_bytes(code) >= STACK_LIMIT_BYTES
    assert "tail_call" not in calls_of(code)
    if kernel_is_at_least(platform.release(), (6, 13)):
        with (
            closing(Capture(config, Method.PERF)) as capture,
            pytest.raises(UnsupportedError, match="other threads' probes overwrite"),
        ):
            capture.load()
