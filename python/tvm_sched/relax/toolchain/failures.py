"""Error messages for failures of TVM on an imported model: model, pass or kernel, reason, and advice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from tvm_frontends.errors import first_line
from tvm_sched_runtime.errors import TvmSchedError, UnsupportedModelError

_ADVICE = (
    "change that part of the model (its data type, layout or operator), export it differently, or compile the model "
    "without it"
)
_OF_TVM = tuple(str(Path(package.__file__).parent) for package in (tvm, tvm_ffi))
_LONGEST = 300
_DEEPEST, _FRAMES = 10_000, 5
"""Python's limit of nested calls while a model is compiled, and how many of them a nested statement takes."""


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Convert TVM's errors in the block to `UnsupportedModelError`s that begin with ``where`` (``"model 'bert'"``).

    Blocks may be nested: ``where`` is put before the message of the inner block. Errors of this package, of the system and
    of users' plug-ins (schedulers, cost models) are not changed.
    """
    passes = _Passes()
    # Kernels of many fused operators are nested statements, which our passes walk by recursion. Never lowered again, because
    # other threads may be compiling.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST))
    try:
        with _recording_passes(passes):
            yield
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{where}: {error}") from error.__cause__
    except (TvmSchedError, Warning, MemoryError, OSError):
        raise
    except Exception as error:
        if isinstance(error, RecursionError) or "maximum recursion depth" in str(error):  # TVM passes on the text only
            raise UnsupportedModelError(
                f"{where}: one of its kernels has more than {_DEEPEST // _FRAMES:,} nested statements; cut the model into "
                "parts, or export it with fewer operators on one another"
            ) from error
        if not _is_of_tvm(error):
            raise
        doing = f"its pass {passes.names[-1]}" if passes.names else "it"
        raise UnsupportedModelError(
            f"{where}: TVM cannot compile this: {doing} failed: {_shortened(first_line(error))}; {_ADVICE}"
        ) from error


@tvm.instrument.pass_instrument
class _Passes:
    """The names of the running passes, the innermost last."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        self.names.append(str(info.name))

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        while self.names and self.names.pop() != str(info.name):  # drop passes that failed and whose error was caught
            pass


def _recording_passes(passes: _Passes) -> Any:
    """Return a copy of the current context that records passes; no change if the context has instruments."""
    current = tvm.transform.PassContext.current()
    if current.instruments:
        return nullcontext()
    return tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=current.required_pass,
        disabled_pass=current.disabled_pass,
        instruments=[passes],
        config=current.config,
    )


def _is_of_tvm(error: BaseException) -> bool:
    """Whether TVM raised an error: the last Python file in the traceback is TVM's, or the error is internal to TVM."""
    files, trace = [], error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    last = next((file for file in reversed(files) if file.endswith(".py")), "")
    # This package may call TVM's C++ functions directly.
    return last.startswith(_OF_TVM) or isinstance(error, tvm.error.InternalError)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
