"""The process that reads the target's files: without rights, and it may die."""

import ast
import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.commands import background
from tests.faultyworker import CRASH, add_fault, faulty_script
from tests.harness import PATIENCE_S, Builder, open_files, refused
from tests.unit.files.elf.test_elf import libc
from tests.unit.references import addresses_in_functions, open_elf, target_file
from tracelloc.architecture import native
from tracelloc.architecture.aarch64 import AARCH64
from tracelloc.architecture.x86_64 import X86_64
from tracelloc.files.cfi.module import Cfi
from tracelloc.files.elf.plt import plt_functions
from tracelloc.files.machinecode.codepaths import CodeReader
from tracelloc.record.worker import client, questions, zygote
from tracelloc.record.worker.client import FileReadError, FileWorker
from tracelloc.record.worker.codefilereader import FunctionExits
from tracelloc.record.worker.questions import Descriptor
from tracelloc.record.worker.targetfile import WorkerFile
from tracelloc.record.worker.unwindtables import UnwindTables
from tracelloc.system.confined import CONFINE, NOBODY, OWN_USERS

Open = Callable[[Path], WorkerFile]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileWorker]:
    forks = zygote.Zygote()
    monkeypatch.setattr(zygote, "SCRIPT", faulty_script)
    monkeypatch.setattr(client, "ZYGOTE", forks)
    worker = FileWorker("names")
    yield worker
    worker.close()
    forks.close()


@pytest.fixture
def opened(worker: FileWorker) -> Open:
    return lambda path: WorkerFile(worker, os.dup(open_elf(path).descriptor()), str(path))


@pytest.fixture
def program(builder: Builder) -> Path:
    return builder.cpp("chain", "-O2", "-g")


def fault(program: Path, directory: Path, code: str) -> Path:
    return add_fault(program, code, directory / f"fault-{time.monotonic_ns()}")


def pid_of(worker: FileWorker) -> int:
    return worker._process.pid


