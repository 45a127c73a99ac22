"""What is written beside its place: removed in the end, or by the next writer where its process was killed."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from tvm_sched_runtime.files import exchange, folder_beside, write_atomically

KILLED = """
import os, sys
from pathlib import Path
from tvm_sched_runtime.files import folder_beside
with folder_beside(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print(folder.name, flush=True)
    os._exit(9)
"""


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    target = tmp_path / "out.[json]"
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], capture_output=True, text=True, check=False)
    assert (tmp_path / done.stdout.strip() / "half").exists()
    other = tmp_path / ".out.[json].another-host-1.x"
    other.mkdir()
    with folder_beside(target) as mine:
        write_atomically(target, b"whole")  # another of the same process at work
        assert mine.is_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == [other.name, target.name]
    assert target.read_bytes() == b"whole"


def test_exchange_of_folders(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "said").write_text(name)
    exchange(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old" / "said").read_text() == "new"
    assert (tmp_path / "new" / "said").read_text() == "old"
    with pytest.raises(OSError, match="No such file"):
        exchange(tmp_path / "new", tmp_path / "nothing")


def _write(arguments):
    path, n = arguments
    for _ in range(50):
        write_atomically(path, bytes([n]) * 10_000)


def test_several_processes_write_one_file(tmp_path):
    target = tmp_path / "shared"
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        done = pool.map_async(_write, [(target, n) for n in range(3)])
        while not done.ready():
            if target.exists():
                assert len(set(target.read_bytes())) == 1, "a mixture of two"
                assert target.stat().st_size == 10_000
        done.get()
    assert os.listdir(tmp_path) == ["shared"]
