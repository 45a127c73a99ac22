"""Results of compiling model files, and their cache, which is read without importing TVM."""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.files import folder_beside
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.runtime.artifact import move_artifact
from tvm_sched_runtime.schedule import Schedule

from ..cost_model.roofline_model import SlowKernel
from ..file_cache import FileCache, file_digest
from .profiling.paired_runs import Comparison

_STEM = "artifact"
"""Of the files' names in the cache, in place of the output's."""
_OURS = ("TVM_SCHED_CACHE", "TVM_SCHED_CACHE_LIMIT", "TVM_SCHED_NO_CACHE")
"""Environment variables that do not change the result of a compilation."""


@dataclass(frozen=True)
class CompilationResult:
    """Result of a compilation."""

    problems: tuple[Problem, ...]
    schedules: tuple[Schedule, ...]
    """One for each set of input shapes."""
    written: list[Path]
    """The artifact, then the file of its parameters if they are external; of a pipeline this for each stage."""
    slow_kernels: tuple[SlowKernel, ...]
    """Generated kernels that are far from their roofline."""
    comparisons: tuple[Comparison | None, ...] = ()
    """For each set of input shapes, the schedule beside one device, where both were measured."""


def compilation_key(model: Path, options: Mapping[str, Any], module: str = __name__) -> str | None:
    """Digest all inputs of a compilation: the model's content, options, this program and machine.

    ``options`` holds all options; files among them count with their content. ``module`` is a module of the compiling
    package, whose files count besides those of tvm_sched. Return None if the inputs cannot be known: a
    model in Python may import anything, and nvcc is another program.
    """
    if model.suffix.lower() == ".py" or options.get("backend") == "cuda":
        return None
    try:
        files = [(str(name), file_digest(path)) for name, path in _model_files(model)]
    except OSError:
        return None  # the model's reader reports the error
    if not files:
        return None
    if tuned := options.get("tuned"):
        options = {**options, "tuned": sorted(Path(str(tuned)).glob("*.json"))}
    content = {
        "model": [model.name, model.resolve().name, files],
        "options": _json_value(options),
        "environment": {k: v for k, v in os.environ.items() if k.startswith("TVM_SCHED_") and k not in _OURS},
        "program": [
            _sources({"tvm_frontends", "tvm_sched", "tvm_sched_runtime", module.partition(".")[0]}),
            _packages(),
        ],
        "machine": _machine(),
    }
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def keep(
    cache: FileCache, key: str, name: str, result: CompilationResult, caught: Sequence[warnings.WarningMessage]
) -> None:
    """Put a compilation into the cache, with its warnings."""
    with tempfile.TemporaryDirectory() as folder:
        stem = result.written[0].stem
        files = {_STEM + path.name.removeprefix(stem): path for path in result.written}
        for position, (problem, schedule) in enumerate(zip(result.problems, result.schedules, strict=True)):
            for kind, document in (("problem", problem), ("schedule", schedule)):
                files[f"{kind}-{position}.json"] = path = Path(folder) / f"{kind}-{position}.json"
                document.save(path)
        warning_rows = [
            [warning.category.__module__, warning.category.__name__, str(warning.message)] for warning in caught
        ]
        slow = msgspec.to_builtins(result.slow_kernels)
        about = {
            "model": name, "plans": len(result.problems), "warnings": warning_rows, "slow_kernels": slow,
            "comparisons": msgspec.to_builtins(result.comparisons),
        }  # fmt: skip
        cache.keep(key, files, about)


def restore(cache: FileCache, key: str, output: Path) -> CompilationResult | None:
    """Write a cached compilation to ``output`` and repeat its warnings; return None if it is not in the cache."""
    entry = cache.find(key)
    if entry is None:
        return None
    folder, about = entry
    try:
        count = about["plans"]
        problems = tuple(Problem.load(folder / f"problem-{k}.json") for k in range(count))
        schedules = tuple(Schedule.load(folder / f"schedule-{k}.json") for k in range(count))
        written = _copy(folder, output)
    except FileNotFoundError:  # another process evicted the entry
        return None
    for module, name, text in about["warnings"]:
        warnings.warn(text, getattr(sys.modules.get(module), name, UserWarning), stacklevel=2)
    slow = msgspec.convert(about["slow_kernels"], tuple[SlowKernel, ...])
    comparisons = msgspec.convert(about.get("comparisons", ()), tuple[Comparison | None, ...])
    return CompilationResult(problems, schedules, written, slow, comparisons)


def _copy(folder: Path, output: Path) -> list[Path]:
    """Copy an artifact into a temporary folder and move it, so that a failure leaves the old files."""
    try:
        with folder_beside(output) as target:
            written = []
            for source in sorted(folder.glob(f"{_STEM}*.so"), key=lambda path: (len(path.name), path.name)):
                both = [path for path in (source, source.with_suffix(".safetensors")) if path.exists()]
                for path in both:
                    _copy_file(path, target / path.name)
                end = output.with_name(output.stem + source.name.removeprefix(_STEM))
                written += move_artifact(target / source.name, target / both[1].name if both[1:] else None, end)
            if not written:
                raise FileNotFoundError(folder)
            return written
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror or error})") from None


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    if source.suffix == ".so":
        mask = os.umask(0)
        os.umask(mask)
        target.chmod(0o777 & ~mask)  # as a linker leaves it


def _model_files(model: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a model: all of a folder; for an ONNX file, also the external data that it names."""
    if model.is_dir():
        for path in sorted(model.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(model)), path
        return
    yield model.suffix, model
    if model.suffix.lower() != ".onnx" or not model.stat().st_size:
        return
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"location") < 0:
            return
        for path in sorted(model.resolve().parent.iterdir()):
            if path.name == model.name or content.find(path.name.encode()) < 0:
                continue
            inside = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
            for each in inside:
                name = str(each.relative_to(model.resolve().parent))
                if content.find(name.encode()) >= 0:
                    yield name, each


def _json_value(value: Any) -> Any:
    """Convert a value to JSON: arrays and files by their content, sets in order."""
    if hasattr(value, "__array__"):
        import numpy as np

        value = np.asarray(value)
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, msgspec.Struct):
        return _json_value(msgspec.to_builtins(value))
    if isinstance(value, Mapping):
        return [[str(name), _json_value(value[name])] for name in sorted(value, key=str)]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (list, tuple)):
        return [_json_value(part) for part in value]
    if isinstance(value, (str, Path)) and Path(value).is_file():
        return [str(value), file_digest(Path(value))]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)


def _sources(packages: set[str]) -> str:
    """Digest the files of packages of ours, which change with versions and during development."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in sorted(packages):
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(root)} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def _packages() -> list[str]:
    """Return every importable package with its version, such as importers, kernel libraries and plug-ins."""
    names = {name.stem for folder in sys.path if folder and Path(folder).is_dir() for name in _metadata(Path(folder))}
    return [sys.version, *sorted(names)]


def _metadata(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix in (".dist-info", ".egg-info"))


def _machine() -> list[Any]:
    """Return the platform, the processor, and the number of cores that this process may use."""
    keys, lines = ("model name", "flags", "Features", "CPU part"), []
    for file in ("/proc/cpuinfo", "/sys/fs/cgroup/cpu.max"):
        try:
            lines += Path(file).read_text().splitlines()
        except OSError:
            continue
    about = sorted({line for line in lines if line.startswith(keys) or line[:1].isdigit() or line.startswith("max")})
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return [platform.platform(), platform.machine(), about, count]
