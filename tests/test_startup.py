"""What we change in other packages works, and is still needed: a test of the last kind that fails says what to remove."""

import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tvm_sched.relax.codegen.cpu import cpu_loop_schedule

PACKAGE = {
    "__init__.py": "import late.part\nanswer = late.part.number + 1\n",
    "part.py": "number = 41\n",
    "other.py": "number = 7\n",
}


def run(tmp_path, code):
    """Output of code in a process of its own, which finds a package ``late``."""
    folder = tmp_path / "late"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    begin = "import sys\nfrom tvm_sched_runtime.startup import import_when_used\nimport_when_used('late')\n"
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", begin + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("import late; late.answer", 42),
        ("from late import answer as found; found", 42),
        ("import late.part; late.part.number", 41),
        ("from late.part import number as found; found", 41),
    ],
)
def test_first_use_imports(tmp_path, use, found):
    before, last = use.rsplit(";", 1)
    said = run(
        tmp_path, f"{before}\nprint({last.strip()}, 'late.part' in sys.modules, type(sys.modules['late']).__name__)"
    )
    assert said == [str(found), "True", "module"]


def test_a_statement_is_no_use(tmp_path):
    assert run(tmp_path, "import late\nprint('late' in sys.modules, 'late.part' in sys.modules)") == ["True", "False"]


def test_what_it_lacks_is_an_error(tmp_path):
    code = "import late\ntry:\n    late.other\nexcept AttributeError as error:\n    print(error.name)"
    assert run(tmp_path, code) == ["other"]


def test_one_finder_for_all_names(tmp_path):
    code = """
    import_when_used("late")
    import_when_used("late.other")
    print(sum(type(finder).__name__ == "_LateFinder" for finder in sys.meta_path))
    """
    assert run(tmp_path, code) == ["1"]


def test_packages_that_are_not_there_stay_so(tmp_path):
    code = """
    import_when_used("not_there")
    try:
        import not_there
    except ModuleNotFoundError as error:
        print(error.name)
    """
    assert run(tmp_path, code) == ["not_there"]


def test_modules_of_a_package(tmp_path):
    code = """
    import_when_used("late.other")
    import late.other
    before = type(sys.modules["late.other"]).__name__
    print(before, late.other.number, type(sys.modules["late.other"]).__name__)
    """
    assert run(tmp_path, code) == ["_LateModule", "7", "module"]


AS_THE_COMMAND = """
import sys
from tvm_sched_runtime.startup import import_tvm, without_backtraces, without_torch
without_backtraces()
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", AS_THE_COMMAND]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == ["True True", "tvm_ffi.registry True", "True"]


def source(package, *names):
    """The text of a file of an installed package, which is not imported."""
    return Path(find_spec(package).submodule_search_locations[0], *names).read_text()


def test_tvm_ffi_still_imports_torch():
    assert re.search(r"^ +import torch$", source("tvm_ffi", "__init__.py"), re.M), "remove without_torch"


def test_tvm_ffi_still_makes_backtraces_by_a_function_that_a_library_may_replace():
    header = source("tvm_ffi", "include", "tvm", "ffi", "c_api.h")
    assert "TVMFFIBacktrace(" in header, "remove without_backtraces and cpp/no_backtrace"


def test_onnx_ir_still_imports_sympy_at_once():
    assert re.search(r"^import sympy$", source("onnx_ir", "_core.py"), re.M), "remove import_when_used"


def test_tvm_still_lists_all_functions_for_each_module():
    body = re.search(r"def init_ffi_api.*?(?=^def )", source("tvm_ffi", "registry.py"), re.M | re.S)[0]
    assert "in list_global_func_names()" in body, "remove import_tvm"


def test_tvm_still_refuses_unknown_tags():
    from tvm.target import Target

    with pytest.raises(ValueError, match="tvm_sched/cpu200"):
        Target.__init__.__wrapped__(Target.__new__(Target), "tvm_sched/cpu200 ", None)


def test_methods_of_schedules_are_still_checked_in_python():
    checked = [name for name in vars(cpu_loop_schedule.UncheckedSchedule) if not name.startswith("_")]
    assert "split" in checked, "remove UncheckedSchedule from cpu_loop_schedule"


def test_tvm_ffi_still_has_its_functions_inlined_always():
    header = source("tvm_ffi", "include", "tvm", "ffi", "base_detail.h")
    assert "[[gnu::always_inline]]" in header, "remove always_inline=unused from cmake/TvmSchedLibrary.cmake"


def test_onednn_still_takes_functions_of_intels_runtime():
    library = Path(sys.prefix, "lib", "libdnnl.so.3")
    if not library.is_file():
        pytest.skip("oneDNN is not that of the package onednn-cpu-tbb")
    assert b"libimf.so" in library.read_bytes(), "remove cpp/kernels/intel_runtime"
