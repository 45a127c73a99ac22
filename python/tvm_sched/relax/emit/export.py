"""Write an artifact for `tvm_sched_runtime.load`: an executable and its external parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import folder_beside
from tvm_sched_runtime.runtime import ScheduledModule, write_parameters
from tvm_sched_runtime.runtime.artifact import move_artifact, seal
from tvm_sched_runtime.runtime.module import scheduled_modules

EMBED_LIMIT = 16 << 20
"""Parameters of at most this many bytes in all are embedded by default."""


def export(executable: Any, parameters: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Path]:
    """Write an executable, and its external parameters to a ``.safetensors`` file of the same stem beside it.

    Both are written to a temporary folder and moved when they are complete, so a failure leaves the old files. Return the
    files written, the library first.

    Parameters
    ----------
    executable : tvm.runtime.Executable
    parameters : mapping of str to numpy.ndarray
        Values that the executable needs but does not hold.
    path
        Ends in ``.so``.

    Raises
    ------
    InputError
        The name does not end in ``.so``, or the files cannot be written there.
    """
    target = Path(path)
    if target.suffix != ".so":
        raise InputError(f"{target}: the name of an artifact must end in .so")
    if not target.parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
    try:
        with folder_beside(target) as folder:
            library = folder / target.name
            executable.export_library(str(library))
            beside = library.with_suffix(".safetensors") if parameters else None
            seal(library, write_parameters(beside, parameters, _in_order(executable)) if beside else None)
            return move_artifact(library, beside, target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None


def _in_order(executable: Any) -> list[str]:
    """Return the parameters in the order in which the first plan's steps load them, queue by queue."""
    queues: dict[int, list[str]] = {}
    plan = ScheduledModule(scheduled_modules(executable)[0]).plans()[0]
    for step in plan["steps"]:
        for buffer in step["inputs"]:
            source = plan["buffers"][buffer]["source"]
            if source["kind"] == "parameter":
                queues.setdefault(step["queue"], []).append(plan["parameters"][source["index"]]["name"])
    return list(dict.fromkeys(name for names in queues.values() for name in names))
