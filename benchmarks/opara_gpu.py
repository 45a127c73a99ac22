# ruff: noqa: B023 (functions that are made in a loop are called in it)
"""Opara's evaluation on a GPU: streams and launch orders of one set of kernels, as CUDA graphs, beside PyTorch.

In two steps, so that the machine with the GPU needs neither TVM nor nvcc: ``prepare FOLDER`` compiles, here; ``run FOLDER``,
there, measures and writes ``FOLDER/results.json``; ``torch FOLDER`` adds what PyTorch takes. Parameters are random and made
where it runs. Every variant has the same kernels; they differ in streams, waits and the order of launches alone. ``page``
makes the page of what was measured, which stands in ``data/h100_opara.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VARIANTS = {
    "one stream": ("one", "depth-first"),
    "nimble": ("nimble", "depth-first"),
    "wavefront": ("wavefront", "depth-first"),
    "opara, depth-first": ("opara", "depth-first"),
    "opara, breadth-first": ("opara", "breadth-first"),
    "opara": ("opara", "opara"),
}
"""Stream allocation and launch order; "opara" is the paper's."""
STAGED = {"ios": {"block": 10}, "hios-lp": {}}
"""Schedulers of stages, with options."""


def prepare(folder: Path, names: list[str], architecture: str) -> None:
    from _opara_models import MODELS, exported

    for name in names or MODELS:
        begin = time.perf_counter()
        target = folder / name.replace(" ", "_")
        target.mkdir(parents=True, exist_ok=True)
        _prepare(exported(name), target, architecture)
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


def one_gpu(architecture: str) -> Any:
    from tvm_sched.problem import Bus, Device, Topology

    device = Device(
        "gpu0", 80 * 10**9, 3.35e12, {"float32": 67e12}, kind="cuda", launch_overhead=2e-6, bus="pcie0", model="H100",
        arch=architecture,
    )  # fmt: skip
    return Topology("one H100", (device,), (Bus("pcie0", 5e10, 1e-5),))


def _prepare(program: Any, target: Path, architecture: str) -> None:
    import tvm

    from tvm_sched.relax import load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.codegen.cuda import compile_image
    from tvm_sched.relax.emit.runtime_module import lower
    from tvm_sched.relax.ir.attributes import get_problem
    from tvm_sched.relax.ir.kernel_table import KernelTable, kernel_names
    from tvm_sched.relax.lower.kernel_libraries import claimed_functions, kernel_document
    from tvm_sched.relax.lower.kernel_libraries.nvidia.library import VERSION
    from tvm_sched.relax.passes import EstimateLatencies, LowerToKernels, PrepareKernels
    from tvm_sched.relax.problem.operator_graph import extract
    from tvm_sched.schedule import simulate

    topology = one_gpu(architecture)
    passes = [
        LowerToKernels(device_kind="cuda", libraries=("nvidia",)),
        PrepareKernels(),
        EstimateLatencies(topology, "occupancy", compile_image=compile_image),
    ]
    mod = tvm.transform.Sequential(passes)(model_with_name(load_model(program)))
    problem, calls = get_problem(mod), extract(mod)
    resident = tuple(calls.parameters)  # as from the second run on
    table, claimed = KernelTable(), claimed_functions(mod)
    functions = table.add(mod, kernel_names(calls.calls, claimed), claimed)
    image = compile_image(table.kernels, [architecture])
    (target / "kernels.fatbin").write_bytes(image.binary)
    (target / "kernels.json").write_text(json.dumps({"version": 1, "functions": image.functions}))
    library = {functions[name]: kernel_document(mod, name)[1] for name in sorted(claimed & functions.keys())}
    (target / "nvidia.json").write_text(json.dumps({"version": VERSION, "kernels": library}))
    (target / "problem.json").write_bytes(problem.to_json())
    plans = {}
    for variant, schedule in schedules(problem, resident).items():
        plan, _ = lower(
            mod, calls, problem, schedule, functions, name=variant, backend="cuda", values=tuple(calls.parameters)
        )
        streams = len({(p.device, p.stream) for p in schedule.placements})
        plans[variant] = {
            "plan": plan,
            "streams": streams,
            "predicted_us": simulate(problem, schedule, resident).latency_ns / 1e3,
        }
    (target / "plans.json").write_text(json.dumps(plans))


