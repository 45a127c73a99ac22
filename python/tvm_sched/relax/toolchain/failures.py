"""Error messages for failures of TVM on a model that was read: model, pass or kernel, reason, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from ...errors import TvmSchedError, UnsupportedModelError

_ADVICE = (
    "change that part of the model (its data type, layout or operator), export it in another way, or compile the rest "
    "without it"
)
_OF_TVM = tuple(str(Path(package.__file__).parent) for package in (tvm, tvm_ffi))
_LONGEST = 300


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Make errors that TVM raises in the block `UnsupportedModelError`s, which say where.

    Blocks may be nested: what an inner one raised is put behind ``where``. Errors of this package, of the system and of
    what users registered (schedulers, cost models) remain as they are.

    Parameters
    ----------
    where : str
        For instance ``"model 'bert'"`` or ``"kernel 'fused_add'"``.
    """
    passes = _Passes()
    try:
        with _recording_passes(passes):
            yield
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{where}: {error}") from error.__cause__
    except (TvmSchedError, Warning, MemoryError, OSError):
        raise
    except Exception as error:
        if not _is_of_tvm(error):
            raise
        doing = f"its pass {passes.names[-1]}" if passes.names else "it"
        raise UnsupportedModelError(
            f"{where}: TVM cannot compile this: {doing} failed with {type(error).__name__}: {_first_line(error)}; {_ADVICE}"
        ) from error


@tvm.instrument.pass_instrument
class _Passes:
    """Which passes are at work, the innermost last."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        self.names.append(str(info.name))

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        while self.names and self.names.pop() != str(info.name):  # one that failed, and whose error was caught, is left
            pass


def _recording_passes(passes: _Passes) -> Any:
    """A context like the current one, in which passes are noted; instruments that are there already are left alone."""
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
    """Whether TVM's own Python code, or what it calls in C++, raised an error: by the last Python file that it passed."""
    files, trace = [], error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    last = next((file for file in reversed(files) if file.endswith(".py")), "")
    # What its C++ checks may be called by us directly.
    return last.startswith(_OF_TVM) or isinstance(error, tvm.error.InternalError)


def _first_line(error: BaseException) -> str:
    """The first words of an error, on one line."""
    text = " ".join(str(error).split()) or "no message"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
