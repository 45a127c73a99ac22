"""Steps that run prepared artifacts: values, networks beside PyTorch, single kernels beside PyTorch's."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .artifacts import arrays, difference, load, network_tensors, write_parameters
from .machine import opened
from .record import NotAvailable, Step, rows, torch_with_cuda

CALLS, REPLAYS = 20, 15
KEPT_RECORDS = sorted((Path(__file__).resolve().parents[1] / "data").glob("gpu_record_*.jsonl"))
COMPILED = ("resnet50 float16", "bert-base-128 float16", "resnet50 float32", "gpt2-512 float16")
"""Networks for ``torch.compile``, which takes half a minute for each."""
Run = Callable[[], Any]


def values(step: Step) -> None:
    """Compare small networks with float64: random schedules, cold and warm, issued and as graphs."""
    for file, about in step.artifacts("values"):

        def run(file: Path = file, about: Mapping[str, Any] = about) -> dict[str, Any]:
            _, tensor, x = network_tensors(about)
            parameters = write_parameters(step, file, about, tensor)
            expected = arrays(file)["expected"]
            worst, steps = 0.0, set()
            for resident in (0.0, 1.0):
                for graph in (False, True):
                    loaded = load(
                        file, parameters, devices=[0] * about["devices"], resident=resident, graph=graph, instances=1
                    )
                    steps = {each["kind"] for each in loaded.plans()[0]["steps"]}
                    other = load_other(x)
                    for turn in range(5):
                        (found,) = loaded.run(other if turn == 3 else x)
                        if turn != 3:  # a graph has to read each run's inputs
                            worst = max(worst, difference(found, expected, about["largest"]))
            if worst > about["tolerance"]:
                raise ValueError(
                    f"differs by {worst:.2e} of the largest value from float64; allowed is {about['tolerance']}"
                )
            return {"error": worst, "tolerance": about["tolerance"], "steps": sorted(steps)}

        step.measure(about["name"], run, most=20, of=(file,))


def load_other(x: Any) -> Any:
    """Return another input of the same shape."""
    return x[..., ::-1].copy()


def medians(runs: Mapping[str, Run], seconds: float, most: int = 200) -> dict[str, Any]:
    """Return the median, least and count of each run's microseconds; the runs alternate in rows of ten."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and min(map(len, times.values())) < most:
        for name, run in runs.items():
            for turn in range(12):
                begin = time.perf_counter()
                run()
                if turn >= 2:
                    times[name].append(1e6 * (time.perf_counter() - begin))
    return {
        name: {"median_us": round(statistics.median(each), 2), "least_us": round(min(each), 2), "runs": len(each)}
        for name, each in times.items()
        if each
    }


def grouped(step: Step, kind: str = "network") -> Iterator[tuple[str, list[tuple[Path, dict[str, Any]]]]]:
    """Return the prepared networks with their artifacts, one for each choice of streams."""
    found: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for file, about in step.artifacts(kind):
        found.setdefault(f"{about['network']} {about['dtype']}", []).append((file, about))
    yield from found.items()


def networks(step: Step) -> None:
    """Time networks beside PyTorch, all runs in turns: inputs and parameters on the GPU, outputs left there."""
    for title, group in grouped(step):
        step.measure(title, lambda group=group: network(step, group), 8, 40, [file for file, _ in group])


def network(step: Step, group: list[tuple[Path, dict[str, Any]]]) -> dict[str, Any]:
    """Time one network: our artifacts by streams, and PyTorch eager and as a CUDA graph."""
    first = group[0][1]
    module, tensor, x = network_tensors(first)
    expected = arrays(group[0][0])["expected"]
    runs: dict[str, Run] = {}
    row: dict[str, Any] = {"predicted": {}, "errors": {}, "failures": {}}
    begin = time.monotonic()
    try:
        torch = torch_with_cuda()
    except NotAvailable as reason:
        row["failures"]["PyTorch"] = str(reason)
        given = x
    else:
        from .networks import to_torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        module = module.to(getattr(torch, first["dtype"])).cuda()
        given = to_torch(x).cuda()
        torch_runs(torch, module, given, runs, row, expected, first)
    row["torch_ready_s"] = round(time.monotonic() - begin, 2)
    for file, about in group:
        name = f"ours, {about['streams']}"
        row["functions"] = about["functions"]
        try:
            if "nvidia" not in about["functions"]:
                raise ValueError(
                    "no kernel is of cuBLASLt or cuDNN: compiled without them, which says nothing about ours"
                )
            parameters = write_parameters(step, file, about, tensor, f"{about['network']}-{about['dtype']}")
            loaded = load(file, parameters, resident=1.0, graph=True)
            for _ in range(4):
                (found,) = loaded.run(given)
            row["errors"][name] = difference(found, expected, about["largest"])
            row["predicted"][name] = about["predicted"]["warm_us"]
            row["kernels"] = about["predicted"]["kernels"]
            runs[name] = lambda loaded=loaded: loaded.run(given)
        except Exception as error:
            row["failures"][name] = f"{type(error).__name__}: {error}"[:300]
    row["times"] = medians(runs, 0.2 if step.quick else 2.5)
    row["opened"] = opened("libcudnn.so", "libcublasLt.so")
    return row


