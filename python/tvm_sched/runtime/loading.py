"""Load artifacts with their parameters from files."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from .. import _library
from ..errors import InputError
from .artifact import check_library, load_library, parameters_beside
from .machine import MachineWarning, check_threads, differences
from .module import ScheduledModule

_PARAMETERS_VARIABLE = "TVM_SCHED_PARAMETERS"


def load(
    path: str | os.PathLike[str],
    parameters: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
) -> ScheduledModule:
    """Load a compiled artifact and its parameters.

    Parameters
    ----------
    path
        What ``tvm-sched compile`` or ``export_library`` wrote.
    parameters
        The safetensors file of the external parameters. Without it the file that the environment variable
        ``TVM_SCHED_PARAMETERS`` names is taken, and else ``<stem>.safetensors`` beside the artifact.
    threads : optional
        Threads of all its CPU devices together. Without it what ``TVM_SCHED_NUM_THREADS`` says counts, else what the
        artifact was compiled for, else all cores that this process may use.

    Raises
    ------
    InputError
        If the file is not there, is cut off, cannot be loaded, holds no schedule, or its parameters do not fit; or if
        this processor lacks what its kernels need.

    Warns
    -----
    MachineWarning
        Where this machine is not what the artifact was made for, with what to do.
    """
    file = Path(path)
    check_threads(threads)
    library = open_library(file)
    try:
        loaded = ScheduledModule(library)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if threads is not None:
        loaded.set_threads(threads)
    for difference in differences(loaded.info()):
        warnings.warn(f"{file}: {difference}", MachineWarning, stacklevel=2)
    source = _parameters_file(loaded, file, parameters)
    if source is not None:
        loaded.load_parameters(source)
    loaded.prepare()
    return loaded


def open_library(file: Path) -> Any:
    """Check and load an artifact's file as a ``tvm_ffi`` module.

    Raises
    ------
    InputError
        If it is not there, is cut off, or cannot be loaded.
    """
    began = time.monotonic_ns()
    check_library(file)
    checked = time.monotonic_ns()
    _library.load_library()
    _note("check artifact", began, checked)
    _note("libraries", checked)
    opened = time.monotonic_ns()
    try:
        library = load_library(file)
    except Exception as error:
        raise InputError(f"{file}: cannot be loaded ({error})") from error
    _note("open artifact", opened)
    return library


def _note(stage: str, began: int, ended: int | None = None) -> None:
    """Note a stage of the start for `ScheduledModule.stages`, in nanoseconds of the monotonic clock, until now."""
    _library.function("tvm_sched.note_stage")(stage, began, time.monotonic_ns() if ended is None else ended)


def _parameters_file(
    loaded: ScheduledModule, file: Path, given: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    if given is not None:
        return given
    if all(parameter["loaded"] for parameter in loaded.parameters()):
        return None
    named = os.environ.get(_PARAMETERS_VARIABLE)
    if named:
        return named
    return parameters_beside(file)
