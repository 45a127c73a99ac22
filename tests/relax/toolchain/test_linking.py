"""Executables are loaded by the linker alone."""

import ctypes
import subprocess

import pytest
import tvm

from relax import cases
from relax.cases import SQUARE
from relax.compare import assert_same, run
from tvm_sched.relax import compile
from tvm_sched.relax.toolchain import linking


@pytest.fixture
def called(monkeypatch):
    """First words of the programs that are started."""
    names, begin = [], subprocess.Popen.__init__

    def start(process, command, *given, **more):
        names.append(command[0].rpartition("/")[2])
        begin(process, command, *given, **more)

    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    return names


def test_running_a_model_needs_no_compiler(called):
    found = compile(cases.Branches, "cpu2", "single").run(SQUARE)
    assert set(called) == {"ld"}
    assert_same([found], [run(tvm.compile(cases.Branches, "llvm"), SQUARE)])


def test_a_source_needs_a_compiler(called, tmp_path):
    (tmp_path / "lib0.c").write_text('extern "C" int one() { return 1; }')
    linking.create_library(str(tmp_path / "library.so"), [str(tmp_path / "lib0.c")])
    assert ctypes.CDLL(str(tmp_path / "library.so")).one() == 1
    assert "ld" not in called


def test_without_a_linker_tvm_loads_it(monkeypatch):
    monkeypatch.setattr(linking, "linker_path", lambda: None)
    module = compile(cases.Branches, "cpu1", "single")
    assert_same([module.run(SQUARE)], [run(tvm.compile(cases.Branches, "llvm"), SQUARE)])