def torch_runs(
    torch: Any,
    module: Any,
    given: Any,
    runs: dict[str, Run],
    row: dict[str, Any],
    expected: Any,
    about: Mapping[str, Any],
) -> None:
    """Add PyTorch's runs: eager, and its kernels as a CUDA graph."""

    def eager() -> Any:
        with torch.inference_mode():
            found = module(given)
        torch.cuda.synchronize()
        return found

    for _ in range(3):
        found = eager()
    row["errors"]["PyTorch"] = difference(found, expected, about["largest"])
    runs["PyTorch"] = eager
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(), torch.cuda.graph(graph):
            module(given)
    except RuntimeError as error:
        row["failures"]["PyTorch, CUDA graph"] = str(error)[:200]
        return

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    runs["PyTorch, CUDA graph"] = replay


def compiled(step: Step) -> None:
    """Time a few networks by ``torch.compile(mode="reduce-overhead")``, which makes CUDA graphs of its own."""
    torch = torch_with_cuda()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    prepared = dict(grouped(step))
    for title in (name for name in COMPILED if name in prepared):

        def run(about: Mapping[str, Any] = prepared[title][0][1]) -> dict[str, Any]:
            from .networks import to_torch

            module, _, x = network_tensors(about)
            module = module.to(getattr(torch, about["dtype"])).cuda()
            given = to_torch(x).cuda()
            begin = time.monotonic()
            fast = torch.compile(module, mode="reduce-overhead")
            with torch.inference_mode():
                for _ in range(4):
                    fast(given)
                    torch.cuda.synchronize()
                seconds = time.monotonic() - begin

                def call() -> None:
                    fast(given)
                    torch.cuda.synchronize()

                return {"compile_s": round(seconds, 1), "times": medians({"torch.compile, reduce-overhead": call}, 1.0)}

        step.measure(title, run, 25, 80)


def others(step: Step) -> None:
    """Time networks by ONNX Runtime's providers for GPUs: TensorRT's, CUDA's; in a rehearsal its CPU's."""
    try:
        import onnxruntime
    except ImportError as error:
        raise NotAvailable(f"{error} (its wheel for GPUs has 243 MiB, more than is carried)") from None
    wanted = ("TensorrtExecutionProvider", "CUDAExecutionProvider", *(["CPUExecutionProvider"] if step.quick else []))
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    if not providers:
        raise NotAvailable(f"ONNX Runtime has none of {', '.join(wanted)}")
    for title, group in grouped(step):
        for provider in providers:
            step.measure(
                f"{title}, {provider}",
                lambda p=provider, g=group: other(step, onnxruntime, p, *g[0]),
                20,
                90,
                [group[0][0]],
            )


