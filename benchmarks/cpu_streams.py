"""What `-t cpu` chooses, beside all that it chooses from: one stream, parallel streams, logical devices.

For each network the uses of the cores that `choose_fastest` compares run in turns, all with the same kernels, on a quiet
machine and beside a process that takes all of a core that it gets; one stream and what was chosen run as a second copy each,
too, which says how much of a difference is noise. The choice is made before, once, as by ``compile(model, "cpu")``. Networks
are of 16 kinds, small, with random weights but for those of packages' files. With ``--wait`` all are lowered first, and each
measurement waits for a line on standard input, so that it can begin when the machine is quiet.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _result_page import NONE, Page, write_json


def _spin(stop: Any) -> None:
    while not stop.is_set():
        for _ in range(10000):
            pass


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that keeps a core busy."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_spin, args=(stop,), daemon=True)
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join()


AIM, COLLAPSE = 1.03, 2.5
"""Over the fastest on a quiet machine; beside a busy process over its own quiet latency."""
ROUNDS, SECONDS = 8, 0.12
"""Turns of each use of the cores in each situation, and seconds of a turn."""
COLUMNS = ("one stream", "in parallel", "logical devices", "one of N devices")
NOTES = """\
Medians of {rounds} turns of {seconds} s, all uses of the cores in turns, with the same kernels. Chosen before, once, as by
`compile(model, "cpu")`; what was chosen is bold. "Over best": the latency of what was chosen over that of the fastest here;
the aim is {aim} on a quiet machine. Beside a process that takes all of a core that it gets, what was chosen shall take no
more than {collapse} times its quiet latency. "Twice the same": the slower of two copies of one artifact over the other, of
one stream and of what was chosen, whichever is more: smaller differences are noise. Of what ran as two copies the mean
counts."""
AGAIN = ", again"
"""Suffix of the name of a second copy of the same artifact."""


@dataclass(frozen=True)
class Result:
    """Median milliseconds of each use of the cores, quiet and beside a busy process, and which was chosen.

    ``seen`` are the choice's own comparisons, in seconds.
    """

    network: str
    kind: str
    operators: int
    chosen: str
    choosing_quiet: bool
    choosing_seconds: float
    quiet_ms: dict[str, float]
    busy_ms: dict[str, float]
    seen: list[dict[str, Any]]

    @property
    def over_best(self) -> float:
        """Quiet latency of the choice over the fastest."""
        return over_best(self.quiet_ms, self.chosen)

    @property
    def busy_over_best(self) -> float:
        """Latency of the choice over the fastest, beside a busy process."""
        return over_best(self.busy_ms, self.chosen)

    @property
    def busy_over_quiet(self) -> float:
        """Latency of the choice beside a busy process over its quiet latency."""
        return of_both(self.busy_ms, self.chosen) / of_both(self.quiet_ms, self.chosen)

    @property
    def noise(self) -> float:
        """Largest ratio between two copies of one artifact on a quiet machine."""
        twice = [use for use in self.quiet_ms if use + AGAIN in self.quiet_ms]
        return max(float(np.exp(abs(np.log(self.quiet_ms[use + AGAIN] / self.quiet_ms[use])))) for use in twice)


def of_both(times: dict[str, float], use: str) -> float:
    """Return the milliseconds of a use of the cores, the mean of two copies."""
    return statistics.fmean(times[name] for name in (use, use + AGAIN) if name in times)


def over_best(times: dict[str, float], chosen: str) -> float:
    """Return the latency of the choice over the fastest."""
    return of_both(times, chosen) / min(of_both(times, use) for use in times if not use.endswith(AGAIN))


def _torch(make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Any:
    import torch

    torch.manual_seed(1)
    module, inputs = make()
    with torch.no_grad():
        return torch.export.export(module.eval(), inputs)


def _case(name: str) -> Any:
    """Return a network of `cpu_latency`: a program of PyTorch, or an imported ONNX file."""
    from _cpu_models import cases

    from tvm_sched.relax import load_model

    case = cases()[name]
    model, inputs = case.make()
    if case.group != "architectures":
        return load_model(model, {key: value.shape for key, value in inputs.items()}, name)
    import torch

    return _torch(lambda: (model, tuple(map(torch.from_numpy, inputs.values()))))


def _image(name: str, size: int) -> Any:
    from tvm_sched_bench.testing import branched

    return branched.exported(getattr(branched, name)(), size)


def _opara(name: str) -> Any:
    from _opara_models import exported

    return exported(name)


def _experts() -> tuple[Any, tuple[Any, ...]]:
    """Six networks that read one input, weighted by a seventh."""
    import torch

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = lambda: torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))  # noqa: E731
            self.experts = torch.nn.ModuleList(layers() for _ in range(6))
            self.gate = torch.nn.Linear(256, 6)

        def forward(self, x: Any) -> Any:
            weights = self.gate(x).softmax(-1)
            return sum(weights[..., k : k + 1] * expert(x) for k, expert in enumerate(self.experts))

    return Experts(), (torch.randn(1, 64, 256),)


def _towers() -> tuple[Any, tuple[Any, ...]]:
    """Two rows of convolutions that meet at the end, as for pairs of images."""
    import torch

    class Towers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.towers = torch.nn.ModuleList(self.tower() for _ in range(2))

        @staticmethod
        def tower() -> Any:
            sizes = (3, 16, 32, 64, 128)
            parts = [part for a, b in pairwise(sizes) for part in (torch.nn.Conv2d(a, b, 3, 2, 1), torch.nn.ReLU())]
            return torch.nn.Sequential(*parts, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

        def forward(self, a: Any, b: Any) -> Any:
            return torch.cosine_similarity(self.towers[0](a), self.towers[1](b))

    return Towers(), (torch.randn(1, 3, 96, 96), torch.randn(1, 3, 96, 96))


NETWORKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "squeezenet": ("fire modules, two branches", lambda: _case("onnx/squeezenet")),
    "inception_v1": ("Inception modules", lambda: _case("onnx/inception_v1")),
    "inception_v3, 149 pixels": ("Inception modules, deep branches", lambda: _image("inception_v3", 149)),
    "nasnet_mobile, 64 pixels": ("searched cells", lambda: _image("nasnet_mobile", 64)),
    "shufflenet": ("grouped convolutions", lambda: _case("onnx/shufflenet")),
    "densenet121": ("dense blocks", lambda: _case("onnx/densenet121")),
    "text direction": ("convolutions in a row", lambda: _case("rapidocr_onnxruntime/ch_ppocr_mobile_v2.0_cls_infer")),
    "text recognition": ("convolutions, then attention", lambda: _case("rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer")),
    "voice activity": ("recurrent, tiny", lambda: _case("silero_vad/silero_vad_openvino_16k")),
    "LSTM": ("recurrent", lambda: _case("torch/lstm")),
    "bi-LSTM": ("recurrent, two directions", lambda: _case("torch/bi-lstm")),
    "BERT, 6 layers": ("encoder", lambda: _case("hf/bert-mini")),
    "Llama, one token": ("decoder with a cache", lambda: _case("hf/llama-decode")),
    "DeepFM": ("recommender, 52 tables", lambda: _opara("DeepFM")),
    "six experts": ("mixture of experts", lambda: _torch(_experts)),
    "two towers": ("two inputs", lambda: _torch(_towers)),
}
"""By name: the kind, and the function that makes the model."""


def lowered(model: Any) -> Any:
    """Lower the model to kernels, with its problem and a schedule on one device."""
    from tvm_sched.relax import load_model
    from tvm_sched.relax.api import model_with_name
    from tvm_sched.relax.options import CompileOptions
    from tvm_sched.relax.passes import ToSchedule, schedule_modules

    options = CompileOptions.of("cpu", scheduler="single", measure=False, cost_model="roofline")
    (mod,) = schedule_modules([ToSchedule(model_with_name(load_model(model)))], options)
    return mod


def measure(name: str, mod: Any) -> Result:
    """Let the compiler choose, then run all candidates alternately."""
    from tvm_sched.relax.ir.attributes import get_problem, get_schedule
    from tvm_sched.relax.profiling.measured_choice import MeasuredChoice, Runner

    problem = get_problem(mod)
    begin = time.perf_counter()
    choice = MeasuredChoice(mod, problem.topology)
    _, schedule = choice.run(problem, get_schedule(mod))
    said, seconds = schedule.notes["measured"], time.perf_counter() - begin
    runners = {candidate.name: Runner(choice.module(candidate)) for candidate in choice.tried}
    for candidate in choice.tried:
        if candidate.name in (COLUMNS[0], said["chosen"]):
            runners[candidate.name + AGAIN] = Runner(choice.module(candidate))
    found: list[dict[str, float]] = []
    for situation in (nullcontext, busy_process):
        times: dict[str, list[float]] = {use: [] for use in runners}
        with situation():
            for turn in range(ROUNDS):
                order = list(runners) if turn % 2 else list(reversed(runners))
                for use in order:
                    times[use].append(statistics.median(runners[use](SECONDS)))
        found.append({use: round(1e3 * statistics.median(each), 4) for use, each in times.items()})
    quiet = all(row.get("quiet", True) for row in said["measured"])
    kind, operators = NETWORKS[name][0], len(problem.graph.operators)
    return Result(name, kind, operators, said["chosen"], quiet, round(seconds, 1), found[0], found[1], said["measured"])


def page(results: list[Result], path: Path | None) -> Page:
    """The page of results."""
    notes = NOTES.format(rounds=ROUNDS, seconds=SECONDS, aim=AIM, collapse=COLLAPSE)
    made = Page("What `-t cpu` chooses", path, notes=notes)

    def cells(result: Result, times: dict[str, float]) -> list[str]:
        shown = (f"{of_both(times, use):.3g} ms" if use in times else NONE for use in COLUMNS)
        return [f"**{cell}**" if use == result.chosen else cell for use, cell in zip(COLUMNS, shown, strict=True)]

    uses = ("one stream", "parallel streams", "logical devices", "one core", "over best")
    made.table(
        ("network", "kind", "operators", *uses, "twice the same"),
        (
            (r.network, r.kind, r.operators, *cells(r, r.quiet_ms), f"{r.over_best:.3f}", f"{r.noise:.3f}")
            for r in results
        ),
        left=2,
    )
    made.text("Beside a busy process:")
    figures = ((f"{r.busy_over_best:.2f}", f"{r.busy_over_quiet:.2f}") for r in results)
    lines = ((r.network, *cells(r, r.busy_ms), *more) for r, more in zip(results, figures, strict=True))
    made.table(("network", *uses, "over quiet"), lines)
    made.text(conclusion(results))
    return made


def conclusion(results: list[Result]) -> str:
    """Compare the figures with the aims."""
    worst, slowest = max(results, key=lambda r: r.over_best), max(results, key=lambda r: r.busy_over_quiet)
    above = [r for r in results if r.over_best > AIM]
    within = [r.network for r in above if r.over_best <= r.noise]
    same = f"; of the others two copies of one artifact differ by as much for {', '.join(within)}" if within else ""
    noise, seconds = [r.noise for r in results], [r.choosing_seconds for r in results]
    if disturbed := [r.network for r in results if not r.choosing_quiet]:
        names = ", ".join(disturbed)
        quiet = f"Beside other work were chosen: {names}; there one stream is held unless another wins each turn."
    else:
        quiet = "All choices were made on a quiet machine: with --resume those that were not are made again."
    return (
        f"Of {len(results)} networks, what was chosen is within 3 % of the fastest of {len(results) - len(above)}; "
        f"the worst is {worst.network} with {worst.over_best:.3f}{same}. "
        f"Two copies differ by {100 * (statistics.median(noise) - 1):.1f} % in the median and "
        f"{100 * (max(noise) - 1):.1f} % at most. Beside a busy process what was chosen takes "
        f"{slowest.busy_over_quiet:.2f} times its quiet latency at most ({slowest.network}). "
        f"Choosing took {min(seconds):.0f} to {max(seconds):.0f} s, once: choices are kept on disk. {quiet}"
    )


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--networks", nargs="*", default=[], help="of these names alone")
    arguments.add_argument(
        "--resume",
        action="store_true",
        help="leave out what stands in the file of --json and was chosen on a quiet machine",
    )
    arguments.add_argument(
        "--wait", action="store_true", help="lower all, then measure each when a line comes on standard input"
    )
    options = arguments.parse_args()
    warnings.simplefilter("ignore")
    known: dict[str, Result] = {}
    if options.resume and options.json and options.json.exists():
        known = {row["network"]: Result(**row) for row in json.loads(options.json.read_text()) if row["choosing_quiet"]}
    names = options.networks or list(NETWORKS)[: 3 if options.quick else None]
    left = [name for name in names if name not in known]
    ready = {name: lowered(NETWORKS[name][1]()) for name in left} if options.wait else {}
    for name in left:
        if options.wait:
            print(f"{name} is ready", flush=True)
            input()
        mod = ready.pop(name) if options.wait else lowered(NETWORKS[name][1]())
        known[name] = measure(name, mod)
        print(known[name], flush=True)
        write_json(options.json, [asdict(result) for result in known.values()])
    page([known[name] for name in NETWORKS if name in known], options.markdown).write()


if __name__ == "__main__":
    main()
