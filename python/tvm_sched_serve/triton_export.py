"""Write artifacts as a repository of Triton Inference Server: configuration, artifact, and what runs it there."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_sched_runtime.core_library import library_path
from tvm_sched_runtime.errors import InputError

from .datatypes import TensorType
from .repository import Repository
from .served_model import ServedModel
from .served_text import load_served
from .triton_model import ARTIFACT

_REFUSED = ("BOOL", "BF16")
_BACKENDS = {"cpp": "tvm_sched", "python": "python"}
"""Triton's name of each backend."""
_LIBRARY = "libtriton_tvm_sched.so"
_MODEL = '''"""Made by `tvm-sched export-triton`. The server's Python needs tvm-sched-runtime."""

from tvm_sched_serve.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


@dataclass(frozen=True)
class TritonOptions:
    """How Triton runs a model.

    Parameters
    ----------
    instances : int
        Runs at once: processes of the Python backend, which share the parameters through the page cache, or instances of the
        executor.
    threads : int, optional
        Threads of the CPU devices of each.
    batch_delay : float, optional
        Seconds that a request may wait for others; None joins none.
    backend : {"python", "cpp"}
        What runs the model: Triton's Python backend, with a process for each instance, or our library in the model's
        folder, within the server's process.
    libraries : sequence of Path, optional
        Folders, on the machine of the server, of the runtime's libraries that the C++ backend opens; default: those of this
        environment.
    """

    instances: int = 1
    threads: int | None = None
    batch_delay: float | None = None
    backend: str = "python"
    libraries: Sequence[Path] = ()


@dataclass(frozen=True)
class TritonModel:
    """A model that was written."""

    name: str
    versions: tuple[str, ...]
    max_batch_size: int
    """0 if requests are not joined."""


def export_triton(artifact: Path, output: Path, options: TritonOptions | None = None) -> list[TritonModel]:
    """Write an artifact, or the models of a folder as `tvm-sched serve` takes it, into a Triton repository.

    A model that is there already is replaced, as a whole.

    Raises
    ------
    InputError
        An artifact cannot be loaded, or Triton's Python backend cannot run it.
    """
    options = options or TritonOptions()
    repository = Repository(artifact)
    return [_export(name, repository.files(name), output, options) for name in repository.names()]


def configuration(model: ServedModel, options: TritonOptions) -> str:
    """Return the text of ``config.pbtxt``."""
    largest = _largest_batch(model, options)
    joins = largest > 0
    lines = [
        f"name: {json.dumps(model.name)}",
        f'backend: "{_BACKENDS[options.backend]}"',
        f"max_batch_size: {largest}",
    ]
    for kind, tensors in (("input", model.inputs), ("output", model.outputs)):
        lines += [_tensor(kind, tensor, 1 if joins else 0) for tensor in tensors]
    lines.append("version_policy { all { } }")
    lines.append(f"instance_group [ {{ count: {options.instances} kind: KIND_CPU }} ]")
    if joins:
        sizes = ", ".join(str(size) for size in model.batch_sizes if size > 1)
        preferred = f"preferred_batch_size: [ {sizes} ] " if sizes else ""
        delay = round(1e6 * (options.batch_delay or 0.0))
        lines.append(f"dynamic_batching {{ {preferred}max_queue_delay_microseconds: {delay} }}")
    parameters = {} if options.threads is None else {"threads": str(options.threads)}
    if options.backend == "cpp":
        parameters["libraries"] = ":".join(map(str, options.libraries or _library_folders()))
    for name, value in parameters.items():
        lines.append(f'parameters {{ key: "{name}" value {{ string_value: {json.dumps(value)} }} }}')
    return "\n".join(lines) + "\n"


def _export(name: str, files: dict[str, Path], output: Path, options: TritonOptions) -> TritonModel:
    loaded: list[ServedModel] = []
    for version, file in files.items():
        model = load_served(file, name, version)
        if not isinstance(model, ServedModel):
            raise InputError(f"{file}: generates text, which export-triton does not offer; use `tvm-sched serve`")
        for tensor in (*model.inputs, *model.outputs):
            if options.backend == "python" and tensor.datatype in _REFUSED:
                raise InputError(
                    f"{file}: {tensor.name!r} is {tensor.dtype}, which Triton's Python backend cannot pass by DLPack; "
                    "use --backend cpp"
                )
        loaded.append(model)
    texts = {configuration(model, options) for model in loaded}
    if len(texts) > 1:
        raise InputError(
            f"model {name!r}: its versions have different inputs, outputs or batches, and Triton has one configuration for "
            "all of them; export them under different names"
        )
    libraries = _backend_libraries() if options.backend == "cpp" else ()
    folder, new = output / name, output / f".{name}.new"
    try:
        shutil.rmtree(new, ignore_errors=True)
        for version, file in files.items():
            (new / version).mkdir(parents=True)
            for suffix in (".so", ".safetensors"):
                if file.with_suffix(suffix).exists():
                    shutil.copyfile(file.with_suffix(suffix), (new / version / ARTIFACT).with_suffix(suffix))
            if options.backend == "python":
                (new / version / "model.py").write_text(_MODEL)
        (new / "config.pbtxt").write_text(texts.pop())
        for library in libraries:
            shutil.copyfile(library, new / library.name)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return TritonModel(name, tuple(files), _largest_batch(loaded[0], options))


def _largest_batch(model: ServedModel, options: TritonOptions) -> int:
    return 0 if options.batch_delay is None else model.largest_batch


def _library_folders() -> list[Path]:
    """Return the folders of the runtime's libraries: ours, and TVM's if TVM is installed."""
    package = importlib.util.find_spec("tvm")
    places = () if package is None else package.submodule_search_locations or ()
    return [library_path().parent, *(Path(place) / "lib" for place in places)]


def _backend_libraries() -> tuple[Path, ...]:
    """Return what the C++ backend consists of: its library, and the one of tvm_ffi."""
    backend = library_path().with_name(_LIBRARY)
    if not backend.is_file():
        raise InputError(f"{backend} is missing; build the C++ libraries again, or use --backend python")
    return backend, Path(importlib.import_module("tvm_ffi.libinfo").find_libtvm_ffi())


def _tensor(kind: str, tensor: TensorType, skip: int) -> str:
    datatype = f"TYPE_{tensor.datatype}"
    dims = ", ".join(str(size) for size in tensor.shape[skip:])
    # Triton has no tensors without dimensions: a scalar has one of size 1, which the model takes away.
    reshape = "" if dims else " reshape { shape: [ ] }"
    return f"{kind} [ {{ name: {json.dumps(tensor.name)} data_type: {datatype} dims: [ {dims or 1} ]{reshape} }} ]"
