"""TVM as the command line imports it: complete, and errors say what they say without the backtrace of C++."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
from tvm_sched._library import without_backtraces, without_torch
without_backtraces()
from tvm_sched.relax.quick_import import import_tvm
with without_torch():
    tvm = import_tvm()
import tvm_ffi.registry
names = tvm_ffi.registry.list_global_func_names()
functions = [name.removeprefix("relax.transform.") for name in names if name.startswith("relax.transform.")]
print(all(hasattr(tvm.relax.transform._ffi_api, name) for name in functions if "." not in name), len(functions) > 10)
print(tvm_ffi.registry.list_global_func_names.__module__, import_tvm() is tvm)
try:
    tvm.ir.Op.get("no.such.operator")
except Exception as error:
    print("Operator no.such.operator is not registered" in str(error))
"""


def test_all_functions_are_there_and_errors_keep_their_text():
    pytest.importorskip("tvm")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["True True", "tvm_ffi.registry True", "True"]