def test_answers_are_those_of_the_readers(program: Path, opened: Open) -> None:
    for path in (program, libc()):
        file, elf = target_file(path), open_elf(path)
        found = elf.find_functions(["malloc", "main"])
        for address in chain.from_iterable(found.values()):
            exits = CodeReader(elf).exits(address)
            assert file.exits(address) == FunctionExits(sorted(exits.rets), exits.trouble)
            assert file.function_at(address + 1) == elf.symbols.find(address + 1).name
        stubs = {address: name for address, _, name in plt_functions(elf)}
        assert [each.name for each in opened(path).symbols([*stubs])] == [*stubs.values()]
        tables, cfi = UnwindTables(file), Cfi(elf)
        sites, rows = cfi.all_rows(1 << 20)
        assert len(sites) > 10
        found = tables.all_rows(1 << 20)
        assert (found[0].tolist(), found[1].tolist()) == (sites.tolist(), rows.tolist())
        assert (tables.covered_share, tables.trouble) == (cfi.covered_share, None)
        some = sites[:: max(1, len(sites) // 50)]
        for ahead in (False, True):
            assert tables.rows(some, ahead=ahead).tolist() == cfi.rows(some).tolist()
        for site in some.tolist():
            assert tables.row(site) == cfi.row(site)
            assert tables.is_start(site) == cfi.is_start(site)
        tables.note_passed(some[3:])
        tables.note_passed(some)
        assert tables.passed_rows[0].tolist() == some.tolist()
        assert tables.passed_rows[1].tolist() == cfi.rows(some).tolist()
        tables.close()
        file.close()


NUMBERS = {
    X86_64: {
        "tgkill": 234, "pidfd_send_signal": 424, "connect": 42, "unshare": 272, "setns": 308,
        "clone": 56, "vfork": 58, "clone3": 435, "openat2": 437, "setrlimit": 160,
        "prlimit64": 302, "prctl": 157, "perf_event_open": 298, "mount": 165, "add_key": 248,
        "userfaultfd": 323, "setuid": 105, "another table": 0x40000000 + 39,
    },
    AARCH64: {
        "tgkill": 131, "pidfd_send_signal": 424, "connect": 203, "unshare": 97, "setns": 268,
        "clone": 220, "clone3": 435, "openat2": 437, "setrlimit": 164, "prlimit64": 261,
        "prctl": 167, "perf_event_open": 241, "mount": 40, "add_key": 217, "userfaultfd": 282,
        "setuid": 146,
    },
}  # fmt: skip
# Calls that the machine does not have.
MISSING = {X86_64: (), AARCH64: ("vfork", "use another table")}
FORBIDDEN = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
numbers = %(numbers)r
def call(name, *arguments):
    result = libc.syscall(ctypes.c_long(numbers[name]), *map(ctypes.c_long, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    if name in ("clone", "vfork", "clone3") and not result:
        os._exit(0)
attempts = {
    "kill another process": lambda: os.kill(%(sleeper)d, 15),
    "kill its own": lambda: os.kill(os.getpid(), 0),
    "signal by a thread": lambda: call("tgkill", %(sleeper)d, %(sleeper)d, 15),
    "signal by a descriptor": lambda: call("pidfd_send_signal", descriptor, 15, 0, 0),
    "connect": lambda: call("connect", 0, 0, 0),
    "make a socket": lambda: socket.socket(socket.AF_UNIX),
    "make an abstract socket": lambda: socket.socket(socket.AF_UNIX).connect("\\0x"),
    "make a pair": lambda: socket.socketpair(),
    "make a user namespace": lambda: call("unshare", 0x10000000),
    "enter a namespace": lambda: call("setns", descriptor, 0),
    "fork": os.fork,
    "fork as the zygote does": lambda: call("clone", 0x8011, 0, 0, 0, 0),
    "vfork": lambda: call("vfork"),
    "fork by clone3": lambda: call("clone3", 0, 0),
    "begin a thread": lambda: __import__("_thread").start_new_thread(print, ()),
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "truncate": lambda: os.truncate("%(file)s", 0),
    "truncate by a descriptor": lambda: os.ftruncate(descriptor, 0),
    "read a file": lambda: os.open("%(file)s", os.O_RDONLY),
    "read by openat2": lambda: call("openat2", -100, 0, 0, 24),
    "remove a file": lambda: os.unlink("%(file)s"),
    "change permissions": lambda: os.chmod("%(file)s", 0),
    "change limits": lambda: call("setrlimit", 7, 0),
    "limit others": lambda: call("prlimit64", %(sleeper)d, 7, 0, 0),
    "lose its limits": lambda: call("prctl", 38, 0, 0, 0, 0),
    "find what threads do": lambda: call("perf_event_open", 0, 0, -1, -1, 0),
    "use another table": lambda: call("another table"),
    "mount": lambda: call("mount", 0, 0, 0, 0, 0),
    "keep a key": lambda: call("add_key", 0, 0, 0, 0, 0),
    "catch page faults": lambda: call("userfaultfd", 0),
    "change its user": lambda: call("setuid", 0),
}
found = []
for name, attempt in attempts.items():
    if name in %(missing)r:
        continue
    try:
        attempt()
        found.append([name + ": done", 0, 0])
    except OSError as error:
        found.append([name + ": " + str(error.errno), 0, 0])
    except RuntimeError:
        found.append([name + ": no thread", 0, 0])
"""


def test_what_a_file_that_takes_it_over_may_call(
    program: Path, opened: Open, tmp_path: Path
) -> None:
    """Nothing that reaches other processes, sockets or files; EPERM says who refuses."""
    target = tmp_path / "kept"
    target.write_bytes(b"kept")
    target.chmod(0o666)
    machine = native()
    count = len(re.findall(r'^    "', FORBIDDEN, re.MULTILINE)) - len(MISSING[machine])
    with background("sleep", "60", stdin=subprocess.DEVNULL) as sleeper:
        code = FORBIDDEN % {
            "sleeper": sleeper.pid, "file": target, "numbers": NUMBERS[machine],
            "missing": MISSING[machine],
        }  # fmt: skip
        answers = opened(fault(program, tmp_path, code)).symbols([0x1000] * count)
        assert sleeper.poll() is None
    names = {answer.name for answer in answers if answer is not None}
    assert len(names) == count
    # As on kernels that don't have them, so that the C library does without.
    for name in {"fork by clone3", "use another table"} - {*MISSING[machine]}:
        names.remove(f"{name}: {errno.ENOSYS}")
    names.remove("begin a thread: no thread")
    assert [name for name in names if not name.endswith(f": {errno.EPERM}")] == []
    assert target.read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("ptrace", "16, 1, 0, 0"), ("process_vm_readv", "1, 0, 0, 0, 0, 0"),
     ("process_vm_writev", "1, 0, 0, 0, 0, 0"), ("bpf", "0, 0, 0"), ("io_uring_setup", "1, 0"),
     ("open_by_handle_at", "0, 0, 0"), ("finit_module", "0, 0, 0")],
)  # fmt: skip
def test_what_only_an_attack_calls_ends_it(
    program: Path, worker: FileWorker, opened: Open, tmp_path: Path, name: str, arguments: str
) -> None:
    number = native().system_call(name)
    code = f"import ctypes; ctypes.CDLL(None).syscall({number}, {arguments})"
    with pytest.raises(FileReadError, match="was killed by signal 31"):
        opened(fault(program, tmp_path, code)).symbols([1])
    assert worker.ends == 2


IN_NAMESPACE = f"""{CONFINE}
os.write(1, b"-" if libc.unshare(0x10000000) else b".")  # CLONE_NEWUSER
os.read(0, 1)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
confine(1 << 40)
os.write(1, repr(os.getresuid() + os.getresgid()).encode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to choose from")
@pytest.mark.parametrize(
    ("count", "user"), [(0xFFFFFFFE, None), (1 << 16, NOBODY), (1, 0)], ids=["own", "nobody", "0"]
)
def test_whose_rights_it_has_in_user_namespaces(count: int, user: int | None) -> None:
    """Its own user's if there are such high numbers, else nobody's, else root's without rights."""
    command = [sys.executable, "-I", "-c", IN_NAMESPACE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        if process.stdout.read(1) != b".":
            process.kill()
            refused("a user namespace is refused")
        for kind in ("uid", "gid"):
            Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 0 {count}")
        process.stdin.write(b"g")
        found = process.stdout.read().decode()
    user = OWN_USERS + os.getpid() if user is None else user
    assert found == repr((user,) * 6)


def test_its_limits(program: Path, worker: FileWorker, opened: Open, tmp_path: Path) -> None:
    """Two filters more than this process, no processes; a user, no groups or variables of ours."""
    code = (
        "found = [[repr((os.getresuid() + os.getresgid(), os.getgroups(), len(os.environ))), 0, 0]]"
    )
    (answer,) = opened(fault(program, tmp_path, f"import os; {code}")).symbols([0x1000])
    users, groups, variables = ast.literal_eval(answer.name)
    if os.geteuid() == 0:  # only root has rights to give up
        assert (users, groups) == ((OWN_USERS + os.getpid(),) * 6, [])
    assert variables <= 2
    own = re.search(r"\nSeccomp_filters:\t(\d+)\n", Path("/proc/self/status").read_text())
    status = Path(f"/proc/{pid_of(worker)}/status").read_text()
    assert f"\nSeccomp:\t2\nSeccomp_filters:\t{int(own[1]) + 2}\n" in status
    limits = Path(f"/proc/{pid_of(worker)}/limits").read_text()
    assert re.search(r"Max processes +0 +0 ", limits)


def test_a_process_forked_off_has_no_more_rights_than_an_executed_one() -> None:
    def facts(begin: Callable[[zygote.Zygote], None]) -> object:
        forks = zygote.Zygote()
        begin(forks)
        worker = forks.fork(0)
        pid, directory = forks._process.pid, Path(f"/proc/{forks._process.pid}")
        status = (directory / "status").read_text()
        rights = re.findall(r"^(?:Uid|Gid|Groups|Seccomp|Cap|NoNew).*", status, re.MULTILINE)
        files = {each.name: each.readlink() for each in (directory / "fd").iterdir()}
        channel = str(files.pop("0")).partition("[")[0]
        found = rights, files, channel, os.getsid(pid) == pid, (directory / "cwd").readlink()
        limits = (directory / "limits").read_text()
        worker.kill()
        worker.wait(PATIENCE_S)
        forks.close()
        return found, limits

    assert facts(zygote.Zygote.fork_off) == facts(zygote.Zygote.start)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (CRASH, "was killed by signal 11"),
        ("b'x' * (8 << 30)", "needs more memory than it may have (--max-memory)"),
        ("import signal; signal.setitimer(signal.ITIMER_PROF, 0.05)\nwhile True: pass",
         "took too long"),
        ("import time; time.sleep(600)", "was ended (it has not answered for too long)"),
        ("import os; os._exit(3)", "ended with status 3"),
        ("import os; os.write(0, b'\\xff' * 100)", "its answer is too long"),
        ("import os; os.write(0, b'\\x03\\0\\0\\0' + bytes(4) + b'{]}')", "its answer is not JSON"),
        ("import os; os.write(0, b'\\x02\\0\\0\\0' + bytes(4) + b'[]')", "its answer is odd"),
    ],
    ids=["crash", "memory", "endless", "silent", "ends", "too long", "no JSON", "no answer"],
)  # fmt: skip
def test_a_file_that_ends_it(
    program: Path, worker: FileWorker, opened: Open, tmp_path: Path, code: str, why: str,
) -> None:  # fmt: skip
    """Its names are missing, which is said once; other files have theirs, it is not asked again."""
    said: list[str] = []
    worker.tell = said.append
    good, bad = opened(program), opened(fault(program, tmp_path, code))
    addresses = addresses_in_functions(program, 20)
    expected = good.symbols(addresses)
    for _ in range(3):
        worker._patience_s = 1.0 if "sleep" in code else PATIENCE_S
        with pytest.raises(FileReadError) as error:
            bad.symbols(addresses)
        assert why in str(error.value)
        assert good.symbols(addresses) == expected
    assert (worker.ends, worker.generation) == (2, 3)
    assert said == [f"warning: names in {bad.path} are missing: {error.value}"]


@pytest.mark.parametrize("found", ["[['name', 2, 0]]", "[[5, 0, 0]]", "[['name', 0, 0]] * 2", "7"])
def test_answers_that_cannot_be_true(
    program: Path, worker: FileWorker, opened: Open, tmp_path: Path, found: str
) -> None:
    with pytest.raises(FileReadError, match="a malformed reply to 'symbols'"):
        opened(fault(program, tmp_path, f"found = {found}")).symbols([1])
    assert worker.ends == 0


def test_what_forks_it_was_killed_by_somebody(program: Path, opened: Open) -> None:
    file = opened(program)
    file.symbols([1])
    os.kill(client.ZYGOTE._process.pid, signal.SIGKILL)
    # What there is goes on.
    assert file.symbols([1]) == [None]
    client.close_workers()
    assert file.symbols([1]) == [None]
    fork = client.ZYGOTE.fork(1 << 20)
    fork.channel.close()
    assert fork.wait(PATIENCE_S) == 0


def test_it_was_killed_by_somebody(program: Path, worker: FileWorker, opened: Open) -> None:
    """It is started again and told what it knew."""
    file = opened(program)
    addresses = addresses_in_functions(program, 20)
    decoder = file.decoder(of_debug=False)
    assert not isinstance(decoder, str)
    expected = file.symbols(addresses), decoder.chains(addresses)
    for count in range(1, 4):
        os.kill(pid_of(worker), signal.SIGKILL)
        assert (file.symbols(addresses), decoder.chains(addresses)) == expected
        assert worker.ends == count


def test_it_is_given_up(program: Path, worker: FileWorker, opened: Open, tmp_path: Path) -> None:
    said: list[str] = []
    worker.tell = said.append
    path = fault(program, tmp_path, CRASH)
    for _ in range(client.MOST_ENDS // 2):
        with pytest.raises(FileReadError, match="was killed"):
            opened(path).symbols([1])
    for _ in range(2):
        with pytest.raises(FileReadError, match="has ended 8 times"):
            opened(program).symbols([1])
    assert worker.generation == client.MOST_ENDS
    ends = "names are no longer read: the process that reads them has ended 8 times"
    assert said[-1] == f"warning: {ends}"
    assert len(said) == client.MOST_ENDS // 2 + 1


def test_it_may_be_closed_in_the_middle_of_an_answer(
    program: Path, worker: FileWorker, opened: Open, tmp_path: Path
) -> None:
    code = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'asleep'); time.sleep(600)"
    file = opened(fault(program, tmp_path, code))
    failures: list[str] = []

    def ask() -> None:
        with pytest.raises(FileReadError) as error:
            file.symbols([1])
        failures.append(str(error.value))

    asking = threading.Thread(target=ask)
    asking.start()
    while worker._process is None or (
        Path(f"/proc/{pid_of(worker)}/comm").read_text() != "asleep\n"
    ):
        time.sleep(0.01)
    worker.close()
    asking.join(60)
    assert len(failures) == 1
    assert worker.ends == 0
    # It is there again when it is needed.
    assert opened(program).symbols([0]) == [None]


def test_foreign_files(builder: Builder, worker: FileWorker, opened: Open, tmp_path: Path) -> None:
    """A 32-bit one: what reads those can't be imported there."""
    data = bytearray(builder.c("chain").read_bytes())
    data[4] = 1
    (tmp_path / "foreign").write_bytes(data)
    descriptor = os.open(tmp_path / "foreign", os.O_RDONLY)
    with pytest.raises(FileReadError, match="another kind of machine"):
        WorkerFile(worker, descriptor, "/foreign").symbols([1])
    os.close(descriptor)
    assert worker.ends == 0


def test_files_are_closed(program: Path, worker: FileWorker, opened: Open) -> None:
    for _ in range(20):
        file = opened(program)
        file.symbols([1])
        file.close()
    assert open_files(pid_of(worker)).count(str(program)) <= 1


def held(descriptor: int) -> list[int]:
    """Our descriptors of the same open file, itself included."""
    numbers = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
    same = []
    for number in numbers:
        with contextlib.suppress(OSError):  # another thread has closed it
            if os.path.samestat(os.fstat(number), os.fstat(descriptor)):
                same.append(number)
    return same


def test_messages_of_any_size() -> None:
    one, other = socket.socketpair()
    with one, other:
        text, data = {"text": "\ud800\x00é" * 1000}, os.urandom(3 << 20)
        thread = threading.Thread(target=questions.send, args=(one, [text, data]))
        thread.start()
        assert questions.receive(other, 60) == ([text, len(data)], data)
        thread.join()
        descriptor = os.memfd_create("sent")
        questions.send(one, [Descriptor(descriptor), Descriptor(descriptor)])
        message, _, received = questions.receive_question(other)
        assert message == [0, 1]
        assert len(received) == 2
        assert all(os.path.samestat(os.fstat(descriptor), os.fstat(each)) for each in received)
        # What does not expect descriptors gets none.
        questions.send(one, Descriptor(descriptor))
        questions.receive(other, 60)
        assert sorted(held(descriptor)) == sorted([descriptor, *received])
        for each in (descriptor, *received):
            os.close(each)
