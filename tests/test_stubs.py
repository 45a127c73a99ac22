"""The declarations of C++ objects in Python are those that ``tvm-ffi-stubgen`` generates (``make stubs``)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_sched_runtime.core_library import library_path

PYTHON = Path(__file__).parents[1] / "python"
MARK = "tvm-ffi-stubgen(begin)"


def stubs():
    found = [file for file in sorted(PYTHON.rglob("*.py")) if MARK in file.read_text(encoding="utf-8")]
    assert len(found) == 3, found
    return found


def check(files):
    command = [Path(sys.executable).with_name("tvm-ffi-stubgen"), "--check", "--dlls", library_path(), *files]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)


def test_declarations_are_those_of_the_library():
    result = check(stubs())
    assert result.returncode == 0, f"run 'make stubs': {result.stdout}{result.stderr}"


@pytest.mark.thorough
def test_an_altered_declaration_is_noticed(tmp_path):
    copy = Path(shutil.copy(stubs()[0], tmp_path))
    copy.write_text(copy.read_text(encoding="utf-8").replace(": int", ": str", 1), encoding="utf-8")
    assert check([copy]).returncode == 1