def other(step: Step, onnxruntime: Any, provider: str, file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Export a network to ONNX and time it, its input and output in the provider's memory."""
    import torch

    from .networks import to_torch

    module, _, x = network_tensors(about)
    module = module.to(getattr(torch, about["dtype"]))
    model = step.work / f"{about['network']}-{about['dtype']}.onnx"
    if not model.exists():
        torch.onnx.export(module, (to_torch(x),), model, dynamo=True, external_data=True, verbose=False)
    begin = time.monotonic()
    session = onnxruntime.InferenceSession(model, providers=[provider])
    if provider not in session.get_providers():
        raise NotAvailable(f"ONNX Runtime cannot load {provider}")
    device = "cpu" if provider.startswith("CPU") else "cuda"
    binding = session.io_binding()
    binding.bind_ortvalue_input(session.get_inputs()[0].name, onnxruntime.OrtValue.ortvalue_from_numpy(x, device, 0))
    binding.bind_output(session.get_outputs()[0].name, device)
    for _ in range(3):
        session.run_with_iobinding(binding)
    ready = time.monotonic() - begin
    found = binding.copy_outputs_to_cpu()[0]
    times = medians({provider: lambda: session.run_with_iobinding(binding)}, 0.05 if step.quick else 1.5)
    error = difference(found, arrays(file)["expected"], about["largest"])
    return {"times": times, "error": error, "ready_s": round(ready, 2)}


def kernels(step: Step) -> None:
    """Time single kernels beside PyTorch's in CUDA graphs of many calls, those that no kept record has first."""
    from .cases import kernel_cases

    cases = {case.title: case for case in kernel_cases()}
    kept = (row for file in KEPT_RECORDS for row in rows(file) if row["step"] == "kernels")
    timed = {row["case"] for row in kept if row.get("status") == "done"}
    for file, about in sorted(step.artifacts("kernel"), key=lambda each: each[1]["name"] in timed):
        step.measure(about["name"], lambda f=file, a=about: kernel(step, f, a, cases[a["name"]]), 2, 12, (file,))


def kernel(step: Step, file: Path, about: Mapping[str, Any], case: Any) -> dict[str, Any]:
    """Time one kernel."""
    names = {f"w{k}": k for k in range(len(case.constants))}
    parameters = write_parameters(step, file, about, lambda name: case.weight(names[name]))
    loaded = load(file, parameters, resident=1.0)
    inputs = [case.input(k) for k in range(len(case.inputs))]
    try:
        torch = torch_with_cuda()
    except NotAvailable as reason:
        (found,) = loaded.run(*inputs)
        return {"torch": str(reason), "finite": bool(np.isfinite(np.asarray(found)).all())}
    from .networks import to_torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    on_gpu = [to_torch(value).cuda() for value in inputs]
    (found,) = loaded.run(*on_gpu)
    given = [*on_gpu, *(to_torch(case.weight(k)).cuda() for k in range(len(case.constants)))]
    exact = case.peer(*(value.double() for value in given))
    import tvm_ffi

    memory = {}
    for name, (shape, dtype) in about["tensors"].items():
        memory[name] = torch.zeros(shape, dtype=getattr(torch, dtype), device="cuda")
        if memory[name].is_floating_point():
            memory[name].normal_()
    calls = [
        (find(loaded.module.imports, name), [tvm_ffi.from_dlpack(memory[n]) for n in names])
        for name, names in about["calls"]
    ]

    def ours() -> None:
        with tvm_ffi.use_torch_stream():
            for function, tensors in calls:
                function(*tensors)

    def error(value: Any) -> float:
        value = value if hasattr(value, "double") else to_torch(value)
        return float((value.double().to(exact.device).reshape(exact.shape) - exact).abs().max() / exact.abs().max())

    return {
        "us": microseconds(torch, ours),
        "torch_us": microseconds(torch, lambda: case.peer(*given)),
        "predicted_us": about["predicted_us"],
        "flops": about["flops"],
        "bytes": sum(
            int(np.prod(shape)) * memory[name].element_size() for name, (shape, _) in about["tensors"].items()
        ),
        "error": error(found),
        "torch_error": error(case.peer(*given)),
        "kernels": [name for name, _ in about["calls"]],
    }


def direct(step: Step) -> None:
    """Time a product whose weights are copied in each run, or read by its kernel in host memory."""
    from .cases import cold_weight
    from .weights import numbers

    for file, about in step.artifacts("direct"):

        def run(file: Path = file, about: Mapping[str, Any] = about) -> dict[str, Any]:
            parameters = write_parameters(
                step, file, about, lambda _: cold_weight(0, about["width"]), f"direct-{about['width']}"
            )
            x = numbers("x0", (about["rows"], about["width"]))
            row: dict[str, Any] = {"predicted_us": about["predicted"]["cold_us"], "times": {}}
            row |= {"counts_tiles": about.get("counts_tiles", False), "width": about["width"]}
            for graph in (False, True):
                loaded = load(file, parameters, resident=0.0, graph=graph)
                for _ in range(3):
                    (found,) = loaded.run(x)
                row["error"] = difference(found, arrays(file)["expected"], about["largest"])
                name = "graph" if graph else "issued"
                row["times"][name] = medians({name: lambda loaded=loaded: loaded.run(x)}, 0.5, 60)[name]
            loaded = load(file, parameters, resident=0.0, trace=True)
            for _ in range(3):
                loaded.run(x)
            steps = loaded.plans()[0]["steps"]
            row["traced"] = [
                [steps[event["step"]]["kind"], (event["end_ns"] - event["start_ns"]) / 1e3]
                for event in loaded.timeline()["events"]
            ]
            return row

        step.measure(about["name"], run, 3, 20, (file,))


def microseconds(torch: Any, run: Run) -> float:
    """Return the microseconds of a call, measured in a CUDA graph of many calls."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return float(sorted(times)[REPLAYS // 2])


def find(modules: Any, name: str) -> Any:
    """Find a function in the modules that an artifact imports."""
    for module in modules:
        try:
            return module.get_function(name)
        except AttributeError:
            continue
    raise LookupError(name)
