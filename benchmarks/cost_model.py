"""Accuracy of latencies: learned, interpolated and roofline, on measurements that were held out of training.

- matrix products in bfloat16, a fifth of all weights' shapes held out on all GPUs (the package aiconfigurator-core);
- GPUs left out of training, all with the same chip together;
- CPU kernels of real networks, each network held out, and the networks' whole latency as the sum of their kernels. Their
  times are in benchmarks/data, made by benchmarks/measure_cpu.py; --profile takes others;
- kernels in parallel, measured in pairs, by the rule t(S) of docs/model.md.

The error is the median of |predicted / measured - 1|; the order is Kendall's tau.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _result_page import Row, report
from measure_cpu import networks
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.stats import kendalltau

from tvm_sched.cost_model.contention import Contention
from tvm_sched.cost_model.features import FAMILIES, NAMES
from tvm_sched.cost_model.interference import fit_pairs, pair_arrays, pairs_of_one_device
from tvm_sched.cost_model.learned_model import LearnedModel, load_learned
from tvm_sched.cost_model.profile import Pair, Profile
from tvm_sched.cost_model.samples import Samples
from tvm_sched.cost_model.signature import signatures
from tvm_sched_bench.training import aiconfigurator, vidur
from tvm_sched_bench.training.train import MOST_SAMPLES, chip_groups, errors, fit, folds, subsample
from tvm_sched_runtime.problem import OpGraph, load_topology

DATA = Path(__file__).parent / "data"
SIZES = [NAMES.index(name) for name in ("flops", "read", "parameters", "written", "m", "n", "k")]
_LONG_PAIR = 1e-4  # seconds; of shorter pairs most is waking threads, which a stream with a part of them does not do
_SLOW = 1.5  # times as long as a kernel takes by itself
Points = dict[str, tuple[np.ndarray, np.ndarray]]


NOTES = {
    "gpu": """\
Measured: the package aiconfigurator-core, and with `--vidur` a checkout of the simulator Vidur (github.com/microsoft/vidur),
whose published measurements are trained on, too. A fifth of all weights' shapes (n, k) is held out on all GPUs together.
Targets: at most 6 % on shapes held out, at most 20 % on a GPU left out, its chip's relatives with it.
Shapes held out lie on the same grid of sizes as the others, so that interpolation between measurements of the same GPU does
well there; it has nothing to say of another GPU or another kind of operator.""",
    "cpu": """\
Each network in turn is held out; what is left to learn from are the other networks and random ones on a device of one
thread: the device of two threads is new. "Whole model" is the sum of the kernels against the measured latency of a
sequential run, too low or too high; in the line of all networks the median of its size. Targets: 12 % for kernels, 10 %
for whole models, 2 s for the last line.""",
    "pairs": "",
}
"""Text above the tables by part; `pairs_notes` makes the text on pairs."""
PAIRS = """\
Each pair of kernels ran on a CPU device of two threads as in a stage, each on one of them; predicted is how long both take
that start together. "All threads": from what each takes on both threads, where most of a short kernel is waking and joining
threads, which a kernel on one does not do. "Half of the threads": from what it takes alone on one, in the same measurement:
{half:.1f} % off in the median. "Measured at another time": the same, from times of other measurements, of the pairs of whole
networks those in runs of whole models: {another:.1f} % off, which is what a prediction for a run has to expect. "Contention
of other pairs": fitted to every second pair, for the others; {contention}. Target: 20 % in the median.
What is left are slow pairs: in {slow} of {count} a kernel took 1.5 times as long as alone and more, half of these
{quarter:.1f} to {three_quarters:.1f} times. Nothing kept other processes away then, nor both threads from one core.
The pairs in the last line of the first table were measured anew with most other processes stopped and each thread
kept on a core; the same pair again differs by the share in the last table, so that is the floor. Where the system puts
the threads, {free} of {quiet} took 1.5 times as long as where each has a core, and more."""


def accuracy(case: str, method: str, measured: np.ndarray, predicted: np.ndarray) -> Iterator[Row]:
    """Yield the median error, and Kendall's tau of at most 2,000 operators."""
    yield Row(case, method, 100 * float(np.median(np.abs(predicted / measured - 1))), "median error %")
    some = np.random.default_rng(0).permutation(len(measured))[:2000]
    yield Row(case, method, float(kendalltau(measured[some], predicted[some]).statistic), "Kendall's tau")


