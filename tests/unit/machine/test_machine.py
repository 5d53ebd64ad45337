"""The memory of all processes and control groups, from a made-up /proc and from the real one."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness import Target
from tracelloc.errors import TargetError
from tracelloc.machine import machinememory
from tracelloc.machine.processes import GroupReader, ProcessReader, find_group
from tracelloc.startup import TERMINAL_GUARD
from tracelloc.system.confined import CONFINE
from tracelloc.system.groupnames import GroupNames

KIB, MIB = 1 << 10, 1 << 20
STATUS = """Name:\t{name}
State:\tS (sleeping)
Kthread:\t0
VmPeak:\t  999999 kB
RssAnon:\t {anonymous} kB
RssFile:\t {files} kB
RssShmem:\t {shared} kB
VmPTE:\t {tables} kB
VmSwap:\t {swapped} kB
Threads:\t1
"""


class Machine:
    """A made-up /proc and /sys/fs/cgroup, and a clock."""

    def __init__(self, directory: Path) -> None:
        self.proc = directory / "proc"
        self.groups = directory / "groups"
        self.proc.mkdir()
        self.groups.mkdir()
        self.now_s = 1000.0
        (self.proc / "meminfo").write_text(
            "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapTotal: 2048 kB\nSwapFree: 512 kB\n"
        )
        self.reader = ProcessReader(
            self.proc, groups=GroupReader(self.groups), clock_s=lambda: self.now_s
        )

    def set(
        self, pid: int, name: str = "server", group: str = "/", version_1: bool = False,
        **kib: int,
    ) -> None:  # fmt: skip
        """Sets a process's memory in KiB; what is not given is 0."""
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        sizes = {kind.name.lower(): 0 for kind in machinememory.MemoryKind} | kib
        text = STATUS.format(
            name=name, anonymous=sizes["anonymous"], files=sizes["files"], shared=sizes["shared"],
            swapped=sizes["swapped"], tables=sizes["page_tables"],
        )  # fmt: skip
        # The file that is open is written, as the kernel does.
        (directory / "statm").write_text(str(sizes))
        (directory / "status").write_text(text)
        (directory / "cmdline").write_bytes(f"/bin/{name}\0-x\0".encode())
        (directory / "cgroup").write_text(
            f"4:cpu,memory:{group}\n0::/else\n" if version_1 else f"0::{group}\n"
        )

    def look(self, after_s: float = 0.0) -> machinememory.MachineMemory:
        self.now_s += after_s
        return self.reader.read_memory()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    with closing(made.reader):
        yield made


def test_what_is_shared_counts_in_part(machine: Machine) -> None:
    """Three workers share their parent's pages: the one with most memory of its own is first."""
    for pid, kib in (7, 100), (8, 300), (9, None):
        machine.set(pid, anonymous=1000 + pid, swapped=50, page_tables=1)
        if kib is not None:
            (machine.proc / f"{pid}/smaps_rollup").write_text(
                f"head\nRss: 1000 kB\nPss: {kib} kB\n"
            )
    processes = sorted(machine.look().processes, key=machinememory.by_size)
    assert [each.pid for each in processes] == [9, 8, 7]
    sizes = [(each.pss_bytes, each.held_bytes) for each in processes]
    assert sizes == [(None, 1060 << 10), (300 << 10, 351 << 10), (100 << 10, 151 << 10)]
    # It is read again after a minute.
    (machine.proc / "7/smaps_rollup").write_text("head\nPss: 400 kB\n")
    for after_s, order in (30, [9, 8, 7]), (31, [9, 7, 8]):
        processes = sorted(machine.look(after_s).processes, key=machinememory.by_size)
        assert [each.pid for each in processes] == order


def test_workers_are_left_out(machine: Machine) -> None:
    machine.set(7, anonymous=100)
    machine.set(8, "python", anonymous=100)
    line = "\0".join(["python", "-I", "-S", "-c", CONFINE, "4711"])
    (machine.proc / "8/cmdline").write_text(line)
    machine.set(9, "sh", anonymous=100)
    (machine.proc / "9/cmdline").write_text("\0".join(["sh", "-c", "read", TERMINAL_GUARD, "5"]))
    for _ in range(2):
        assert [process.pid for process in machine.look(1).processes] == [7]


