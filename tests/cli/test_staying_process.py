"""Commands as forks of a process that stays between them."""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tvm_sched.cli import staying_process
from tvm_sched.errors import InputError
from tvm_sched_bench.testing import random_problem

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="processes stay on Linux only")


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
