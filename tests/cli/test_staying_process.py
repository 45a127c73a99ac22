"""Commands as forks of a process that stays between them."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tvm_sched.cli import staying_process
from tvm_sched.errors import InputError
from tvm_sched_bench.testing import random_problem


def has_pidfd():
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


pytestmark = pytest.mark.skipif(
    not has_pidfd(), reason="processes stay only where Linux gives descriptors of processes"
)


@pytest.fixture(autouse=True)
def handled_signals():
    """Handle the signals that a shell lets a command in the background ignore."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in staying_process._PASSED_ON}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Commands:
    """Commands that share a staying process, which no other test sees."""

    def __init__(self, folder):
        self.folder = folder
        self.program = folder / "tvm-sched"  # as the installed command, it is the same in all folders
        self.program.write_text("from tvm_sched.cli import main\n\nmain()\n")
        self.environment = {**os.environ, "TVM_SCHED_STAY": "60", "TMPDIR": str(folder)}

    def start(self, *arguments, **options):
        command = [sys.executable, str(self.program), *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment, **(pipes | options))

    def call(self, *arguments, **options):
        with self.start(*arguments, **options) as process:
            out, error = process.communicate(timeout=120)
        return process.returncode, out, error

    def staying(self):
        """The processes that stay, without their forks."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes().decode().split("\0")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if any("staying_process import serve" in word and str(self.folder) in word for word in line):
                found[int(folder.name)] = parent
        return [process for process, parent in found.items() if parent not in found]

    def forks(self):
        """Pages that ended forks of the staying process have touched; it grows with each."""
        (process,) = self.staying()
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[8])


@pytest.fixture
def commands():
    with tempfile.TemporaryDirectory(prefix="stay", ignore_cleanup_errors=True) as folder:
        made = Commands(Path(folder))
        yield made
        for process in made.staying():
            os.kill(process, signal.SIGKILL)


def timeless(text):
    """A JSON document without the time that its method took, and the names of files."""
    return re.sub(r'"(seconds|schedule)": [^,\n]*', "", text)


def ends(process, seconds=60):
    """Whether a process ends."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_commands_are_forks_of_one_process_and_do_what_they_do_alone(commands, tmp_path):
    random_problem(1, 12, devices=2, memory="generous").save(tmp_path / "p.json")
    asked = ["schedule", "p.json", "--scheduler", "heft", "--json", "-o"]
    plain = subprocess.run(
        [sys.executable, commands.program, *asked, "alone.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first = commands.call(*asked, "first.json", cwd=tmp_path)
    pages = commands.forks()
    (tmp_path / "other").mkdir()
    random_problem(1, 12, devices=2, memory="generous").save(tmp_path / "other" / "p.json")
    second = commands.call(*asked, "second.json", cwd=tmp_path / "other")
    assert commands.forks() > pages
    assert first[0] == second[0] == 0
    assert timeless(first[1]) == timeless(second[1]) == timeless(plain.stdout)
    written = [tmp_path / "alone.json", tmp_path / "first.json", tmp_path / "other" / "second.json"]
    assert len({timeless(file.read_text()) for file in written}) == 1
    wrong = commands.call("schedule", "p.json", "--scheduler", "hefty", cwd=tmp_path)
    assert wrong[0] == 2
    assert "hefty" in wrong[2]
    status, _, said = commands.call("cache", "clear")
    assert status == 0
    assert "1 processes that stayed" in said


def searching(commands, tmp_path):
    """A command that searches, and a search that goes on until it is stopped."""
    random_problem(1, 150, devices=4, memory="generous").save(tmp_path / "p.json")
    options = ["--time-limit", 1000, "--option", "work=1000", "-o", tmp_path / "s.json"]
    process = commands.start("schedule", tmp_path / "p.json", *options)
    line = process.stderr.readline()
    while "annealing" not in line:
        line = process.stderr.readline()
        assert line, "it ended before it searched"
    return process


def test_ctrl_c_reaches_the_command(commands, tmp_path):
    with searching(commands, tmp_path) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0  # with the best schedule so far
    assert (tmp_path / "s.json").exists()


def test_the_command_ends_with_its_caller_and_the_caller_with_the_process(commands, tmp_path):
    with searching(commands, tmp_path) as process:
        (staying,) = commands.staying()
        children = Path(f"/proc/{staying}/task/{staying}/children").read_text().split()
        process.kill()
        assert children
        assert all(ends(int(child)) for child in children)
    with searching(commands, tmp_path) as process:
        (staying,) = commands.staying()
        os.kill(staying, signal.SIGKILL)
        assert "ended by SIGKILL" in process.communicate(timeout=60)[1]
    assert process.returncode == 1


@pytest.mark.parametrize("text", ["ten", "-1", "nan", "1e9"])
def test_a_wrong_time(text, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_STAY", text)
    with pytest.raises(InputError, match="number of seconds from 0"):
        staying_process.seconds_to_stay()


def test_only_a_command_of_the_same_kind_finds_the_process(monkeypatch):
    before = staying_process._key()
    monkeypatch.setenv("COLUMNS", "77")
    assert staying_process._key() == before
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "77")
        assert staying_process._key() != before
    with monkeypatch.context() as patch:
        patch.setattr(staying_process, "_version", lambda path: (path.name == "registration.py", 0))
        assert staying_process._key() != before
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, "/elsewhere"])
        assert staying_process._key() != before
    assert staying_process._key() == before