def test_growth_over_one_ten_and_sixty_minutes(machine: Machine) -> None:
    """It grew by 6 KiB a minute for long, and by 60 in the last ten minutes."""
    size, known = 100_000, list[tuple[bool, ...]]()
    for second in range(0, 4201, 20):
        size += 0 if second % 60 else 60 if second > 3600 else 6
        machine.set(7, anonymous=size)
        found = machine.look(20)
        (process,) = found.processes
        known.append(tuple(rate is not None for rate in process.trend.growth))
    # Not before half of the time has passed.
    assert [known.index((True, n > 0, n > 1)) for n in range(3)] == [1, 15, 90]
    assert process.trend.growing_kind is machinememory.MemoryKind.ANONYMOUS
    assert process.trend.growth == (
        60 << 10, 60 << 10, pytest.approx((10 * 60 + 50 * 6) / 60 * 1024, rel=0.05)
    )  # fmt: skip
    assert found.observed_s == 4200


def test_growth_goes_on_over_small_dips(machine: Machine) -> None:
    """A collector takes a little back each time; a cache that was emptied begins again."""
    sizes = [10_000 + 500 * step - (600 if step % 4 == 3 else 0) for step in range(60)]
    machine.set(8, anonymous=40_000)
    for step, size in enumerate(sizes):
        machine.set(7, anonymous=size)
        machine.set(8, anonymous=40_000 - 1000 * step if step < 30 else 10_000 + 100 * step)
        machine.set(9, anonymous=5000 + step % 7)
        found = machine.look(10)
    trends = {process.pid: process.trend for process in found.processes}
    assert trends[7].growing_s == 590
    assert trends[8].growing_s == 300
    assert trends[9].growing_s == 0


