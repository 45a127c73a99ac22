"""What `gpu_hour.py prepare` writes: artifacts without weights, expected values, the runtime's library and wheels."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _result_page import version_and_date

from . import networks, text, weights
from .cases import (
    CHAINS,
    COLD,
    STATE_SHAPE,
    STATE_STEPS,
    Chain,
    KernelCase,
    chain_weight,
    cold_weight,
    kernel_cases,
    state_weight,
)
from .record import ARCHIVE, ORDER

HERE = Path(__file__).resolve().parent
LIBRARIES = "handwritten_cuda,nvidia"
STREAMS = {
    "one": {"streams": "one"},
    "opara": {"streams": "opara", "launch_order": "opara"},
    "best": {"streams": "best", "launch_order": "best"},
}
EVERY_STREAMS = {
    **{name: {"streams": name} for name in ("one", "nimble", "wavefront", "fewest")},
    **{
        f"opara, {order}": {"streams": "opara", "launch_order": order}
        for order in ("depth-first", "breadth-first", "critical-path", "opara", "best")
    },
    "best": STREAMS["best"],
}
"""Ways to allocate streams and to order launches, by their name on the page."""
COMPARED = ("googlenet", "inception_v3", "nasnet_large")
"""Networks for `EVERY_STREAMS`, which Opara's evaluation has, too."""
WHEELS = ("apache-tvm-ffi", "msgspec", "typing-extensions")
PEER_WHEELS = ("fastsafetensors==0.5.0", "runai-model-streamer==0.16.1")
MOST_BY_VALUE = 8 << 20
CARRIED_PYTHON = "3.12"


@dataclass(frozen=True)
class Artifact:
    """An artifact to prepare: its kind (which step runs it), its name, and what compiles it."""

    kind: str
    name: str
    make: Callable[[], tuple[Any, dict[str, Any]]]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The stem of its files."""
        plain = "".join(c if c.isalnum() else "_" for c in f"{self.kind}-{self.name}")
        return f"{plain[:60]}-{zlib.crc32(f'{self.kind} {self.name}'.encode()):08x}"


def topology(devices: int = 1) -> Any:
    """Return one H100, or several of them behind one switch."""
    from tvm_sched_runtime.problem import Switch, load_topology

    one = load_topology(HERE / "h100.toml")
    if devices == 1:
        return one
    gpus = tuple(
        msgspec.structs.replace(one.devices[0], name=f"gpu{d}", bus=f"pcie{d // 2}", memory=(64 - 8 * d) << 20)
        for d in range(devices)
    )
    buses = tuple(msgspec.structs.replace(one.buses[0], name=f"pcie{b}") for b in range((devices + 1) // 2))
    switch = Switch("nvswitch", tuple(gpu.name for gpu in gpus), 4e11, 5e-6)
    return msgspec.structs.replace(one, name=f"h100x{devices}", devices=gpus, buses=buses, switches=(switch,))


def compiled_network(name: str, dtype: str, target: Any, *, split: int | None = None, **options: Any) -> Any:
    """Compile a network of `networks.NETWORKS`; return the model, its expected values, and its recipes.

    ``split`` is the seed of a random schedule for the devices of ``target``.
    """
    from tvm_sched.relax import compile
    from tvm_sched.relax.api import make_problem
    from tvm_sched_bench.testing import random_schedule, random_streams

    program, exact, tensors = reference(name, dtype)
    # `occupancy` is the roofline with times of kernels together, by which streams are chosen.
    options["cost_model"] = "occupancy" if "streams" in options else "roofline"
    schedule = None
    if split is not None:
        problem = make_problem(program, target, backend="cuda", cost_model="roofline")
        schedule = random_schedule(problem, split)
        schedule = random_streams(problem, schedule, split) if split % 2 else schedule
    made = compile(program, target, "single", schedule=schedule, backend="cuda", parameters="external", **options)
    found, others = weights.recipes(made.parameters, tensors)
    about = {
        "network": name, "dtype": dtype, "recipes": found, "largest": float(np.abs(exact).max()),
        "predicted": predicted(made), "functions": functions(made),
    }  # fmt: skip
    return made, about, {"expected": weights.sample(exact), **{f"value:{k}": v for k, v in others.items()}}


def functions(made: Any) -> dict[str, int]:
    """Count an artifact's kernels by the library that they are of, ``""`` for TVM's."""
    names = [step["function"] for step in made.module.plans()[0]["steps"] if step["kind"] == "kernel"]
    found = Counter(next((word for word in LIBRARIES.split(",") if word in name), "") for name in names)
    return dict(found)


@lru_cache(maxsize=1)
def reference(name: str, dtype: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return a network as an exported program, its outputs in float64, and its tensors by name."""
    import torch

    module, x = networks.build(name, dtype)
    with torch.no_grad():
        given = torch.from_numpy(np.asarray(x, np.float64)) if x.dtype.kind != "i" else torch.from_numpy(x)
        exact = module.double()(given).detach().numpy()
        module = module.float().to(getattr(torch, dtype))
        program = torch.export.export(module, (networks.to_torch(x),))
    if not np.isfinite(exact).all() or np.ptp(exact) == 0 or (dtype == "float16" and np.abs(exact).max() > 6e4):
        raise ValueError(f"{name}: outputs that say nothing: all equal, not finite, or beyond {dtype}")
    return program, exact, networks.tensors(module, dtype)


