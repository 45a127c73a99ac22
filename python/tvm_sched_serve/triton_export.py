"""Write artifacts as a repository of Triton Inference Server: configuration, artifact and a Python-backend model."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from tvm_sched.errors import InputError

from .datatypes import TensorType
from .repository import Repository
from .served_model import ServedModel
from .served_text import load_served
from .triton_model import ARTIFACT

_REFUSED = ("BOOL", "BF16")
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
        Processes that run the model; they share its parameters through the page cache.
    threads : int, optional
        Threads of the CPU devices of each.
    batch_delay : float, optional
        Seconds that a request may wait for others; None joins none.
    """

    instances: int = 1
    threads: int | None = None
    batch_delay: float | None = None


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
    joins = options.batch_delay is not None and bool(model.batch_sizes)
    largest = model.batch_sizes[-1] if joins else 0
    lines = [f"name: {json.dumps(model.name)}", 'backend: "python"', f"max_batch_size: {largest}"]
    for kind, tensors in (("input", model.inputs), ("output", model.outputs)):
        lines += [_tensor(kind, tensor, 1 if joins else 0) for tensor in tensors]
    lines.append("version_policy { all { } }")
    lines.append(f"instance_group [ {{ count: {options.instances} kind: KIND_CPU }} ]")
    if joins:
        preferred = ", ".join(str(size) for size in model.batch_sizes if size > 1)
        delay = round(1e6 * (options.batch_delay or 0.0))
        lines.append(
            f"dynamic_batching {{ preferred_batch_size: [ {preferred} ] max_queue_delay_microseconds: {delay} }}"
        )
    if options.threads is not None:
        lines.append(f'parameters {{ key: "threads" value {{ string_value: "{options.threads}" }} }}')
    return "\n".join(lines) + "\n"


def _export(name: str, files: dict[str, Path], output: Path, options: TritonOptions) -> TritonModel:
    loaded: list[ServedModel] = []
    for version, file in files.items():
        model = load_served(file, name, version)
        if not isinstance(model, ServedModel):
            raise InputError(f"{file}: generates text, which export-triton does not offer; use `tvm-sched serve`")
        for tensor in (*model.inputs, *model.outputs):
            if tensor.datatype in _REFUSED:
                raise InputError(
                    f"{file}: {tensor.name!r} is {tensor.dtype}, which Triton's Python backend cannot pass by DLPack"
                )
        loaded.append(model)
    texts = {configuration(model, options) for model in loaded}
    if len(texts) > 1:
        raise InputError(
            f"model {name!r}: its versions have different inputs, outputs or batches, and Triton has one configuration for "
            "all of them; export them under different names"
        )
    folder, new = output / name, output / f".{name}.new"
    try:
        shutil.rmtree(new, ignore_errors=True)
        for version, file in files.items():
            (new / version).mkdir(parents=True)
            for suffix in (".so", ".safetensors"):
                if file.with_suffix(suffix).exists():
                    shutil.copyfile(file.with_suffix(suffix), (new / version / ARTIFACT).with_suffix(suffix))
            (new / version / "model.py").write_text(_MODEL)
        (new / "config.pbtxt").write_text(texts.pop())
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    joins = options.batch_delay is not None and bool(loaded[0].batch_sizes)
    return TritonModel(name, tuple(files), loaded[0].batch_sizes[-1] if joins else 0)


def _tensor(kind: str, tensor: TensorType, skip: int) -> str:
    datatype = f"TYPE_{tensor.datatype}"
    dims = ", ".join(str(size) for size in tensor.shape[skip:])
    # Triton has no tensors without dimensions: a scalar has one of size 1, which the model takes away.
    reshape = "" if dims else " reshape { shape: [ ] }"
    return f"{kind} [ {{ name: {json.dumps(tensor.name)} data_type: {datatype} dims: [ {dims or 1} ]{reshape} }} ]"