def test_a_folder_that_others_can_enter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"tvm-sched-stay-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    assert staying_process.run_in_fork(60) is None
    assert not list(folder.iterdir())


SERVER = """
import os, resource, signal, sys
from tvm_sched import cli
from tvm_sched.cli import staying_process

def main():
    kind = sys.argv[1]
    log = os.open("log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(log, b"+")
    status = signal.sigwait({signal.SIGINT}) if kind == "interrupted" else int(kind)
    os.write(log, b"-")
    os._exit(status)

def fork(real=os.fork):
    if os.path.exists("no-process"):
        raise BlockingIOError
    return real()

cli.main, os.fork = main, fork
if os.path.exists("open-files"):
    limit = int(open("open-files").read())
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
staying_process.serve(int(sys.argv[1]), "address")
"""
STARTED = b"started\n"


class Server:
    """A staying process with commands that end with a given status, or with the number of Ctrl-C."""

    def __init__(self, folder):
        self.folder = folder
        self.address = str(folder / "address")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.address)
            listening.listen()
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(listening.fileno())], cwd=folder, pass_fds=[listening.fileno()]
            )

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(self.address)
        return connection

    def ask(self, kind, signals=b""):
        connection = self.connect()
        asked = {"arguments": ["tvm-sched", kind], "folder": str(self.folder), "umask": 0o22, "seconds": 60}
        with open(os.devnull) as nothing:
            socket.send_fds(connection, [b"."], [nothing.fileno()] * 3)
        connection.sendall(json.dumps({**asked, "environment": dict(os.environ)}).encode() + b"\n" + signals)
        return connection

    @contextlib.contextmanager
    def stopped(self):
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        yield
        self.process.send_signal(signal.SIGCONT)

    def children(self):
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def answer(connection):
    with connection:
        return b"".join(iter(lambda: connection.recv(64), b""))


def ended_with(status):
    return STARTED + str(status << 8).encode()


def test_ctrl_c_behind_the_request_reaches_the_command(server):
    assert answer(server.ask("interrupted", bytes([signal.SIGINT]))) == ended_with(signal.SIGINT)


def test_neither_a_lost_caller_nor_a_lack_of_processes_ends_the_commands_of_others(server):
    others = server.ask("interrupted")
    assert others.recv(64) == STARTED
    with server.stopped():
        server.ask("interrupted").close()
    (server.folder / "no-process").touch()
    assert answer(server.ask("3")) == b""  # so the caller runs it
    (server.folder / "no-process").unlink()
    assert answer(server.ask("3")) == ended_with(3)
    with server.stopped(), server.connect() as connection:
        connection.sendall(b'{"end": true}\n')
    others.sendall(bytes([signal.SIGINT]))
    assert STARTED + answer(others) == ended_with(signal.SIGINT)
    assert server.process.wait(60) == 0


def test_callers_wait_where_open_files_are_scarce(tmp_path):
    (tmp_path / "open-files").write_text(str(staying_process._OTHER_USES + 2 * staying_process._FILES))
    made = Server(tmp_path)
    try:
        two = [made.ask("interrupted") for _ in range(2)]
        assert [each.recv(64) for each in two] == [STARTED] * 2
        log = tmp_path / "log"
        while not log.exists() or log.read_text() != "++":  # both run
            time.sleep(0.001)
        further = [made.ask("3") for _ in range(40)]
        for each in two:
            each.sendall(bytes([signal.SIGINT]))
            assert STARTED + answer(each) == ended_with(signal.SIGINT)
        assert [answer(each) for each in further] == [ended_with(3)] * 40
        done = log.read_text()
        assert done.count("+") == 42
        assert max(done[:end].count("+") - done[:end].count("-") for end in range(len(done))) == 2
    finally:
        made.process.kill()
        made.process.wait()