def predicted(made: Any) -> dict[str, Any]:
    """Return the predicted microseconds of a first run and of a run with all parameters on the GPU, and of each kernel."""
    from tvm_sched_runtime.schedule import simulate

    problem, schedule = made.problem, made.schedule
    resident = tuple(tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter")
    return {
        "cold_us": simulate(problem, schedule).latency_ns / 1e3,
        "warm_us": simulate(problem, schedule, resident).latency_ns / 1e3,
        "kernels": len(problem.graph.operators),
        "parameter_bytes": sum(t.size for t in problem.graph.tensors if t.kind == "parameter"),
        "flops": sum(operator.flops for operator in problem.graph.operators),
    }


def networks_wanted() -> Iterator[Artifact]:
    """The networks that run beside PyTorch with one stream, and those with branches also with Opara's and the best."""
    for some in (["one"], [name for name in STREAMS if name != "one"]):
        for name, dtype in networks.by_worth():
            for streams, options in STREAMS.items():
                if streams in some and (streams == "one" or name in networks.BRANCHED):
                    yield Artifact(
                        "network",
                        f"{name} {dtype} {streams}",
                        lambda n=name, d=dtype, o=options: compiled_network(n, d, topology(), **o),
                        {"streams": streams},
                    )


def streams_wanted(names: tuple[str, ...], ways: Mapping[str, dict[str, Any]]) -> Iterator[Artifact]:
    """Networks by each way to allocate streams."""
    for name in names:
        for way, options in ways.items():
            yield Artifact(
                "streams", f"{name} {way}",
                lambda n=name, o=options: compiled_network(n, "float32", topology(), **o), {"streams": way, "devices": 1},
            )  # fmt: skip


def chains_wanted() -> Iterator[Artifact]:
    """Chains of equal kernels, to run two at once."""

    def make(name: str, chain: Chain) -> Any:
        from tvm_sched.cost_model.occupancy_model import launches_of, occupancy_share
        from tvm_sched.relax import compile

        weight = chain_weight(name, chain.weight) if chain.weight else None

        def emit(e: Any, x: Any) -> Any:
            shared = None if weight is None else constant(weight)
            for _ in range(chain.length):
                x = chain.emit(e, x, shared)
            return x

        mod = relax_module([chain.shape], "float32", emit)
        made = compile(mod, topology(), "single", backend="cuda", parameters="external", streams="one")
        found, others = weights.recipes(made.parameters, {} if weight is None else {"w": weight})
        device = made.problem.topology.devices[0]
        shares = [
            occupancy_share(device, launch) for launches in launches_of(made.problem.graph) for launch in launches
        ]
        about = {
            "recipes": found, "shape": chain.shape, "weight": chain.weight, "shares": shares,
            "predicted": predicted(made), "functions": functions(made),
        }  # fmt: skip
        return made, about, {f"value:{k}": v for k, v in others.items()}

    for name, chain in CHAINS.items():
        yield Artifact("chain", name, lambda n=name, c=chain: make(n, c))


def states_wanted() -> Iterator[Artifact]:
    """A model whose state stays on the GPU: s' = s / 2 + x w, of which the result is the double."""

    def make() -> Any:
        from tvm import relax
        from tvm.relax import op

        from tvm_sched.relax import compile

        weight = state_weight()
        inputs = [relax.Var(name, relax.TensorType(STATE_SHAPE, "float32")) for name in ("x", "s")]
        builder = relax.BlockBuilder()
        with builder.function("main", inputs):
            with builder.dataflow():
                x, s = inputs
                product = builder.emit(op.matmul(x, constant(weight)))
                half = builder.emit(op.multiply(s, constant(np.float32(0.5))))
                after = builder.emit_output(op.add(half, product))
                twice = builder.emit_output(op.multiply(after, constant(np.float32(2))))
            builder.emit_func_output(relax.Tuple([twice, after]))
        made = compile(builder.get(), topology(), "single", backend="cuda", parameters="external", states={"s": 1})
        found, others = weights.recipes(made.parameters, {"w": weight})
        state, outputs = np.zeros(STATE_SHAPE), []
        for k in range(STATE_STEPS):
            state = state / 2 + weights.numbers(f"x{k}", STATE_SHAPE).astype(np.float64) @ weight
            outputs.append(2 * state)
        about = {"recipes": found, "shape": STATE_SHAPE, "tolerance": 1e-5, "functions": functions(made)}
        values = {"outputs": np.array(outputs), "state": state, **{f"value:{k}": v for k, v in others.items()}}
        return made, about, values

    yield Artifact("state", "a state of 4x32", make)


def values_wanted() -> Iterator[Artifact]:
    """Small networks by random schedules on four devices, with TVM's kernels and with those of libraries."""
    for seed in range(4):
        for name in networks.SMALL:
            for libraries in ("", LIBRARIES):
                if seed == 0 or libraries:
                    yield Artifact(
                        "values",
                        f"{name} schedule {seed}{'' if libraries else ', TVM kernels'}",
                        lambda n=name, s=seed, lib=libraries: _with_libraries(
                            lib, lambda: compiled_network(n, "float32", topology(2 + s % 3), split=s)
                        ),
                        {"devices": 2 + seed % 3, "tolerance": 1e-4},
                    )
    for dtype, tolerance in (("float16", 1e-2), ("bfloat16", 6e-2)):
        yield Artifact(
            "values", f"layer {dtype}", lambda d=dtype: compiled_network("layer", d, topology()),
            {"devices": 1, "tolerance": tolerance},
        )  # fmt: skip


def _with_libraries(libraries: str, run: Callable[[], Any]) -> Any:
    before = os.environ.get("TVM_SCHED_KERNEL_LIBRARIES")
    os.environ["TVM_SCHED_KERNEL_LIBRARIES"] = libraries
    try:
        return run()
    finally:
        if before is None:
            del os.environ["TVM_SCHED_KERNEL_LIBRARIES"]
        else:
            os.environ["TVM_SCHED_KERNEL_LIBRARIES"] = before


def relax_module(shapes: list[tuple[int, ...]], dtype: str, emit: Callable[..., Any]) -> Any:
    """Return a Relax module of a function of inputs ``x0``, ``x1``, ... that emits with a builder."""
    from tvm import relax

    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, dtype)) for k, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(emit(builder.emit, *inputs))
        builder.emit_func_output(result)
    return builder.get()