def test_growth_ends_and_takes_few_samples() -> None:
    """After a pause of half a minute, or of an eighth of its time; steps are no pauses."""
    history = machinememory.GrowthHistory([machinememory.MemoryKind.ANONYMOUS])
    grows, steps = history.add(0), history.add(0)
    seen: list[tuple[float, float]] = []
    for second in range(0, 401, 5):
        figures = {grows: [min(second, 80) << 16], steps: [second // 30 << 20]}
        history.record(second, figures)
        both = history.trends([grows, steps])
        seen.append((both[0].growing_s, both[1].growing_s))
    assert [growing for growing, _ in seen[16:24]] == [80, 85, 90, 95, 100, 105, 0, 0]
    assert all(growing == 0 for growing, _ in seen[22:])
    assert [growing for _, growing in seen[7:]] == list(range(35, 401, 5))
    history = machinememory.GrowthHistory([machinememory.MemoryKind.SHARED])
    row = history.add(0)
    for second in range(0, 20_000, 5):
        history.record(second, {row: [second]})
    assert 50 < len(history._samples) < 200
    (trend,) = history.trends([row])
    assert trend.growth == (60, pytest.approx(60), pytest.approx(60))


def test_what_the_kernel_can_reclaim_is_no_growth(machine: Machine) -> None:
    for step in range(25):
        machine.set(7, "mapped", files=500 * step)
        machine.set(8, "files", files=500 * step, anonymous=10_000 + 100 * step)
        found = machine.look(5)
    trends = {process.pid: process.trend for process in found.processes}
    assert (trends[7].rate, trends[7].growing_s, trends[7].growing_kind) == (0, 0, None)
    assert trends[7].kind is machinememory.MemoryKind.FILES
    assert trends[8].rate == 1200 << 10
    assert trends[8].kind is machinememory.MemoryKind.ANONYMOUS


def test_another_process_or_program_begins_anew(machine: Machine) -> None:
    """What has ended leaves no descriptor open, though its number is used again."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    machine.set(7, anonymous=1000)
    machine.look()
    # What the kernel answers about a process that has ended is made up: an empty file.
    (machine.proc / "7/statm").write_text("")
    assert machine.look(20).processes == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    for name, kib in (("other", 8000), ("third", 9000)):
        machine.set(7, name, anonymous=kib)
        (process,) = machine.look(20).processes
        assert (process.command, process.arguments) == (name, f"/bin/{name} -x")
        assert process.trend.growth == (None, None, None)
    machine.set(7, "third", anonymous=9060)
    (process,) = machine.look(60).processes
    assert process.trend.growth == (60 << 10, None, None)


CONTAINER = "3f2a90d1c0de" + "0" * 52
POD = "1c2d3e4f-0000-1111-2222-333344445555"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"/system.slice/docker-{CONTAINER}.scope", "container 3f2a90d1c0de"),
        (f"/docker/{CONTAINER}", "container 3f2a90d1c0de"),
        (f"/machine.slice/libpod-{CONTAINER}.scope/container", "container 3f2a90d1c0de"),
        (f"/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice", f"pod {POD}"),
        (f"/kubepods/besteffort/pod{POD}", f"pod {POD}"),
        (f"/kubepods/besteffort/pod{POD}/{CONTAINER}", "container 3f2a90d1c0de"),
        ("/system.slice/nginx.service", "nginx.service"),
        ("/user.slice/user-0.slice/session-1.scope", "session-1.scope"),
        ("/mine/own", "/mine/own"),
    ],
)  # fmt: skip
def test_names_of_groups(path: str, name: str) -> None:
    assert GroupNames(Path("/nowhere")).name(path).of_group(path) == name


def kubelet(root: Path) -> None:
    (root / f"var/log/pods/shop_web-1_{POD}/nginx").mkdir(parents=True)
    (root / "var/log/containers").mkdir()
    target = f"/var/log/pods/shop_web-1_{POD}/nginx/0.log"
    (root / f"var/log/containers/web-1_shop_nginx-{CONTAINER}.log").symlink_to(target)


def written(root: Path, path: str, content: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(json.dumps(content))


def stored(*names: str) -> list[dict[str, object]]:
    other = {"id": "ab" * 32, "names": ["other"]}
    return [other, {"id": CONTAINER, "names": list(names), "metadata": "{}"}]


DOCKER = f"var/lib/docker/containers/{CONTAINER}/config.v2.json"
STORAGE = "var/lib/containers/storage/overlay-containers/containers.json"
CONTAINERD = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}/config.json"
IN_KUBELET = f"k8s_nginx_web-1_shop_{POD}_0"


@pytest.mark.parametrize(
    ("leave", "name"),
    [
        (kubelet, "shop/web-1/nginx"),
        (lambda root: written(root, STORAGE, stored(IN_KUBELET)), "shop/web-1/nginx"),
        (lambda root: written(root, DOCKER, {"Name": f"/{IN_KUBELET}"}), "shop/web-1/nginx"),
        (lambda root: written(root, CONTAINERD, {"annotations": {
            "io.kubernetes.cri.sandbox-namespace": "shop",
            "io.kubernetes.cri.sandbox-name": "web-1",
            "io.kubernetes.cri.container-name": "nginx",
        }}), "shop/web-1/nginx"),
        (lambda root: written(root, DOCKER, {"Name": "/front"}), "front"),
        (lambda root: written(root, STORAGE, stored("front", "alias")), "front"),
        (lambda root: written(root, DOCKER, {"Name": 5}), "3f2a90d1c0de"),
        (lambda root: written(root, STORAGE, [{"id": CONTAINER}, 7]), "3f2a90d1c0de"),
        (lambda root: written(root, CONTAINERD, {"annotations": None}), "3f2a90d1c0de"),
    ],
    ids=["kubelet", "cri-o", "docker-cri", "containerd", "docker", "podman", *"abc"],
)  # fmt: skip
def test_names_that_runtimes_leave(
    machine: Machine, tmp_path: Path, leave: Callable[[Path], None], name: str
) -> None:
    """A container is called so, and found so, by all parts of its name or by its own."""
    leave(tmp_path)
    path = f"/kubepods/besteffort/pod{POD}/{CONTAINER}"
    names = GroupNames(tmp_path)
    assert names.name(path).of_group(path) == f"container {name}"
    machine.set(7, group=path)
    wanted = {name, name.rpartition("/")[2]} | ({"shop/web-1"} if leave is kubelet else set())
    for each in wanted:
        outer = path if each != "shop/web-1" else path.rpartition("/")[0]
        assert find_group(each, machine.proc, names).path == outer
    with pytest.raises(TargetError):
        find_group("ngin", machine.proc, names)


def test_a_group_is_found_by_what_people_call_it(machine: Machine) -> None:
    """Of a container's scope and its payload, the outer one; never one among several."""
    other = f"3f2a77{CONTAINER[6:]}"
    paths = [
        f"/machine.slice/libpod-{CONTAINER}.scope/container",
        f"/system.slice/docker-{other}.scope",
        "/system.slice/nginx.service",
        f"/kubepods/pod{POD}/{'ab' * 32}",
        f"/kubepods/pod{POD}/{'cd' * 32}",
        "/a/x.service",
        "/b/x.service",
    ]
    for pid, path in enumerate(paths, 7):
        machine.set(pid, group=path)

    def found(name: str) -> str:
        return find_group(name, machine.proc).path

    assert found("3f2a90d1c0de") == f"/machine.slice/libpod-{CONTAINER}.scope"
    assert found(other) == f"/system.slice/docker-{other}.scope"
    assert found("nginx.service") == "/system.slice/nginx.service"
    assert found(POD) == f"/kubepods/pod{POD}"
    assert found("/system.slice") == found("system.slice") == "/system.slice"
    with pytest.raises(TargetError, match=r"^2 control groups are called 3f2a:\n"):
        found("3f2a")
    with pytest.raises(TargetError, match=r"^2 control groups are called x\.service"):
        found("x.service")
    for nothing in ("3f2", "nginx", "/system", "none"):
        with pytest.raises(TargetError, match="no control group with processes is called"):
            found(nothing)


@pytest.mark.parametrize("version_1", [False, True])
def test_groups(machine: Machine, version_1: bool) -> None:
    """One with a limit, one with a name; others are not listed. Those above count as well."""
    folder, limit, used, prefix, anonymous = (
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "total_rss")
        if version_1
        else ("", "memory.max", "memory.current", "", "anon")
    )

    def put(path: str, usage: int, most: int | None, cache: int = 32 * KIB) -> None:
        directory = machine.groups / folder / path
        directory.mkdir(parents=True, exist_ok=True)
        none = str((1 << 63) - 4096) if version_1 else "max"
        (directory / limit).write_text(f"{none if most is None else most}\n")
        (directory / used).write_text(f"{usage}\n")
        (directory / "memory.stat").write_text(
            f"cache 5\n{anonymous} {2 * MIB}\n{prefix}shmem {MIB}\n{prefix}inactive_file {cache}\n"
            f"{prefix}active_file {cache}\nslab_reclaimable {2 * KIB}\n"
        )

    machine.set(7, group="/limited/own", version_1=version_1, anonymous=1)
    machine.set(8, group="/a/x.service", version_1=version_1, anonymous=1)
    machine.set(9, group="/limited", version_1=version_1, anonymous=1)
    for minute in range(2):
        put("limited", (5 + minute) * MIB, 10 * MIB)
        put("limited/own", 2 * MIB, None)
        put("a", 4 * MIB, None)
        put("a/x.service", (8 + 5 * minute) * MIB, None, (2 + 2 * minute) * MIB)
        found = machine.look(60 * minute)
    groups = {group.name: group for group in found.groups}
    assert groups.keys() == {"/limited", "x.service"}
    limited, unit = groups["/limited"], groups["x.service"]
    assert (limited.processes, unit.processes) == (2, 1)
    # 64 KiB of page cache, and 2 KiB of the kernel's for it: told, or known from experience
    assert (limited.limit_bytes, limited.free_bytes) == (10 * MIB, 4 * MIB + 66 * KIB)
    assert limited.trend.growth[0] == MIB
    assert limited.trend.growing_kind is machinememory.MemoryKind.KERNEL
    assert limited.limit_in_s == pytest.approx(60 * (4 + 66 / 1024))
    assert (unit.limit_bytes, unit.limit_in_s) == (None, None)
    reclaimable = 8 * MIB + (8 * MIB // 32 if version_1 else 2 * KIB)
    assert list(unit.trend.kinds.values()) == [
        2 * MIB, MIB, reclaimable, 10 * MIB - reclaimable,
    ]  # fmt: skip
    assert unit.trend.size_bytes == 13 * MIB
    assert unit.trend.used_bytes == 13 * MIB - reclaimable
    assert unit.trend.kind is machinememory.MemoryKind.KERNEL
    assert [process.group for process in found.processes if process.pid == 7] == ["/limited/own"]


_FOR = "a minute for 2 m"
_ALLOCATES = "tracelloc -p 7 shows what allocates it"
_MAPS = "tracelloc -p {} --mmap shows what maps it"


def test_the_report_says_what_grows_and_what_to_do(machine: Machine) -> None:
    for step in range(25):
        machine.set(7, "leaky", anonymous=10_000 + 100 * step)
        machine.set(8, "s\x1b[2J", shared=50_000 + 20 * step)
        machine.set(9, "tables", page_tables=500 * step)
        found = machine.look(5)
    rows = sorted(found.processes, key=machinememory.by_growth)
    assert [process.pid for process in rows] == [9, 7, 8]
    assert [process.pid for process in sorted(rows, key=machinememory.by_size)] == [8, 7, 9]
    lines = list(machinememory.machine_lines(found, rows, 2))
    assert lines[0].endswith(
        "3 processes, 3.00 MiB of 4.00 MiB in use, 1.50 MiB of 2.00 MiB swap, watched 2 m"
    )
    assert [" ".join(line.split()) for line in lines[1:5]] == [
        "memory PSS swapped growth/min:1m 10m 60m for pid kind command",
        "11.7 MiB – – +5.86 MiB – – 2 m 9 page tables /bin/tables -x",
        "12.1 MiB – – +1.17 MiB – – 2 m 7 anonymous /bin/leaky -x",
        "… 1 more",
    ]
    assert lines[5:] == [
        f"tables (9) has grown by 5.86 MiB {_FOR}: {_MAPS.format(9)} (page tables)",
        f"leaky (7) has grown by 1.17 MiB {_FOR}: {_ALLOCATES} (memory without a file)",
        f"s\\x1b[2J (8) has grown by 240 KiB {_FOR}: {_MAPS.format(8)} (shared memory)",
        "",
    ]
    report = json.loads(machinememory.machine_json(found, rows))
    assert [process["pid"] for process in report["processes"]] == [9, 7, 8]
    assert report["processes"][1]["growth_1m_bytes_per_min"] == 1200 << 10
    assert report["processes"][2]["growing_kind"] == "shared"


def test_real_processes() -> None:
    """A program that grows by 8 MiB of its own memory, then has 4 MiB more of a shared mapping."""
    program = (
        "import mmap, sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "kept = b'x' * (8 << 20)\nprint('grown', flush=True)\nsys.stdin.readline()\n"
        "shared = mmap.mmap(-1, 4 << 20)\nshared.write(b'x' * (4 << 20))\n"
        "print('shared', flush=True)\nsys.stdin.readline()\n"
    )
    now_s, seen = 0.0, []
    with (
        Target([sys.executable, "-c", program]) as target,
        closing(ProcessReader(clock_s=lambda: now_s)) as reader,
    ):
        for asked, said in (("", ""), ("grow", "grown"), ("share", "shared")):
            assert not asked or target.ask(asked) == said
            found = {process.pid: process for process in reader.read_memory().processes}
            assert os.getpid() in found
            seen.append([*found[target.pid].trend.kinds.values()])
            now_s += 60
        assert 8 * MIB <= seen[1][0] - seen[0][0] < 9 * MIB
        assert 4 * MIB <= seen[2][2] - seen[1][2] < 5 * MIB
        target.kill()
        assert target.pid not in {process.pid for process in reader.read_memory().processes}
