"""Pipeline artifacts: a folder with a manifest, a library for each stage, the problem and the plan.

Loading needs neither TVM's compiler nor a solver, and a stage can be loaded without the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath

import msgspec

from ..errors import FormatError, InputError
from ..files import convert, decode_document, exchange, folder_beside, read_bytes, write_document
from ..problem import Problem
from ..runtime import ScheduledModule
from ..runtime import load as load_module
from .compiled_pipeline import CompiledPipeline, assemble
from .pipeline_plan import PipelinePlan

FORMAT, VERSION = "tvm_sched.pipeline_artifact", 1
MANIFEST, PROBLEM, PLAN = "manifest.json", "problem.json", "plan.json"
_WHAT = "a pipeline artifact is a folder that `tvm-sched pipeline --artifact` or `ExportablePipeline.export` wrote"


class TensorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor that a stage or the caller gets."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: int | None = None
    """The stage that makes it; None: the caller."""


class StageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage of an artifact."""

    device: str
    """A device of the plan's topology."""
    kind: str
    model: str
    """Kind of the device, ``"cuda"`` or ``"cpu"``, and name of the product."""
    library: str
    parameters: str
    """Files; the second is empty if the library holds the parameters."""
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    """In the order of the library's function."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the stage's files."""
        return tuple(name for name in (self.library, self.parameters) if name)


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size in bytes and SHA-256 of a file."""

    bytes: int
    sha256: str


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How stages on emulated devices run."""

    scale: float
    """Factor by which they are slower than the plan's time."""
    values: bool
    """Whether they compute values; otherwise there are no outputs."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of an artifact, see ``docs/formats/pipeline_artifact.md``.

    Examples
    --------
    >>> from tvm_sched.pipeline import load_manifest
    >>> load_manifest("model.pipeline").topology
    'cpu2'
    """

    model: str
    topology: str
    """Names."""
    stages: tuple[StageEntry, ...]
    """In the order in which a batch passes them."""
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]
    """Inputs and outputs of the caller, in the model's order."""
    files: dict[str, FileEntry]
    """All files but the manifest."""
    emulation: Emulation | None = None
    """None if the stages run on real devices."""
    output_names: tuple[str, ...] = ()
    """The model's names of ``outputs``, whose own names are those of tensors between kernels."""


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read an artifact's manifest and check it; the other files are not read.

    Raises
    ------
    InputError
        The folder is missing or not an artifact; `FormatError` if the manifest breaks a rule.

    Examples
    --------
    >>> from tvm_sched.pipeline import load_manifest
    >>> manifest = load_manifest("model.pipeline")
    >>> [entry.name for entry in manifest.inputs], len(manifest.stages)
    (['x'], 1)
    """
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path}: there is no such folder; {_WHAT}")
    file = path / MANIFEST
    if not file.is_file():
        raise InputError(f"{path}: has no {MANIFEST}; {_WHAT}")
    manifest = convert(decode_document(read_bytes(file), FORMAT, VERSION, str(file)), Manifest, str(file))
    for problem in _faults(manifest):
        raise FormatError(f"{file}: {problem}; export the pipeline again")
    return manifest


def load(folder: str | os.PathLike[str]) -> CompiledPipeline:
    """Load a whole pipeline, ready to run on this machine.

    Raises
    ------
    InputError
        A file is missing, damaged or of another artifact.

    Warns
    -----
    MachineWarning
        This machine differs from the one that the artifact was compiled for.

    Examples
    --------
    >>> from tvm_sched.pipeline import load
    >>> load("model.pipeline").plan.stages[0].operators
    ('onednn.matmul_tanh',)
    """
    path, manifest = Path(folder), load_manifest(folder)
    check_files(path, manifest, (PROBLEM, PLAN))
    problem, plan = Problem.load(path / PROBLEM), PipelinePlan.load(path / PLAN)
    stages = tuple(load_stage(path, s, manifest) for s in range(len(manifest.stages)))
    if plan.problem != problem.digest or len(plan.stages) != len(stages):
        raise FormatError(f"{path}: {PLAN} and {PROBLEM} are not of one pipeline; export it again")
    times_only = manifest.emulation is not None and not manifest.emulation.values
    return assemble(problem, plan, stages, times_only, output_names=manifest.output_names)


def load_stage(folder: str | os.PathLike[str], s: int, manifest: Manifest | None = None) -> ScheduledModule:
    """Load one stage alone; only its own files are read.

    A stage for a GPU takes the first one that the process sees (``CUDA_VISIBLE_DEVICES``), and keeps its parameters there.

    Parameters
    ----------
    manifest : Manifest, optional
        The artifact's manifest, if it is known, perhaps from another machine.

    Raises
    ------
    InputError
        The stage does not exist, or its files are missing, damaged or of another artifact.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import load_stage
    >>> [output.shape for output in load_stage("model.pipeline", 0).run(numpy.ones((2, 3), "float32"))]
    [(2, 2)]
    """
    path = Path(folder)
    manifest = manifest or load_manifest(path)
    if not 0 <= s < len(manifest.stages):
        raise InputError(f"{path}: there is no stage {s}; stages are 0 to {len(manifest.stages) - 1}")
    stage = manifest.stages[s]
    check_files(path, manifest, stage.files)
    module = load_module(path / stage.library, path / stage.parameters if stage.parameters else None)
    plan = module.plans()[0]
    for said, actual in ((stage.inputs, plan["arguments"]), (stage.outputs, plan["outputs"])):
        expected = [(t.name, t.shape, t.dtype) for t in said]
        if expected != [(t["name"], tuple(t["shape"]), t["dtype"]) for t in actual]:
            raise FormatError(f"{path / stage.library}: other tensors than {MANIFEST} says; export the pipeline again")
    if emulation := manifest.emulation:
        module.configure(times_only=not emulation.values, emulation_scale=emulation.scale)
    elif plan["backend"] == "cuda":
        module.configure(devices=[0], resident=1.0)
    return module


@contextmanager
def new_artifact(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside ``folder``, and replace ``folder`` by it if no error occurred.

    Raises
    ------
    InputError
        ``folder`` exists and is not a pipeline artifact, or cannot be written.
    """
    target = Path(folder)
    check_target(target)
    try:
        with folder_beside(target) as beside:
            new = beside / "new"
            new.mkdir()
            yield new
            if target.exists():
                exchange(new, target)
            else:
                new.rename(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror or error})") from None


