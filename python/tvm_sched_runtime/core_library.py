"""Find and load ``libtvm_sched.so``, the C++ half of the package.

It needs ``tvm_ffi`` alone: the library registers its functions there, and TVM, if it is installed,
sees the same registry.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .startup import ffi

_FILE_NAME = "libtvm_sched.so"
_OVERRIDE = "TVM_SCHED_LIBRARY"


def library_path() -> Path:
    """Return the path of ``libtvm_sched.so``.

    The environment variable ``TVM_SCHED_LIBRARY`` replaces the file of the package, for example by
    a build with a sanitizer.

    Raises
    ------
    FileNotFoundError
        The library is missing; the message says how to build it.
    """
    override = os.environ.get(_OVERRIDE)
    path = Path(override) if override else Path(__file__).parent / "_lib" / _FILE_NAME
    if not path.is_file():
        source = f"the environment variable {_OVERRIDE}" if override else "the package"
        raise FileNotFoundError(
            f"{path}, which {source} names, does not exist. In a checkout, build it with "
            "`python setup.py build_ext --inplace` or `pip install -e .`; "
            "an installed package brings it."
        )
    return path


@functools.cache
def load_library() -> Any:
    """Load ``libtvm_sched.so`` once and keep it loaded; return its ``tvm_ffi`` module."""
    tvm_ffi = ffi()
    # Keeps KeyboardInterrupt as such when it passes from a Python kernel through C++.
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    tvm_ffi.register_error("SystemExit", SystemExit)  # of runs that `_end_runs` cancels
    module = tvm_ffi.load_module(library_path(), keep_module_alive=True)
    if (stop_runs := tvm_ffi.get_global_func("tvm_sched.stop_runs", allow_missing=True)) is not None:
        atexit.register(_end_runs, stop_runs)
    return module


def _end_runs(stop_runs: Callable[[], int], seconds: float = 5.0) -> None:
    """Cancel the runs of daemon threads at exit, since the interpreter would stop their threads in the middle.

    It waits at most ``seconds`` for a kernel that hangs.
    """
    deadline = time.monotonic() + seconds
    while stop_runs() and time.monotonic() < deadline:
        time.sleep(0.005)


def function(name: str) -> Callable[..., Any]:
    """Return a function that the library registers, such as ``"tvm_sched.make_module"``."""
    load_library()
    registered = ffi().get_global_func(name, allow_missing=True)
    if registered is None:
        raise RuntimeError(
            f"{library_path()} registers no function {name!r}. It is older than this Python package, or was built by "
            "`make demo`, which leaves parts out: build it with `make build`."
        )
    return registered
