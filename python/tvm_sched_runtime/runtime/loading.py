"""Load artifacts with their parameters from files."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from .. import core_library
from ..checks import path_text
from ..errors import InputError
from .artifact import check_library, load_library, parameters_beside
from .machine import MachineWarning, check_threads, differences
from .module import ScheduledModule
from .parameters import NO_CHECKSUM, verify_parameters

_PARAMETERS_VARIABLE = "TVM_SCHED_PARAMETERS"
CHEAP_BYTES = 5 << 20
"""Size up to which a parameter file is compared with its checksum by default."""


def load(
    path: str | os.PathLike[str],
    parameters: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    verify: bool | None = None,
) -> ScheduledModule:
    """Load a compiled artifact and its parameters.

    Parameters
    ----------
    path
        A file of ``tvm-sched compile`` or ``export_library``.
    parameters
        The safetensors file of the external parameters. Default: the file that the environment
        variable ``TVM_SCHED_PARAMETERS`` names, else ``<stem>.safetensors`` beside the artifact.
    threads : optional
        Threads of all its CPU devices together. Default: ``TVM_SCHED_NUM_THREADS``, else the number of the
        compilation, else all cores that this process may use.
    verify : optional
        Whether to compare the parameter file with the checksum in it, which takes about as long as reading it from the
        page cache. Default: only if that takes less than 5 % of the load. The artifact itself is always compared with its
        checksum.

    Raises
    ------
    InputError
        The file is missing, incomplete, cannot be loaded or has no schedule; its parameters do not fit or are damaged; or
        this processor lacks instructions of its kernels.

    Warns
    -----
    MachineWarning
        This machine differs from the one that the artifact was compiled for; the warning has a remedy.
    UserWarning
        The parameters are to be verified, but their file has no checksum: another program or an older version wrote it.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched_runtime.runtime import load
    >>> [output.round(3).tolist() for output in load("model.so").run(numpy.ones((2, 3), "float32") / 10)]
    [[[0.7160000205039978, 0.8339999914169312], [0.7160000205039978, 0.8339999914169312]]]
    """
    file = Path(path_text("the artifact", path))
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
        if _is_cheap(loaded, Path(source)) if verify is None else verify:
            began = time.monotonic_ns()
            if not verify_parameters(Path(source)) and verify:
                warnings.warn(f"{source}: {NO_CHECKSUM}", UserWarning, stacklevel=2)
            _note("check parameters", began)
        loaded.load_parameters(source)
    loaded.prepare()
    return loaded


def open_library(file: Path) -> Any:
    """Check and load an artifact's file as a ``tvm_ffi`` module.

    Raises
    ------
    InputError
        It is missing, incomplete, or cannot be loaded.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_runtime.runtime import open_library
    >>> open_library(Path("model.so")).kind
    'relax.VMExecutable'
    """
    began = time.monotonic_ns()
    check_library(file)
    checked = time.monotonic_ns()
    core_library.load_library()
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
    core_library.function("tvm_sched.note_stage")(stage, began, time.monotonic_ns() if ended is None else ended)


def _is_cheap(loaded: ScheduledModule, parameters: Path) -> bool:
    """Return whether reading the file for its checksum is a small part of the load.

    On CPUs kernels lay out the parameters before the first run, which takes many times as long. Plans for GPUs, and those
    that read their file while they run, have to start before they have read it.
    """
    plans = loaded.plans()
    waits = any(plan["backend"] == "cuda" or any(step["kind"] == "read" for step in plan["steps"]) for plan in plans)
    return not waits and parameters.is_file() and parameters.stat().st_size <= CHEAP_BYTES


def _parameters_file(
    loaded: ScheduledModule, file: Path, explicit: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    if explicit is not None:
        return explicit
    if all(parameter["loaded"] for parameter in loaded.parameters()):
        return None
    named = os.environ.get(_PARAMETERS_VARIABLE)
    if named:
        return named
    return parameters_beside(file)