def check_target(target: Path) -> None:
    """Refuse to replace anything but an artifact or an empty folder."""
    if not target.absolute().parent.is_dir():
        raise InputError(f"{target}: the folder {target.parent} does not exist")
    if target.exists() and not (target.is_dir() and ((target / MANIFEST).is_file() or not any(target.iterdir()))):
        raise InputError(f"{target}: is there and is no pipeline artifact; give another name, or remove it")


def write_manifest(folder: Path, pipeline: CompiledPipeline, files: Sequence[Sequence[str]], times_only: bool) -> None:
    """Add problem, plan and manifest to a folder with the stages' files: a library each, perhaps parameters."""
    problem, plan, executor = pipeline.problem, pipeline.plan, pipeline.executor
    problem.save(folder / PROBLEM)
    plan.save(folder / PLAN)
    types = {tensor.name: tensor for tensor in problem.graph.tensors}
    source_of: dict[str, int] = {}

    def entry(name: str) -> TensorEntry:
        return TensorEntry(name, types[name].shape, types[name].dtype, source_of.get(name))

    stages = []
    for s, (stage, module, names) in enumerate(zip(plan.stages, pipeline.stages, files, strict=True)):
        device = problem.topology.devices[problem.topology.device_id[stage.device]]
        module_plan = module.plans()[0]
        inputs = tuple(entry(tensor["name"]) for tensor in module_plan["arguments"])
        source_of.update((tensor["name"], s) for tensor in module_plan["outputs"])
        outputs = tuple(entry(tensor["name"]) for tensor in module_plan["outputs"])
        parameters = names[1] if len(names) > 1 else ""
        stages.append(StageEntry(device.name, device.kind, device.model, names[0], parameters, inputs, outputs))
    manifest = Manifest(
        model=problem.graph.name,
        topology=problem.topology.name,
        stages=tuple(stages),
        inputs=tuple(entry(name) for name in executor.inputs),
        outputs=tuple(entry(name) for name in executor.outputs),
        files={file.name: _file_entry(file) for file in sorted(folder.iterdir())},
        emulation=Emulation(executor.scale, not times_only) if executor.emulated else None,
        output_names=pipeline.output_names,
    )
    write_document(folder / MANIFEST, manifest, FORMAT, VERSION)


def _faults(manifest: Manifest) -> Iterator[str]:
    """Yield the contradictions in a manifest."""
    if not manifest.stages:
        yield "there are no stages"
    source_of: dict[str, int | None] = {tensor.name: None for tensor in manifest.inputs}
    for s, stage in enumerate(manifest.stages):
        yield from _sources(f"stage {s}", stage.inputs, source_of)
        source_of.update((tensor.name, s) for tensor in stage.outputs)
        if wrong := [tensor.name for tensor in stage.outputs if tensor.source != s]:
            yield f"stage {s} makes {wrong[0]!r}, whose source is another"
    yield from _sources("the model", manifest.outputs, source_of)
    names = manifest.output_names
    if names and (len(names) != len(manifest.outputs) or len(set(names)) != len(names)):
        yield f"{len(manifest.outputs)} outputs have the names {', '.join(names)}; each needs one of its own"
    needed = (PROBLEM, PLAN, *(name for stage in manifest.stages for name in stage.files))
    for name in dict.fromkeys((*needed, *manifest.files)):
        if name not in manifest.files:
            yield f"file {name!r} has no checksum"
        if PurePath(name).name != name:
            yield f"file {name!r} is not in the artifact's folder"


def _sources(reader: str, tensors: Iterable[TensorEntry], source_of: dict[str, int | None]) -> Iterator[str]:
    for tensor in tensors:
        if tensor.name not in source_of or source_of[tensor.name] != tensor.source:
            source = "the caller" if tensor.source is None else f"stage {tensor.source}"
            yield f"{reader} gets {tensor.name!r} of {source}, which does not give it"


def check_files(folder: Path, manifest: Manifest, names: Iterable[str]) -> None:
    """Check that files have the size and the checksum of the manifest.

    Raises
    ------
    InputError
        A file is missing, cannot be read, or has another size or checksum.
    """
    for name in names:
        file, expected = folder / name, manifest.files[name]
        if not file.is_file():
            raise InputError(f"{file}: is missing; {MANIFEST} names it. Copy the whole folder, or export it again")
        actual = _file_entry(file)
        if actual.bytes != expected.bytes:
            raise InputError(
                f"{file}: has {actual.bytes} bytes, {MANIFEST} says {expected.bytes}; copy it again, or export it again"
            )
        if actual != expected:
            raise InputError(f"{file}: was altered: its checksum is not the one in {MANIFEST}; copy or export it again")


def _file_entry(file: Path) -> FileEntry:
    try:
        with file.open("rb") as opened:
            digest = hashlib.sha256()
            while block := opened.read(1 << 20):
                digest.update(block)
        return FileEntry(file.stat().st_size, digest.hexdigest())
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from None
