"""Probes are compiled once, and what was compiled is believed only where it is safe to."""

import functools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tracelloc import probes
from tracelloc.errors import UnsupportedError
from tracelloc.record.kernel import btf, captureconfig, precompiled
from tracelloc.record.kernel.bpf import WALKER, Capture
from tracelloc.record.kernel.btf import type_numbers
from tracelloc.record.kernel.captureconfig import CaptureConfig, Method
from tracelloc.record.kernel.compiler import CompiledProbes
from tracelloc.record.kernel.programs import program_info

pytestmark = [pytest.mark.bpf, pytest.mark.long]

CONFIG = CaptureConfig(max_frames=31)
SMALL = replace(CONFIG, use_rows=False, spill_entries=0)  # Compiled in a third of the time


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/tracelloc/probes"


_compiled = functools.cache(precompiled._compile_aside)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that the compiler would be run: it is once for each wish."""
    done: list[str] = []

    def counted(wish: str, *, debug: bool) -> CompiledProbes:
        done.append(wish)
        return _compiled(wish, debug=debug)

    monkeypatch.setattr(precompiled, "_compile_aside", counted)
    return done


def test_the_second_time_nothing_is_compiled(cache: Path, compilations: list[str]) -> None:
    first = CONFIG.compile()
    assert CONFIG.compile() == first
    assert len(compilations) == 1
    (file,) = cache.iterdir()
    assert (file.stat().st_mode & 0o777, cache.stat().st_mode & 0o777) == (0o600, 0o700)
    with closing(Capture(CONFIG, Method.PERF)) as capture:
        capture.load()
    assert len(compilations) == 1


def test_another_source_or_option_is_compiled(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    SMALL.compile()
    replace(SMALL, max_frames=30).compile()
    assert len(compilations) == 2
    text = probes.source_text
    monkeypatch.setattr(probes, "source_text", lambda **options: text(**options) + "\n")  # type: ignore[arg-type]
    SMALL.compile()
    assert len(compilations) == 3
    monkeypatch.setattr(precompiled, "_bcc_stamp", lambda: "another bcc")
    SMALL.compile()
    assert len(compilations) == 4
    assert len(list(cache.iterdir())) == 4


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache in which the probes are."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("kept")
        patch.setenv("XDG_CACHE_HOME", str(home))
        SMALL.compile()
        yield home / "tracelloc/probes"


def change_a_character(file: Path) -> None:
    content = file.read_bytes()
    middle = content.index(b'"programs"') + 1000  # an instruction of the first one
    changed = b"B" if content[middle : middle + 1] == b"A" else b"A"
    file.write_bytes(content[:middle] + changed + content[middle + 1 :])


def change_all(file: Path) -> None:
    text = json.dumps({"maps": [{}], "programs": {}}).encode()
    file.write_bytes(precompiled._digest(text) + b"\n" + text)


HARMS = {
    "cut": lambda file: os.truncate(file, file.stat().st_size - 100),
    "one character": change_a_character,
    "other content": change_all,
    "others can write it": lambda file: file.chmod(0o666),
    "others own it": lambda file: os.chown(file, 65534, 65534),
    "no file": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_damaged_or_not_ours_is_compiled_again(
    cache: Path, compilations: list[str], kept: Path, harm: str
) -> None:
    cache.parent.mkdir(parents=True)
    shutil.copytree(kept, cache)
    first = SMALL.compile()
    assert len(compilations) == 0
    (file,) = cache.iterdir()
    HARMS[harm](file)
    assert SMALL.compile() == first
    assert len(compilations) == 1


@pytest.mark.usefixtures("compilations")
def test_the_cache_of_who_called_sudo(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That user could have the kernel run anything."""
    monkeypatch.setenv("SUDO_UID", "65534")
    SMALL.compile()
    (file,) = cache.iterdir()
    assert file.stat().st_uid == os.geteuid()
    os.chown(file, 65534, 65534)
    compiled = SMALL.compile()
    (file,) = cache.iterdir()
    assert file.stat().st_uid == os.geteuid()
    _, text = file.read_text().splitlines()
    assert CompiledProbes.from_json(json.loads(text)) == compiled


@pytest.mark.usefixtures("compilations")
def test_only_some_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precompiled, "_MOST_FILES", 2)
    for frames in (31, 32, 33):
        replace(SMALL, max_frames=frames).compile()
    assert len(list(cache.iterdir())) == 2


def test_without_a_cache_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert SMALL.compile().programs


DEEP = CaptureConfig(max_frames=512, follow=True, trace_mappings=True, sample_bytes=1)
USDT = CaptureConfig(max_frames=512, follow=True, usdt=True, runtime_frames=True)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (CaptureConfig(), 250_000),
        (DEEP, 750_000),
        (CaptureConfig(max_frames=512, use_rows=False, follow=True), 750_000),
        (replace(DEEP, runtime_frames=True, max_frames=127), 250_000),
        (replace(DEEP, runtime_frames=True), 750_000),
        (replace(USDT, max_frames=127), 250_000),
        (replace(USDT, weighted=True), 750_000),
        (CaptureConfig(runtime_frames=True, max_frames=512, use_rows=False, follow=True), 750_000),
    ],
)
@pytest.mark.parametrize("iterates", [True, False])
def test_the_verifier_has_not_much_to_do(
    config: CaptureConfig, most: int, iterates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is most of what attaching takes; at a million instructions it refuses."""
    if not iterates:
        # As on older kernels.
        monkeypatch.setattr(captureconfig, "type_numbers", lambda: None)
    elif type_numbers() is None:
        pytest.skip("this kernel has no iterators to count with")
    with closing(Capture(config)) as capture:
        capture.load()
        verified = {n: program_info(fd).verified_insns for n, fd in capture.loaded.items()}
        if iterates:
            # On Linux 7.2 it is as much as without.
            is_known = int(os.uname().release.split(".")[0]) < 7
            assert max(verified.values()) < (most / 2 if is_known else most), verified
            return
        assert 50_000 < max(verified.values()) < most, verified
        walkers = [count for name, count in verified.items() if name.startswith(WALKER)]
        assert len(walkers) == config.runtime_frames
        assert all(count < 100_000 for count in walkers)


def test_a_kernel_that_refuses_iterators_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(btf, "type_numbers", lambda: dict.fromkeys(btf.FUNCTIONS, 1))
    monkeypatch.setattr(captureconfig, "type_numbers", dict)
    with closing(Capture(CONFIG)) as capture:
        capture.load()
        verified = {n: program_info(fd).verified_insns for n, fd in capture.loaded.items()}
        assert max(verified.values()) > 50_000


def test_what_the_verifier_says_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = probes.source_text

    def broken(**options: object) -> str:
        source = text(**options)  # type: ignore[arg-type]
        return source.replace("int do_nothing(struct pt_regs *ctx)\n{\n\treturn 0;", """
int do_nothing(struct pt_regs *ctx)
{
	return *(int *)PT_REGS_SP(ctx);""")  # fmt: skip

    monkeypatch.setattr(probes, "source_text", broken)
    with closing(Capture(SMALL, Method.PERF)) as capture:
        with pytest.raises(
            UnsupportedError, match=r"refused to load .* \(do_nothing: .+\)"
        ) as error:
            capture.load()
        assert "--debug" in error.value.hint
