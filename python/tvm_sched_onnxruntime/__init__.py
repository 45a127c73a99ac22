"""The execution provider of tvm_sched for ONNX Runtime, a plugin library.

Examples
--------
>>> import numpy
>>> import onnxruntime
>>> import tvm_sched_onnxruntime
>>> options = onnxruntime.SessionOptions()
>>> tvm_sched_onnxruntime.add_to(options, topology="cpu2", scheduler="heft")
>>> session = onnxruntime.InferenceSession("model.onnx", options)
>>> [output.shape for output in session.run(None, {"x": numpy.ones((2, 3), "float32")})]
[(2, 2)]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import InputError

from . import claim as _claim

EP_NAME = "TvmSchedExecutionProvider"
_LIBRARY = Path(__file__).parent / "_lib" / "libtvm_sched_onnxruntime.so"

__all__ = ["EP_NAME", "add_to", "get_ep_name", "get_ep_names", "get_library_path"]


def get_library_path() -> str:
    """Return the path for ``onnxruntime.register_execution_provider_library``.

    Raises
    ------
    InputError
        The library is not there: the package was not built.

    Examples
    --------
    >>> import tvm_sched_onnxruntime
    >>> tvm_sched_onnxruntime.get_library_path().rpartition("/")[2]
    'libtvm_sched_onnxruntime.so'
    """
    if not _LIBRARY.is_file():
        raise InputError(
            f"{_LIBRARY} is missing: install the wheel tvm-sched-onnxruntime, or build it in this tree (`make plugin`)"
        )
    return str(_LIBRARY)


def get_ep_name() -> str:
    """Return the name of the execution provider.

    Examples
    --------
    >>> import tvm_sched_onnxruntime
    >>> tvm_sched_onnxruntime.get_ep_name()
    'TvmSchedExecutionProvider'
    """
    return EP_NAME


def get_ep_names() -> list[str]:
    """Return the names of all execution providers in the library.

    Examples
    --------
    >>> import tvm_sched_onnxruntime
    >>> tvm_sched_onnxruntime.get_ep_names()
    ['TvmSchedExecutionProvider']
    """
    return [EP_NAME]


def add_to(session_options: Any, **options: Any) -> None:
    """Register the library if this process has not, and let sessions with these options use the provider.

    Parameters
    ----------
    session_options : onnxruntime.SessionOptions
    options
        As for `tvm_sched_onnxruntime.claim.Settings`.

    Raises
    ------
    InputError
        A wrong option; the library is missing; or onnxruntime is too old for it.
    """
    import onnxruntime

    texts = _claim.as_texts(options)
    _claim.Settings.of(texts)
    if not hasattr(onnxruntime, "get_ep_devices"):
        raise InputError(f"onnxruntime {onnxruntime.__version__} takes no plugins: install 1.24 or later")
    if not (devices := _devices(onnxruntime)):
        try:
            onnxruntime.register_execution_provider_library("tvm_sched", get_library_path())
        except Exception as error:  # its classes have no common base
            raise InputError(f"onnxruntime {onnxruntime.__version__} refuses the library: {error}") from error
        devices = _devices(onnxruntime)
    session_options.add_provider_for_devices(devices, texts)


def _devices(onnxruntime: Any) -> list[Any]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME][:1]


_claim.offer()