def schedules(problem: Any, resident: Sequence[str]) -> dict[str, Any]:
    from tvm_sched.errors import TvmSchedError
    from tvm_sched.problem import Request, Workload
    from tvm_sched.schedulers import solve
    from tvm_sched.streams import allocate_streams, best_launch_order, best_streams, order_launches

    workload = Workload((Request(tuple(resident)),) if resident else ())
    base = solve(problem, workload, "single")
    found = {}
    for variant, (streams, order) in VARIANTS.items():
        found[variant] = allocate_streams(problem, order_launches(problem, base, order), streams)
        if streams != "one":
            found[f"{variant}, last first"] = last_first(problem, found[variant])
    found["best by prediction"] = best_launch_order(problem, best_streams(problem, base))
    for scheduler, options in STAGED.items():
        try:
            found[scheduler] = solve(problem, workload, scheduler, options)
        except TvmSchedError as error:
            print(f"  {scheduler}: {error}")
    return found


def last_first(problem: Any, schedule: Any) -> Any:
    """Reorder so that the last free operator comes first: in a CUDA graph branches start in reverse order."""
    order = [placement.operator for placement in schedule.placements]
    place = {name: k for k, name in enumerate(order)}
    index = problem.graph.index
    names = [operator.name for operator in problem.graph.operators]
    waits = {names[o]: len(before) for o, before in enumerate(index.predecessors)}
    after: dict[str, list[str]] = {name: [] for name in names}
    for o, before in enumerate(index.predecessors):
        for p in before:
            after[names[p]].append(names[o])
    free, found = [name for name in order if not waits[name]], []
    while free:
        name = max(free, key=place.__getitem__)
        free.remove(name)
        found.append(name)
        for following in after[name]:
            waits[following] -= 1
            if not waits[following]:
                free.append(following)
    of = {placement.operator: placement for placement in schedule.placements}
    return schedule.replace(placements=tuple(of[name] for name in found))


def run(folder: Path, seconds: float) -> None:
    from tvm_sched import _library
    from tvm_sched.runtime import ScheduledModule
    from tvm_sched.runtime.module import make_module
    from tvm_sched.runtime.tensors import random_value

    results: dict[str, Any] = {}
    for target in sorted(path for path in folder.iterdir() if (path / "plans.json").exists()):
        plans = json.loads((target / "plans.json").read_text())
        image = (target / "kernels.json").read_text(), (target / "kernels.fatbin").read_bytes()
        library = (target / "nvidia.json").read_text()
        rng = np.random.default_rng(0)
        specs = next(iter(plans.values()))["plan"]["parameters"]
        values = {spec["name"]: _parameter(rng, spec) for spec in specs}
        inputs, modules, expected, rows = None, {}, None, {}
        for variant, entry in plans.items():
            try:
                module = make_module([entry["plan"]], {"name": variant}, values)
                module.import_module(_library.function("tvm_sched.make_cuda_module")(*image))
                module.import_module(_library.function("tvm_sched.make_nvidia_module")(library))
                modules[variant] = ScheduledModule(module)
                modules[variant].configure(graph=True, resident=1.0)
                inputs = inputs or [random_value(rng, argument) for argument in entry["plan"]["arguments"]]
                outputs = [modules[variant].run(*inputs) for _ in range(4)][-1]
                expected = outputs if expected is None else expected
                worst = max(_distance(a, b) for a, b in zip(outputs, expected, strict=True))
                rows[variant] = {
                    "streams": entry["streams"],
                    "predicted_us": entry["predicted_us"],
                    "differs": worst,
                    "us": [],
                }
            except Exception as error:
                rows[variant] = {"error": f"{type(error).__name__}: {error}"[:300]}
                modules.pop(variant, None)
        end = time.perf_counter() + seconds
        while modules and time.perf_counter() < end:  # in turns, so that clocks are the same for all
            for variant, scheduled in modules.items():
                rows[variant]["us"].append(
                    statistics.median(_timed(lambda s=scheduled: s.run(*inputs)) for _ in range(20))
                )
        for variant, row in rows.items():
            if "us" in row:
                row["rounds"], row["us"] = len(row["us"]), round(statistics.median(row["us"]), 2)
            print(target.name, variant, row, flush=True)
        results[target.name] = rows
        (folder / "results.json").write_text(json.dumps(results, indent=1))