def interpolate(train: Samples, test: Samples) -> np.ndarray:
    """Seconds by linear interpolation between logarithms of sizes; beyond them the nearest."""
    x, y = (np.log(np.stack([s.work.m, s.work.n, s.work.k], axis=1)) for s in (train, test))
    value = np.log(train.seconds)
    found = LinearNDInterpolator(x, value)(y)
    return np.exp(np.where(np.isnan(found), NearestNDInterpolator(x, value)(y), found))


def nearest(train: Samples, test: Samples) -> np.ndarray:
    """Seconds by the roofline, times the mean ratio of the three nearest operators of the family."""
    from scipy.spatial import cKDTree

    ratio = np.log(train.seconds / train.roofline())
    x, y = train.features()[:, SIZES], test.features()[:, SIZES]
    found = np.zeros(len(test))
    for family in np.unique(test.work.family):
        rows, asked = np.flatnonzero(train.work.family == family), test.work.family == family
        if len(rows):
            _, which = cKDTree(x[rows]).query(y[asked], k=min(3, len(rows)))
            found[asked] = ratio[rows][which.reshape(asked.sum(), -1)].mean(axis=1)
    return test.with_join(test.roofline() * np.exp(found))


def products_held_out(samples: Samples, seed: int, points: Points) -> Iterator[Row]:
    """Measure products with weights' shapes held out on all GPUs."""
    is_product = (samples.work.family == FAMILIES.index("matmul")) & (samples.work.dtype == "bfloat16")
    rest, held = next(folds(samples, seed))
    booster = fit(subsample(samples.take(rest), seed, MOST_SAMPLES["cuda"]), "cuda", seed)
    for name in dict.fromkeys(device.name for device in samples.devices):
        of_device = np.array([device.name == name for device in samples.devices])[samples.device] & is_product
        test, train = samples.take(of_device & held), samples.take(of_device & rest)
        if not len(test):
            continue
        learned = test.seconds * np.exp(-errors(booster, test, known=True))
        points["GEMM shapes held out"] = _add(points.get("GEMM shapes held out"), test.seconds, learned)
        for method, predicted in (
            ("learned", learned), ("interpolation", interpolate(train, test)), ("roofline", test.roofline()),
        ):  # fmt: skip
            yield from accuracy(
                f"{name}, {len(test):,} GEMMs with other weights' shapes", method, test.seconds, predicted
            )