def test_a_command_that_a_stopped_process_does_not_begin_runs_by_itself(server, monkeypatch, tmp_path):
    monkeypatch.setattr(staying_process, "_START_PATIENCE", 0.05)
    monkeypatch.setattr(staying_process, "_connect", lambda address: server.connect())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["tvm-sched", "interrupted"])
    with server.stopped():
        assert staying_process.run_in_fork(60) is None
    assert answer(server.ask("3")) == ended_with(3)
    assert server.children() == [], "it is not begun later"


def test_an_event_of_an_ended_command_is_not_taken_for_one_of_another(server):
    first = server.ask("interrupted")
    assert first.recv(64) == STARTED
    assert answer(server.ask("3")) == ended_with(3)  # by now the process waits for the first one, too
    (command,) = server.children()
    with server.stopped():
        os.kill(int(command), signal.SIGKILL)
        assert ends(int(command))
        second = server.ask("3")  # its connection gets the number of the first one's
        first.sendall(bytes([signal.SIGINT]))
    with first:
        assert first.recv(64) == str(int(signal.SIGKILL)).encode()
    assert answer(second) == ended_with(3)


@pytest.fixture
def asked_of(tmp_path, monkeypatch):
    """The server's side of the connection on which `run_in_fork` asks."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(staying_process, "_connect", lambda address: ours)
    monkeypatch.setattr(sys, "argv", ["tvm-sched", "compile"])
    with theirs:
        yield theirs


def interrupted(connection, answers):
    """Answer a request, and close with a Ctrl-C unread."""
    _, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    for each in files:
        os.close(each)
    while not connection.recv(1 << 16).endswith(b"\n"):
        pass
    connection.sendall(answers)
    os.kill(os.getpid(), signal.SIGINT)
    select.select([connection], [], [], 60)
    connection.close()


@pytest.mark.parametrize(("told", "status"), [(b"0", 0), (b"512", 512), (b"", signal.SIGKILL)])
def test_a_command_that_was_started_is_not_run_again(asked_of, told, status):
    other = threading.Thread(target=interrupted, args=(asked_of, STARTED + told))
    other.start()
    assert staying_process.run_in_fork(60) == status
    other.join()


def test_ctrl_c_ends_a_command_that_was_not_started(asked_of):
    other = threading.Thread(target=interrupted, args=(asked_of, b""))
    other.start()
    with pytest.raises(KeyboardInterrupt):
        staying_process.run_in_fork(60)
    other.join()


def test_ignored_signals_stay_ignored():
    before = staying_process._key()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with staying_process._signals():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    assert staying_process._key() != before


def test_blocked_signals_count():
    before = staying_process._key()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    assert staying_process._key() != before
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert staying_process._key() == before


def test_only_modules_of_covered_folders_are_kept(tmp_path, monkeypatch):
    (tmp_path / "of_the_user.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    import of_the_user

    known = set(sys.modules) - {"of_the_user", "json", "pytest", "tvm_sched.errors"}
    assert set(staying_process._imported(known)) == {"json", "pytest", "tvm_sched.errors"}
    del sys.modules[of_the_user.__name__]


def test_a_module_that_ends_its_process_at_import(tmp_path, monkeypatch):
    (tmp_path / "script_that_ends.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("gc.freeze", lambda: None)
    staying_process._import(["script_that_ends"])


def test_a_system_without_descriptors_of_processes(monkeypatch):
    def forbidden(process):
        raise PermissionError

    monkeypatch.setenv("TVM_SCHED_STAY", "60")
    assert staying_process.seconds_to_stay() == 60
    monkeypatch.setattr(os, "pidfd_open", forbidden)
    assert staying_process.seconds_to_stay() == 0


@pytest.mark.parametrize("name", ["/dev/fd/63", "--costs=/proc/self/fd/12"])
def test_a_command_with_further_open_files_runs_alone(monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["tvm-sched", "compile", name])
    monkeypatch.setattr(staying_process, "_connect", lambda address: pytest.fail("it asked"))
    assert staying_process.run_in_fork(60) is None


def test_a_stopped_process_does_not_hold_the_others_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(staying_process, "_PATIENCE", 0.01)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(staying_process._folder() / "silent.socket"))
        silent.listen()
        assert staying_process.end_all() == 0