def constant(value: Any) -> Any:
    """Return an array as a constant of Relax."""
    import tvm
    from tvm import relax

    return relax.const(tvm.runtime.tensor(value))


def cold_wanted() -> Iterator[Artifact]:
    """Chains of products whose weights are read once: models whose first run is their loading."""

    def make(width: int, layers: int, rows: int) -> Any:
        from tvm.relax import op

        from tvm_sched.relax import compile

        values = {f"w{k}": cold_weight(k, width) for k in range(layers)}

        def emit(e: Any, x: Any) -> Any:
            for value in values.values():
                x = e(op.nn.relu(e(op.matmul(x, constant(value)))))
            return x

        mod = relax_module([(rows, width)], "float32", emit)
        made = compile(mod, topology(), "single", backend="cuda", parameters="external", streams="one")
        found, others = weights.recipes(made.parameters, values)
        x = weights.numbers("x0", (rows, width)).astype(np.float64)
        for value in values.values():
            x = np.maximum(x @ value, 0)
        about = {
            "recipes": found, "width": width, "layers": layers, "rows": rows, "largest": float(np.abs(x).max()),
            "predicted": predicted(made), "functions": functions(made),
        }  # fmt: skip
        return made, about, {"expected": weights.sample(x), **{f"value:{k}": v for k, v in others.items()}}

    for name, (width, layers, rows) in COLD.items():
        yield Artifact("cold", name, lambda w=width, n=layers, r=rows: make(w, n, r))