def devices_left_out(samples: Samples, seed: int, points: Points) -> Iterator[Row]:
    """Measure each chip's GPUs with the chip left out of training."""
    few = subsample(samples, seed, MOST_SAMPLES["cuda"] // 6)
    left_out = chip_groups(few.devices)[few.device]
    is_product = (samples.work.family == FAMILIES.index("matmul")) & (samples.work.dtype == "bfloat16")
    every = chip_groups(samples.devices)[samples.device]
    for chip in np.unique(every[is_product]):
        booster = fit(few.take(left_out != chip), "cuda", seed)
        test = samples.take((every == chip) & is_product)
        learned = test.seconds * np.exp(-errors(booster, test, known=False))
        points["GPU left out"] = _add(points.get("GPU left out"), test.seconds, learned)
        case = f"{chip} and its like left out, {len(test):,} GEMMs"
        yield from accuracy(case, "learned", test.seconds, learned)
        yield from accuracy(case, "roofline", test.seconds, test.roofline())


def cpu_kernels(profiles: list[Profile], seed: int, points: Points) -> Iterator[Row]:
    """Measure each real network held out: its kernels, and its latency as their sum. Devices of several threads are new."""
    trained = [profile for profile in profiles if profile.threads == 1] or profiles
    every = Samples.concatenate([profile.samples() for profile in trained])
    texts = np.array([text for profile in trained for text in measured_signatures(profile)])
    errors_of: dict[tuple[str, str], list[np.ndarray]] = {}
    sums: dict[tuple[str, str], list[float]] = {}
    for name, graph in graphs().items():
        own = signatures(graph)
        rest = every.take(~np.isin(texts, own))
        trees = fit(rest, "cpu", seed)
        for profile in profiles:
            if name not in profile.latencies:
                continue
            found = measured_signatures(profile)
            test = profile.samples().take(np.isin(found, own))
            where = {text: k for k, text in enumerate(text for text in found if text in set(own))}
            rows = np.array([where[text] for text in own if text in where])
            known = profile in trained
            device = f"CPU device of {profile.threads} thread{'s, left out' if not known else ''}"
            case, latency = f"{name} held out, {device}", profile.latencies[name]
            learned = test.seconds * np.exp(-errors(trees, test, known=known))
            for method, predicted in (
                ("learned", learned), ("interpolation", nearest(rest, test)), ("roofline", test.with_join(test.roofline())),
            ):  # fmt: skip
                yield from accuracy(case, method, test.seconds, predicted)
                whole = float(predicted[rows].sum()) / latency - 1
                yield Row(case, method, 100 * whole, "whole model %")
                errors_of.setdefault((device, method), []).append(np.abs(predicted / test.seconds - 1))
                sums.setdefault((device, method), []).append(abs(whole))
            title = "CPU kernels" if known else "CPU kernels, more threads"
            points[title] = _add(points.get(title), test.seconds, learned)
            yield Row(case, "measured kernels", 100 * (float(test.seconds[rows].sum()) / latency - 1), "whole model %")
    for (device, method), found_errors in errors_of.items():
        together = np.concatenate(found_errors)
        case = f"all {len(together)} kernels of networks held out, {device}"
        yield Row(case, method, 100 * float(np.median(together)), "median error %")
        yield Row(case, method, 100 * float(np.median(sums[device, method])), "whole model %")


def measured_signatures(profile: Profile) -> list[str]:
    """Return the signatures of `Profile.samples`, in their order."""
    return [row.signature for row in profile.kernels if row.seconds > 0]


def at_once(profiles: list[Profile]) -> Iterator[Row]:
    """Predict pairs on one device from times on all threads, on half of them, and on half from other profiles."""
    nothing, in_turn = Contention(0.0, 0.0, 0.0), Contention(1.0, 0.0, 0.0)
    for profile in profiles:
        pairs = pairs_of_one_device(profile)
        if not pairs:
            continue
        device = load_topology(f"cpu{max(profile.machine.cores // profile.threads, 1)}").devices[0]
        rows = {row.signature: row for row in profile.kernels}
        whole, half = (pair_arrays(pairs, rows, device, profile.threads, half) for half in (False, True))
        measured = half.together
        fitted = np.empty(len(pairs))
        for fold in range(2):
            found = fit_pairs(pairs[1 - fold :: 2], rows, device, profile.threads)
            fitted[fold::2] = found.pairs(*(each[fold::2] for each in half[:3]))
        methods = {
            "all threads, s = 0": nothing.pairs(*whole[:3]), "all threads, s = 1": in_turn.pairs(*whole[:3]),
            "half of the threads each": nothing.pairs(*half[:3]), "and contention of other pairs": fitted,
        }  # fmt: skip
        for other in profiles:
            if other is not profile and 2 * other.threads == profile.threads:
                alone = {row.signature: row.seconds for row in other.kernels}
                names = [(pair.first, pair.second) for pair in pairs]
                longer = [max(alone.get(a, np.nan), alone.get(b, np.nan)) for a, b in names]
                methods["half, measured at another time"] = np.array(longer)
        for least in (0.0, _LONG_PAIR):
            some = (measured >= least) & np.isfinite(sum(methods.values()))
            said = f" of {1e3 * least:g} ms and more" if least else ""
            for method, predicted in methods.items():
                case = f"{some.sum()} pairs{said} on a CPU device of {profile.threads} threads"
                yield from _off(case, method, predicted[some], measured[some])


def quiet_pairs() -> Iterator[Row]:
    """Compare pairs on a quiet machine, one core each, with predictions and with a second measurement."""
    columns = [np.array(column) for column in list(zip(*_quiet_rows(), strict=True))[3:]]
    alone, again, whole, beside, repeated, free = columns

    def together(times: np.ndarray) -> np.ndarray:
        pairs = zip(alone.tolist(), times.tolist(), strict=True)
        return np.array([Pair("", "", (a[0], a[1]), (b[0], b[1])).together for a, b in pairs])

    measured, case = together(beside), f"{len(alone)} pairs on a quiet machine, a core each"
    methods = {
        "all threads, s = 0": whole.sum(axis=1), "half of the threads each": alone.max(axis=1),
        "half, measured at another time": again.max(axis=1),
    }  # fmt: skip
    for method, predicted in methods.items():
        yield from _off(case, method, predicted, measured)
    for name, values in (("measured again", together(repeated)), ("where the system puts them", together(free))):
        off = np.abs(values / measured - 1)
        for what, share in (("median", 0.5), ("90 % below", 0.9)):
            yield Row(f"{case}: {name}", what, 100 * float(np.quantile(off, share)), "difference, %")


def pairs_notes(profiles: list[Profile], rows: list[Row]) -> str:
    """Fill in the page's text on pairs with the figures of these rows and of the data."""
    error: dict[str, float] = {}  # of the first case, all pairs
    for row in rows:
        if row.unit == "median error %":
            error.setdefault(row.method, row.figure)
    half, contended = error["half of the threads each"], error["and contention of other pairs"]
    pairs = [pair for profile in profiles for pair in pairs_of_one_device(profile)]
    longer = np.array([max(b / a for a, b in zip(pair.alone, pair.beside, strict=True)) for pair in pairs])
    slow = longer[longer >= _SLOW]
    quarter, three_quarters = np.quantile(slow, (0.25, 0.75)) if len(slow) else (np.nan, np.nan)
    given, free = (np.array(column) for column in list(zip(*_quiet_rows(), strict=True))[6::2])
    return PAIRS.format(
        half=half, another=error.get("half, measured at another time", np.nan), slow=len(slow), count=len(pairs),
        contention="it adds nothing (equal columns)" if contended == half else f"with it {contended:.1f} %",
        quarter=quarter, three_quarters=three_quarters,
        free=int((free / given >= _SLOW).any(axis=1).sum()), quiet=len(free),
    )  # fmt: skip


def _quiet_rows() -> list[list[Any]]:
    return list(json.loads((DATA / "cpu_pairs.json").read_text())["rows"])


def _off(case: str, method: str, predicted: np.ndarray, measured: np.ndarray) -> Iterator[Row]:
    yield from accuracy(case, method, measured, predicted)
    off = np.abs(predicted / measured - 1)
    yield Row(case, method, 100 * float(np.mean(off > 0.2)), "more than 20 % wrong, %")


def graphs() -> dict[str, OpGraph]:
    """Lower the real networks of the data to the kernels that were measured."""
    from tvm_sched.relax import make_problem

    return {name: make_problem(model, "cpu1", name=name).graph for name, model in networks().items()}


def speed(model: LearnedModel) -> Iterator[Row]:
    """Time the prediction of 10,000 distinct operators on 8 distinct devices."""
    from tvm_sched.cost_model.predicted import costs_of
    from tvm_sched_runtime.problem import Device, Operator, Tensor, Topology

    operators, tensors = [], []
    for n in range(10_000):
        m, k = 16 + n % 211, 32 + n // 7
        shapes = {f"x{n}": (m, k), f"w{n}": (k, 64 + n % 97), f"y{n}": (m, 64 + n % 97)}
        for name, kind in zip(shapes, ("input", "parameter", "activation"), strict=True):
            tensors.append(Tensor(name, 2 * int(np.prod(shapes[name])), kind, shapes[name], "bfloat16"))
        operators.append(Operator(f"o{n}", "matmul", (f"x{n}", f"w{n}"), (f"y{n}",), 2 * m * k * (64 + n % 97)))
    graph = OpGraph("many", tuple(operators), tuple(tensors), (f"y{0}",))
    devices = tuple(
        Device(f"gpu{d}", 80 << 30, (1 + d / 10) * 1e12, {"float32": 2e13, "bfloat16": 3e14}) for d in range(8)
    )
    topology = Topology("many", devices)
    _ = graph.index
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        costs_of(graph, topology, model.predict, "learned")
        seconds.append(time.process_time() - begin)
    yield Row("processor time: 10,000 distinct operators on 8 distinct devices", "learned", min(seconds), "s")


def _add(old: tuple[np.ndarray, np.ndarray] | None, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (x, y) if old is None else (np.concatenate([old[0], x]), np.concatenate([old[1], y]))


def plot(points: Points, file: Path) -> None:
    """Draw predicted against measured, at most 500 points of each kind."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "tvm_sched"
    figure, axes = plt.subplots(1, len(points), figsize=(4 * len(points), 3.8), squeeze=False)
    for axis, (title, (measured, predicted)) in zip(axes[0], points.items(), strict=True):
        some = np.random.default_rng(0).permutation(len(measured))[:500]
        axis.loglog(1e3 * measured[some], 1e3 * predicted[some], ".", markersize=3, alpha=0.5)
        ends = 1e3 * np.array([measured[some].min(), measured[some].max()])
        axis.plot(ends, ends, linewidth=0.8, color="black")
        axis.set(title=title, xlabel="measured, ms", ylabel="predicted, ms")
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def gpus(args: argparse.Namespace, points: Points) -> list[Row]:
    """Return all rows on GPUs; none if their measurements are not installed."""
    if not aiconfigurator.available():
        print("GPUs are left out: the package aiconfigurator-core is not installed (pip install 'tvm-sched[data]')")
        return []
    systems = ("a100_sxm", "h100_sxm", "l40s") if args.quick else tuple(aiconfigurator.SYSTEMS)
    samples = Samples.concatenate([*aiconfigurator.read(systems), *(vidur.read(args.vidur) if args.vidur else ())])
    return [*products_held_out(samples, args.seed, points), *devices_left_out(samples, args.seed, points)]


def main() -> None:
    arguments = parser(__doc__.partition("\n")[0])
    arguments.add_argument("--part", choices=("gpu", "cpu", "pairs"), help="only this part")
    arguments.add_argument("--vidur", type=Path, metavar="DIR", help="train on vidur's compute profiles, too")
    arguments.add_argument(
        "--profile", type=Path, action="append", default=[], help="instead of those in benchmarks/data"
    )
    arguments.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw predicted against measured there")
    arguments.add_argument("--seed", type=int, default=0, help="of what is held out, and of training")
    args = arguments.parse_args()
    rows: list[Row] = []
    points: Points = {}
    if args.part in (None, "gpu"):
        rows += gpus(args, points)
    if args.part != "gpu":
        profiles = [Profile.load(path) for path in args.profile or sorted(DATA.glob("cpu[0-9].json"))]
        if args.part != "pairs":
            rows += cpu_kernels(profiles, args.seed, points)
            rows += speed(load_learned())
        if args.part != "cpu":
            of_pairs = [*at_once(profiles), *quiet_pairs()]
            NOTES["pairs"] = pairs_notes(profiles, of_pairs)
            rows += of_pairs
    if args.plot:
        plot(points, args.plot)
    title = {
        "gpu": "Accuracy of latencies on GPUs",
        "cpu": "Accuracy of latencies on CPUs",
        "pairs": "Pairs of kernels on a CPU",
    }
    notes = "\n".join(NOTES[part] for part in NOTES if args.part in (None, part))
    report(title.get(args.part, "Accuracy of latencies"), rows, args.json, args.markdown, notes=notes)
    if args.markdown and args.plot:
        with args.markdown.open("a") as page:
            page.write(f"\n![Predicted against measured]({os.path.relpath(args.plot, args.markdown.parent)})\n")


if __name__ == "__main__":
    main()
