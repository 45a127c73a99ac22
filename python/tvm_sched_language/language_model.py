"""`compile_language_model`: a Hugging Face folder becomes an artifact with plans for prompts and for decode steps."""

from __future__ import annotations

import base64
import hashlib
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from tvm_frontends import ImportedModel
from tvm_sched.relax.api import CompiledModel, model_with_name
from tvm_sched.relax.api import compile as compile_model
from tvm_sched.relax.ir.attributes import get_schedule
from tvm_sched.relax.options import CompileOptions
from tvm_sched.relax.passes import ToSchedule, schedule_modules
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable
from tvm_sched_runtime.problem import DecoderConfig
from tvm_sched_runtime.runtime import ScheduledModule

from .architecture import read_architecture
from .checkpoint import Checkpoint, Weights
from .decoder import PackedWeights, Sizes, decoder_module, operands, pack_weights, state_names
from .generation_options import LONGEST, GenerationOptions
from .stages import stage_file
from .tensor_parallel import in_parts, why_not


@dataclass(frozen=True)
class LanguageModel:
    """A language model that was read, or a stage of it: a source of `tvm_sched.relax.compile` with shapes for each plan."""

    name: str
    folder: Path
    architecture: DecoderConfig
    sizes: Sizes
    packed: PackedWeights
    about: dict[str, Any]
    """What the artifact's metadata tells `tvm_sched_language` (``docs/formats/language_model.md``)."""
    prefill_devices: tuple[str, ...] = ()
    decode_devices: tuple[str, ...] = ()
    """As in `GenerationOptions`."""
    stages: int = 1
    """Into how many `staged` cuts it."""
    layers: range | None = None
    """The layers of a stage; None: all of the model."""
    sampled: bool = False
    """Whether the plans choose the next tokens, which kernels for GPUs can, and do not return logits."""

    tensor_parallel: int | None = 1
    """As in `GenerationOptions`; `in_parts` follows it."""
    parts: int = 1
    """Devices that compute each layer together."""

    @property
    def own_layers(self) -> range:
        """The layers that are computed."""
        return range(self.architecture.layers) if self.layers is None else self.layers

    def staged(self, devices: Sequence[str]) -> list[LanguageModel]:
        """Return the stages, each with its part of the devices.

        Raises
        ------
        InputError
            There are fewer devices, or layers, than stages.
        """
        if len(devices) < self.stages:
            raise InputError(
                f"stages is {self.stages}, and the topology has only {len(devices)} devices ({', '.join(devices)}); each "
                "stage needs a device, such as those of cpu2"
            )
        bounds = [k * len(devices) // self.stages for k in range(self.stages + 1)]
        cuts = self.packed.stage_layers(self.stages)
        # So that stages of different compilations are not taken for one pipeline.
        digest = hashlib.sha256(msgspec.json.encode([self.about, [cut.stop for cut in cuts]], order="sorted"))
        for arrays in self.packed.arrays.values():
            digest.update(arrays[0].reshape(-1)[:1024].tobytes())
        found = []
        for k, layers in enumerate(cuts):
            own = tuple(devices[bounds[k] : bounds[k + 1]])
            position = {"version": 2, "stages": self.stages, "stage": k, "pipeline": digest.hexdigest()}
            about = {**(self.about if k == 0 else {}), **position}
            found.append(
                replace(self, name=f"{self.name}, stage {k}", layers=layers, about=about, prefill_devices=own,
                        decode_devices=own)
            )  # fmt: skip
        return found

    def in_parts(self, parts: int, devices: Sequence[str]) -> LanguageModel:
        """Return the model with its layers cut for as many devices, the first ones that may compute its plans.

        Raises
        ------
        InputError
            There are too few devices, or the layers cannot be cut so.
        """
        if parts == 1:
            return self
        chosen = [own or tuple(devices) for own in (self.prefill_devices, self.decode_devices)]
        if reason := why_not(self.architecture, self.packed.number_format, parts):
            raise InputError(f"tensor_parallel is {parts}, and {self.name!r} cannot be cut so: {reason}")
        if few := next((own for own in chosen if len(own) < parts), None):
            raise InputError(f"tensor_parallel is {parts}, and there are only {len(few)} devices ({', '.join(few)})")
        prefill, decode = (own[:parts] for own in chosen)
        about = {**self.about, "tensor_parallel": parts}
        packed = in_parts(self.packed, parts)
        return replace(self, packed=packed, about=about, parts=parts, prefill_devices=prefill, decode_devices=decode)

    def combinations(self, shapes: Any = None, constants: Any = None) -> list[tuple[dict[str, tuple[int, ...]], None]]:
        """Return rows and outputs of each plan, as shapes."""
        steps = [(count, count) for count in _powers(self.sizes.sequences)]
        pieces = [(piece, 1) for piece in sorted(self.sizes.pieces)]
        if self.own_layers.stop < self.architecture.layers:
            rows_alone = sorted({rows for rows, _ in steps + pieces})
            return [({"tokens": (rows,)}, None) for rows in rows_alone]
        return [({"tokens": (rows,), "outputs": (outputs,)}, None) for rows, outputs in steps + pieces]

    def import_with(self, shapes: dict[str, tuple[int, ...]], constants: None = None) -> ImportedModel:
        """Make the module of one plan."""
        (rows,), (outputs,) = shapes["tokens"], shapes.get("outputs", shapes["tokens"])
        return decoder_module(self.packed, self.sizes, rows, outputs, self.name, self.own_layers, self.sampled)

    def devices_of(self, shapes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Return the devices that may compute a plan: a decode step returns the logits of each of its rows."""
        return self.decode_devices if shapes["tokens"] == shapes.get("outputs") else self.prefill_devices

    def homes_of(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[str, ...]]:
        """Return the device of each part's weights, keys and values."""
        if self.parts == 1:
            return {}
        parts = {f"part{part}": (device,) for part, device in enumerate(self.devices_of(shapes))}
        names = [key for own, arrays in self.packed.arrays.items() for key in operands(own, arrays)]
        names += state_names(self.own_layers, self.parts)
        return {name: parts[part] for name in names for part in name.split(".") if part in parts}


def open_language_model(folder: str | os.PathLike[str], options: GenerationOptions | None = None) -> LanguageModel:
    """Read configuration, weights, tokenizer and chat template of a folder.

    Raises
    ------
    InputError
        The folder is not of a language model that is known here, or lacks weights.

    Examples
    --------
    >>> from tvm_sched_language import open_language_model
    >>> open_language_model("gpt2")
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: gpt2: holds no weights (model.safetensors or pytorch_model.bin)
    """
    path, chosen = Path(folder), options or GenerationOptions()
    if not path.is_dir():
        raise InputError(f"{path}: --generate takes a folder of Hugging Face with config.json and weights")
    architecture = read_architecture(path)
    context = chosen.context or min(architecture.context, LONGEST)
    if context > architecture.positions and architecture.positions:
        raise InputError(f"{path}: context is {context}, and the model has {architecture.positions} positions")
    pieces = tuple(sorted({min(piece, context) for piece in chosen.pieces}))
    sizes = Sizes(context, chosen.sequences, pieces)
    packed = pack_weights(architecture, Weights(architecture, Checkpoint(path)), chosen.weights, sizes)
    about = {
        "version": 1,
        "family": architecture.family,
        "vocab": architecture.vocab,
        "context": context,
        "sequences": chosen.sequences,
        "pieces": list(pieces),
        "weights": chosen.weights,
        **_text_parts(path),
    }
    devices = chosen.prefill_devices, chosen.decode_devices
    return LanguageModel(path.resolve().name, path, architecture, sizes, packed, about, *devices, chosen.stages,
                         tensor_parallel=chosen.tensor_parallel)  # fmt: skip


@dataclass(frozen=True)
class CompiledStages:
    """The stages of a pipeline; `Generator` takes `modules`, or the first file of `export`.

    Examples
    --------
    >>> from tvm_sched_language import CompiledStages
    >>> CompiledStages(()).problems
    ()
    """

    stages: tuple[CompiledModel, ...]

    @property
    def modules(self) -> tuple[ScheduledModule, ...]:
        """The runtime modules."""
        return tuple(stage.module for stage in self.stages)

    @property
    def problems(self) -> tuple[Any, ...]:
        """Problems of all stages, in order."""
        return tuple(problem for stage in self.stages for problem in stage.problems)

    @property
    def schedules(self) -> tuple[Any, ...]:
        """Schedules of all stages, in order."""
        return tuple(schedule for stage in self.stages for schedule in stage.schedules)

    @property
    def slow_kernels(self) -> tuple[Any, ...]:
        """Slow kernels of all stages, each once."""
        return tuple(dict.fromkeys(kernel for stage in self.stages for kernel in stage.slow_kernels))

    def export(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write an artifact for each stage: ``model.so``, ``model.stage1.so``, ...; return all files."""
        return [file for k, stage in enumerate(self.stages) for file in stage.export(stage_file(Path(path), k))]


def compile_language_model(
    folder: str | os.PathLike[str] | LanguageModel,
    topology: Any,
    options: GenerationOptions | None = None,
    **settings: Any,
) -> CompiledModel:
    """Compile a folder; ``settings`` are those of `tvm_sched.relax.compile`.

    `CompiledModel.export` writes the artifact, which `tvm_sched_language.Generator` loads.
    """
    model = _opened(folder, options)
    if model.stages > 1 and model.layers is None:
        raise InputError(f"stages is {model.stages}: compile_stages compiles pipelines")
    chosen = _options(topology, settings)
    if chosen.backend == "cuda":
        model = replace(model, sampled=True, about={**model.about, "version": 3, "sampled": True})
    model = in_best_parts(model, chosen, settings.get("progress") or (lambda *_: None))
    return compile_model(model, topology, states=state_names(model.own_layers, model.parts), **settings)


def compile_stages(
    folder: str | os.PathLike[str] | LanguageModel,
    topology: Any,
    options: GenerationOptions | None = None,
    **settings: Any,
) -> CompiledStages:
    """Compile a folder as a pipeline with `GenerationOptions.stages`, in which several sequences follow each other.

    Layers are cut so that the largest stage has the least bytes of weights. Stages have parts of the topology's devices, in
    their order.

    Raises
    ------
    InputError
        As `compile_language_model`; there are fewer devices, or layers, than stages.

    Examples
    --------
    >>> from tvm_sched_language import GenerationOptions, compile_stages
    >>> compile_stages("gpt2", "cpu2", GenerationOptions(stages=2))
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: gpt2: holds no weights (model.safetensors or pytorch_model.bin)
    """
    model = _opened(folder, options)
    stages = model.staged([device.name for device in _options(topology, settings).topology.devices])
    return CompiledStages(tuple(compile_language_model(stage, topology, **settings) for stage in stages))


def _options(topology: Any, settings: Mapping[str, Any]) -> CompileOptions:
    return CompileOptions.of(topology, **{key: value for key, value in settings.items() if key != "progress"})


def in_best_parts(model: LanguageModel, options: CompileOptions, progress: Any) -> LanguageModel:
    """Return the model with its layers cut as asked, or for GPUs so that the schedule of a decode step is fastest."""
    devices = [device.name for device in options.topology.devices]
    if model.tensor_parallel is not None:
        return model.in_parts(model.tensor_parallel, devices)
    if options.backend != "cuda" or model.stages > 1:
        return model
    best, least = model, math.inf
    most = min(len(own or devices) for own in (model.prefill_devices, model.decode_devices))
    for parts in _powers(most) if most > 1 else ():
        if why_not(model.architecture, model.packed.number_format, parts):
            continue
        progress(f"each layer on {parts} GPUs together", 0, 0)
        made = model.in_parts(parts, devices)
        shapes, frozen = made.combinations()[0]
        mod = model_with_name(made.import_with(shapes, frozen))
        step = ToSchedule(mod, devices=made.devices_of(shapes), homes=made.homes_of(shapes), progress=progress)
        try:
            (scheduled,) = schedule_modules([step], options)
        except InfeasibleError:
            continue
        certificate = get_schedule(scheduled).certificate
        if certificate is not None and certificate.latency_ns < least:
            best, least = made, certificate.latency_ns
    return best


def _opened(folder: Any, options: GenerationOptions | None) -> LanguageModel:
    return folder if isinstance(folder, LanguageModel) else open_language_model(folder, options)


def _powers(most: int) -> list[int]:
    """1, 2, 4, ... and the number itself."""
    found = [1]
    while found[-1] * 2 < most:
        found.append(found[-1] * 2)
    return found if most == 1 else [*found, most]


def _text_parts(folder: Path) -> dict[str, Any]:
    """Tokenizer, chat template, stop tokens and defaults of sampling, as far as the folder has them."""
    config, generation = _json(folder / "config.json"), _json(folder / "generation_config.json")
    tokens = _json(folder / "tokenizer_config.json")
    stop = generation.get("eos_token_id", config.get("eos_token_id"))
    found: dict[str, Any] = {
        "stop": [stop] if isinstance(stop, int) else list(stop or []),
        "begin": generation.get("bos_token_id", config.get("bos_token_id")),
    }
    if generation.get("do_sample"):
        kinds = {"temperature": float, "top_p": float, "top_k": int}
        found["defaults"] = {
            key: kind(generation[key]) for key, kind in kinds.items() if generation.get(key) is not None
        }
    else:
        found["defaults"] = {}
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():
        found["tokenizer"] = base64.b64encode(zlib.compress(compact_tokenizer(_json(tokenizer)), 9)).decode()
    template = _template(folder, tokens)
    if template:
        found["chat_template"] = template
        special = {key: tokens.get(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        found["special"] = {k: v["content"] if isinstance(v, dict) else v for k, v in special.items() if v}
    return found


def compact_tokenizer(document: dict[str, Any]) -> bytes:
    """Return a ``tokenizer.json`` that the tokenizers library reads faster: without white space, merges as strings.

    A pair of strings takes the library longer to read than one string with a space between. It splits that at the space, and
    takes ``#version ...`` for a comment; so merges stay pairs if one of them has either.
    """
    model = document.get("model")
    if isinstance(model, dict) and isinstance(merges := model.get("merges"), list) and all(map(_is_plain_pair, merges)):
        document = document | {"model": model | {"merges": [" ".join(pair) for pair in merges]}}
    return msgspec.json.encode(document)


def _is_plain_pair(merge: Any) -> bool:
    return (
        isinstance(merge, list)
        and len(merge) == 2
        and all(isinstance(part, str) and part and " " not in part for part in merge)
        and not merge[0].startswith("#version")
    )


def _template(folder: Path, tokens: dict[str, Any]) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text("utf-8")
    given = tokens.get("chat_template")
    if isinstance(given, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in given}
        given = named.get("default") or next(iter(named.values()), None)
    return given if isinstance(given, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(read_bytes(str(path)), type=dict[str, Any])
    except UNREADABLE as error:
        raise InputError(f"{path}: not a JSON document that can be read ({why_unreadable(error)})") from None