def text_wanted() -> Iterator[Artifact]:
    """A small model whose tokens are known, on one and two devices, and large layers with weights that a recipe draws."""

    def small(devices: int) -> Any:
        from tvm_sched.schedulers import register
        from tvm_sched_bench.testing import random_schedule
        from tvm_sched_bench.testing.language_models import save_model
        from tvm_sched_language import GenerationOptions, Generator, compile_language_model

        if devices > 1:
            register("scattered")(lambda problem, workload, options: random_schedule(problem, 5))
        with tempfile.TemporaryDirectory() as scratch:
            folder = save_model("llama", scratch)
            options = GenerationOptions(context=64, pieces=(16,), weights="int8")
            known = Generator(compile_language_model(folder, "cpu1", options).module)
            (told,) = known.generate([list(text.PROMPT)], max_tokens=text.TOKENS)
            made = compile_language_model(
                folder, topology(devices), options, backend="cuda", parameters="external",
                scheduler="single" if devices == 1 else "scattered", variants=False,
            )  # fmt: skip
        values = {f"value:{name}": value for name, value in made.parameters.items()}
        return made, {"recipes": {}, "expected": told.tokens, "functions": functions(made)}, values

    def large(size: str, number_format: str) -> Any:
        from tvm_sched_language import GenerationOptions, compile_language_model

        options = GenerationOptions(context=text.SIZES[size][-1], pieces=text.PIECES[size], weights=number_format)
        made = compile_language_model(
            text.random_model(size, number_format, options), topology(), backend="cuda", parameters="external",
            scheduler="single", variants=False, cost_model="roofline", resident=1.0,
        )  # fmt: skip
        found = {
            name: {"of": name, "order": [*range(value.ndim)], "shape": value.shape, "dtype": value.dtype.name}
            for name, value in made.parameters.items()
        }
        plans = [
            {
                "predicted_us": schedule.certificate.latency * 1e6,
                "bytes": text.bytes_read(problem, options.context // 2 / options.context),
                "flops": sum(operator.flops for operator in problem.graph.operators),
            }
            for problem, schedule in zip(made.problems, made.schedules, strict=True)
        ]
        return (
            made,
            {
                "recipes": found,
                "plans": plans,
                "context": options.context,
                "vocab": text.VOCAB[size],
                "functions": functions(made),
            },
            {},
        )

    for devices in (1, 2):
        yield Artifact("text", f"tokens on {devices}", lambda d=devices: small(d), {"devices": devices})
    for size in text.SIZES:
        for number_format in text.FORMATS if size != "rehearsal" else ("int8",):
            yield Artifact("text", f"{size} {number_format}", lambda s=size, f=number_format: large(s, f))


def kernels_wanted() -> Iterator[Artifact]:
    """Single kernels beside PyTorch's."""

    def make(case: KernelCase) -> Any:
        from tvm_sched.relax import compile

        values = {f"w{k}": case.weight(k) for k in range(len(case.constants))}
        constants = [constant(value) for value in values.values()]
        mod = relax_module(list(case.inputs), case.dtype, lambda e, *given: case.emit(e, *given, *constants))
        made = _with_libraries(
            case.libraries,
            lambda: compile(
                mod,
                topology(),
                "single",
                backend="cuda",
                cost_model="roofline",
                precision=case.precision,
                parameters="external",
            ),
        )
        steps = [step for step in made.module.plans()[0]["steps"] if step["kind"] == "kernel"]
        graph = made.problem.graph
        calls = [(s["function"], [*o.inputs, *o.outputs]) for s, o in zip(steps, graph.operators, strict=True)]
        found, others = weights.recipes(made.parameters, values)
        about = {
            "recipes": found, "calls": calls, "predicted_us": float(made.problem.costs.operator_ns[:, 0].sum()) / 1e3,
            "tensors": {t.name: (list(t.shape), t.dtype) for t in graph.tensors},
            "flops": sum(operator.flops for operator in graph.operators),
        }  # fmt: skip
        return made, about, {f"value:{k}": v for k, v in others.items()}

    for case in kernel_cases():
        yield Artifact("kernel", case.title, lambda c=case: make(c))


def direct_wanted(width: int = 4096, counts: tuple[int, ...] = (1, 32, 512)) -> Iterator[Artifact]:
    """One product whose weights are loaded, or read by the kernel in host memory."""

    def make(rows: int, direct: bool, libraries: str) -> Any:
        from tvm.relax import op

        from tvm_sched.relax import compile
        from tvm_sched.relax.api import make_problem
        from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

        weight = cold_weight(0, width)
        mod = relax_module([(rows, width)], "float32", lambda e, x: op.matmul(x, constant(weight)))

        def compiled() -> Any:
            problem = make_problem(mod, topology(), backend="cuda", cost_model="roofline")
            (operator,) = problem.graph.operators
            placement = Placement(operator.name, "gpu0", direct_host_access=direct)
            loads = [Transfer("load", "gpu0", tensor=tensor) for tensor in operator.inputs]
            reads = [Transfer("host_read", "gpu0", operator=operator.name)]
            schedule = Schedule(problem.digest, (placement,), tuple(reads if direct else loads))
            return compile(
                mod, topology(), schedule=schedule, backend="cuda", cost_model="roofline", parameters="external"
            )

        made = _with_libraries(libraries, compiled)
        found, others = weights.recipes(made.parameters, {"w0": weight})
        exact = weights.numbers("x0", (rows, width)).astype(np.float64) @ weight
        about = {
            "recipes": found, "width": width, "rows": rows, "largest": float(np.abs(exact).max()),
            "predicted": predicted(made), "functions": functions(made), "direct": direct, "libraries": libraries,
            "counts_tiles": True,
        }  # fmt: skip
        return made, about, {"expected": weights.sample(exact), **{f"value:{k}": v for k, v in others.items()}}

    for rows in counts:
        for libraries in (LIBRARIES, ""):
            for direct in (False, True):
                name = f"{rows} rows, {'libraries' if libraries else 'TVM'}, {'read in host memory' if direct else 'loaded'}"
                yield Artifact("direct", name, lambda r=rows, d=direct, lib=libraries: make(r, d, lib))


def wanted(rehearsal: bool) -> list[Artifact]:
    """Return what is prepared, the most valuable first."""
    if rehearsal:
        small = [each for each in values_wanted() if each.name in ("branches schedule 1", "layer float16")]
        one = Artifact(
            "network", "picture float32 one", lambda: compiled_network("picture", "float32", topology(), streams="one"),
            {"streams": "one"},
        )  # fmt: skip
        others = (*cold_wanted(), *kernels_wanted(), *chains_wanted())
        kernels = [each for each in others if each.name.startswith("rehearsal")]
        ways = {name: EVERY_STREAMS[name] for name in ("one", "opara, opara")}
        others = [*states_wanted(), *direct_wanted(64, (1,)), *streams_wanted(("branches",), ways)]
        return [*small, one, *kernels, *others, *(each for each in text_wanted() if not each.name.startswith("7B"))]
    lists = (
        values_wanted(), direct_wanted(), kernels_wanted(), text_wanted(), cold_wanted(),
        streams_wanted(COMPARED, EVERY_STREAMS), networks_wanted(), states_wanted(), chains_wanted(),
    )  # fmt: skip
    return [each for found in lists for each in found if not each.name.startswith("rehearsal")]


def prepare(folder: Path, only: list[str], again: bool, rehearsal: bool, limit: float) -> None:
    """Write artifacts that are not there yet, one after the other, then library and wheels."""
    begin = time.monotonic()
    place = folder / "artifacts"
    place.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TVM_SCHED_CUDA_ARCHS", "sm_90")
    os.environ["TVM_SCHED_KERNEL_LIBRARIES"] = LIBRARIES  # the libraries need not be on this machine
    pack_runtime(folder, rehearsal)
    failures = {}
    asked = wanted(rehearsal)
    (place / ORDER).write_text(json.dumps([artifact.file for artifact in asked]))
    for artifact in asked:
        title = f"{artifact.kind} {artifact.name}"
        about_file = place / f"{artifact.file}.json"
        if (only and not any(word in title for word in only)) or (about_file.exists() and not again):
            continue
        if time.monotonic() - begin > limit:
            print(f"{title}: not prepared, the time of --limit is over", flush=True)
            continue
        started = time.monotonic()
        try:
            made, about, arrays = artifact.make()
            by_value = sum(array.nbytes for array in arrays.values())
            if by_value > MOST_BY_VALUE:
                raise ValueError(f"{by_value / 2**20:.0f} MiB of parameters are no permutations of the network's")
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                file = Path(scratch) / f"{artifact.file}.so"
                made.export(file)
                file.replace(place / file.name)
        except Exception as error:
            failures[title] = f"{type(error).__name__}: {error}"[:300]
            print(f"{title}: {failures[title]}", flush=True)
            continue
        np.savez_compressed(place / f"{artifact.file}.npz", **_storable(arrays))
        about |= {"kind": artifact.kind, "name": artifact.name, "file": artifact.file, **artifact.about}
        about_file.write_text(json.dumps(about, default=float))
        print(f"{title}: {time.monotonic() - started:.0f} s", flush=True)
    (folder / "artifacts" / "prepared.txt").write_text(version_and_date())
    for title, reason in failures.items():
        print(f"failed: {title}: {reason}")
    pack_artifacts(folder, {artifact.file for artifact in asked})
    print(how_to_run(folder))


def pack_artifacts(folder: Path, asked: set[str]) -> None:
    """Put the artifacts that were asked for, which have much in common, and the Python packages into one archive."""
    import tvm_sched

    python = Path(tvm_sched.__file__).parents[1]
    with tarfile.open(folder / "new.tar.xz", "w:xz", preset=6) as archive:
        for file in sorted((folder / "artifacts").iterdir()):
            if file.stem in asked or file.name in (ORDER, "prepared.txt"):
                archive.add(file, f"artifacts/{file.name}")
        runtime = python / "tvm_sched_runtime"
        presets = (runtime / "problem" / "presets").glob("*.toml")
        # Of the version of the libraries.
        packages = [python / "tvm_sched", python / "tvm_sched_language", runtime]
        for file in sorted([*(file for package in packages for file in package.rglob("*.py")), *presets]):
            archive.add(file, f"python/{file.relative_to(python)}")
    (folder / "new.tar.xz").replace(folder / ARCHIVE)


def _storable(arrays: dict[str, Any]) -> dict[str, Any]:
    """NumPy's files lack bfloat16: its bits are stored."""
    return {
        (f"bfloat16:{name}" if array.dtype.name == "bfloat16" else name): (
            array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        )
        for name, array in arrays.items()
    }


def pack_runtime(folder: Path, rehearsal: bool) -> None:
    """Put the stripped libraries, wheels for the other machine's Python, and programs for the GPU into the folder."""
    import importlib.util

    from tvm_sched_runtime.core_library import library_path

    libraries = folder / "lib"
    libraries.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.find_spec("tvm")
    tvm = Path(next(iter(spec.submodule_search_locations or ()))) / "lib" if spec else None
    for source in (library_path(), *(tvm / f"libtvm_runtime{part}.so" for part in ("", "_extra") if tvm)):
        subprocess.run(["strip", "-o", libraries / source.name, source], check=True)
    if not rehearsal:
        _download(folder / "wheels")
        nvcc, source, program = shutil.which("nvcc"), HERE / "copies.cu", folder / "copies"
        if nvcc and not (program.exists() and program.stat().st_mtime > source.stat().st_mtime):
            command = [nvcc, "-O2", "-std=c++17", "-arch=sm_90", "-o", program, source]
            subprocess.run([*command, "-Xcompiler", "-pthread"], check=True)


def _download(folder: Path) -> None:
    from importlib.metadata import version

    folder.mkdir(exist_ok=True)
    pinned = [f"{name}=={version(name)}" for name in WHEELS]
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17)]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    for name in [*pinned, *PEER_WHEELS]:
        stem = name.partition("==")[0].replace("-", "_")
        if any(folder.glob(f"{stem}-*.whl")):
            continue
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", CARRIED_PYTHON, "--implementation", "cp", *platforms, "-d", str(folder), name]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"no wheel of {name}: {done.stderr.strip()[-200:]}")


def how_to_run(folder: Path) -> str:
    """Return how much is carried, and the command for the machine with the GPU."""
    carried = [path for path in (folder / name for name in (ARCHIVE, "lib", "wheels", "copies")) if path.exists()]
    files = [file for path in carried for file in ([path] if path.is_file() else path.rglob("*"))]
    size = sum(file.stat().st_size for file in files if file.is_file())
    return (
        f"carry {' '.join(f'{folder.name}/{path.name}' for path in carried)} ({size / 2**20:.1f} MiB)\n"
        "run: python3 benchmarks/gpu_hour.py run, again and again until it says that all is measured or the time is over"
    )