def _parameter(rng: np.random.Generator, spec: dict[str, Any]) -> Any:
    """Draw weights by He's rule, so that the outputs of deep networks stay finite."""
    shape, dtype = spec["shape"], np.dtype(spec["dtype"])
    if dtype.kind != "f":
        return np.zeros(shape, dtype)
    fan = max(1, int(np.prod(shape[1:])) if len(shape) > 1 else 1)
    scale = np.sqrt(2 / fan) if len(shape) > 1 else 0.1
    return (rng.standard_normal(shape) * scale).astype(dtype)


def _distance(a: Any, b: Any) -> float:
    scale = float(np.abs(b).max()) or 1.0
    return float(np.abs(np.asarray(a) - np.asarray(b)).max()) / scale


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begin)


def run_torch(folder: Path, names: list[str], seconds: float) -> None:
    import torch
    from _opara_models import MODELS, exported

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    path = folder / "torch.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in names or MODELS:
        make, inputs = MODELS[name]
        module, host = make().cuda(), [value.pin_memory() for value in inputs()]
        if name in ("BERT-base", "T5-small encoder"):  # whose own code copies from the host, which no graph holds
            module = exported(name).module().cuda()
        device = [value.cuda() for value in host]
        row: dict[str, float] = {}
        with torch.inference_mode():
            for _ in range(3):
                module(*device)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            try:
                with torch.cuda.graph(graph):
                    kept = module(*device)
            except RuntimeError as error:
                print(f"{name}: torch cannot capture it: {str(error)[:150]}", flush=True)
                graph = None

            def eager() -> None:
                for to, value in zip(device, host, strict=True):
                    to.copy_(value, non_blocking=True)
                module(*device).cpu()

            def replay() -> None:
                for to, value in zip(device, host, strict=True):
                    to.copy_(value, non_blocking=True)
                graph.replay()
                kept.cpu()

            for label, call in (("eager", eager), *([("graph", replay)] if graph else [])):
                end, times = time.perf_counter() + seconds, []
                while time.perf_counter() < end or len(times) < 20:
                    times.append(_timed(call))
                row[f"{label}_us"] = round(statistics.median(times), 2)
        results[name.replace(" ", "_")] = row
        print(name, row, flush=True)
        path.write_text(json.dumps(results, indent=1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("step", choices=("prepare", "run", "torch", "page"))
    arguments.add_argument("folder", type=Path, nargs="?")
    arguments.add_argument("--markdown", type=Path, metavar="FILE", help="where page writes")
    arguments.add_argument("--models", nargs="*", default=[])
    arguments.add_argument("--arch", default="sm_90")
    arguments.add_argument("--seconds", type=float, default=2.0)
    options = arguments.parse_args()
    if options.step == "page":
        from _opara_page import measured_page

        return measured_page(options.markdown).write()
    if options.folder is None:
        arguments.error(f"{options.step} needs a folder")
    if options.step == "prepare":
        prepare(options.folder, options.models, options.arch)
    elif options.step == "run":
        run(options.folder, options.seconds)
    else:
        run_torch(options.folder, options.models, options.seconds / 2)


if __name__ == "__main__":
    main()
