"""Seconds of `tvm-sched compile`: with an empty cache, again, with the cache switched off, and after a similar model.

Processor time of the command and its children stands beside the clock's: it hardly depends on what else the machine does.
Run it on models of your own, or without arguments on networks with random weights, which transformers makes:

    python benchmarks/compile_time.py [-t cpu1] [--json FILE] [--markdown FILE] [MODEL.onnx[:NAME:1,3,320,320] ...]

*Similar* is a model compiled for the first time when another one is in the cache. *In one process* is the same in the
process that compiled the other one, as in a notebook. Where the seconds go is told by the compiler's own progress, in one
more run.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from _common import parser
from _result_page import Page, write_json

_MAKE = '''
import sys, warnings
import torch
import transformers as t

warnings.simplefilter("ignore")


class Plain(torch.nn.Module):
    """A tensor in place of one of the classes of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, value):
        return self.model(value)[0]


def mobilenet(**options):
    return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(**options))


def resnet(*depths):
    sizes = [64, 128, 256, 512]
    return t.ResNetForImageClassification(t.ResNetConfig(layer_type="basic", depths=depths, hidden_sizes=sizes))


def bert(layers):
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return t.BertModel(t.BertConfig(num_hidden_layers=layers, **sizes), add_pooling_layer=False)


def image(size=224):
    return torch.zeros(1, 3, size, size)


tokens = torch.zeros(1, 128, dtype=torch.int64)
makers = {
    "mobilenet_v2": lambda: (mobilenet(num_labels=1000), image()),
    "mobilenet_v2-10-classes": lambda: (mobilenet(num_labels=10), image()),
    "mobilenet_v2-other-weights": lambda: (mobilenet(num_labels=1000), image()),
    "mobilenet_v2-192x192": lambda: (mobilenet(num_labels=1000), image(192)),
    "resnet18": lambda: (resnet(2, 2, 2, 2), image()),
    "resnet34": lambda: (resnet(3, 4, 6, 3), image()),
    "bert-4-layers": lambda: (bert(4), tokens),
    "bert-8-layers": lambda: (bert(8), tokens),
    "vit_base": lambda: (t.ViTModel(t.ViTConfig()), image()),
    "gpt2": lambda: (t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), tokens),
}
for number, file in enumerate(sys.argv[1:]):
    name, _, kind = file.rpartition("/")[2].rpartition(".")
    torch.manual_seed(number)
    model, value = makers[name]()
    program = torch.export.export(Plain(model).eval(), (value,))
    if kind == "onnx":
        torch.onnx.export(program, dynamo=True, verbose=False).save(file)
    else:
        torch.export.save(program, file)
'''


@dataclass(frozen=True)
class Pair:
    """Two similar models: the second is compiled after the first."""

    first: str
    second: str
    """Files' names."""
    what: str
    """How they differ."""


PAIRS = (
    Pair("mobilenet_v2.onnx", "mobilenet_v2-other-weights.onnx", "the same network, trained again"),
    Pair("mobilenet_v2.onnx", "mobilenet_v2-10-classes.onnx", "10 classes in place of 1000"),
    Pair("mobilenet_v2.onnx", "mobilenet_v2-192x192.onnx", "192x192 in place of 224x224"),
    Pair("resnet18.onnx", "resnet34.onnx", "another member of the family"),
    Pair("bert-4-layers.onnx", "bert-8-layers.onnx", "twice as many layers"),
)
MODELS = ("mobilenet_v2.onnx", "mobilenet_v2.pt2", "vit_base.pt2", "gpt2.pt2")


def make(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Export the models by PyTorch in a separate process, each with other weights."""
    files = [folder / name for name in names]
    done = subprocess.run([sys.executable, "-c", _MAKE, *map(str, files)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the models could not be made: {done.stderr.strip().splitlines()[-1]}")
    return files


TIMES = 3.0
"""How much faster a second compilation of the same or a similar model is to be."""
OPENING = "interpreter, imports"
Figures = dict[str, float]


@dataclass(frozen=True)
class Seconds:
    """Processor time of a command with its children, and wall-clock time, in seconds."""

    processor: float
    clock: float

    def __str__(self) -> str:
        return f"{self.processor:.1f} ({self.clock:.1f})"


class Bench:
    """Compiles models for a topology, with a cache in a folder of its own."""

    def __init__(self, folder: Path, topology: str) -> None:
        self.folder, self.topology = folder, topology
        self.output = folder / "compiled.so"
        self.environment = {**os.environ, "TVM_SCHED_CACHE": str(folder / "cache")}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else Python's modules are compiled in every run

    def compile(self, model: str, *options: str) -> Seconds:
        """Compile a model by the command line."""
        path, _, shape = model.partition(":")
        given = ["--shape", shape] if shape else []
        command = ["compile", path, "-t", self.topology, "-o", str(self.output), *given, *options]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        self._run(["-m", "tvm_sched.cli", *command])
        after, end = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        return Seconds(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, end - begin)

    def parts(self, model: str) -> Figures:
        """Return the processor seconds of each step that the compiler reports, from a separate process."""
        said = self._run([__file__, "--parts", model, self.topology, str(self.output)])
        marks = [[OPENING, 0.0], *json.loads(said.splitlines()[-1])]
        found: Figures = {}
        for (what, since), (_, until) in pairwise(marks):
            found[what] = found.get(what, 0.0) + until - since
        return found

    def in_one_process(self, first: str, second: str) -> float:
        """Return the processor seconds of compiling ``second`` in the process that compiled ``first`` before."""
        return float(self._run([__file__, "--stay", first, second, self.topology, str(self.output)]).splitlines()[-1])

    def size(self) -> int:
        """Return the bytes of the last artifact."""
        return sum(file.stat().st_size for file in self.folder.glob("compiled.*"))

    def _run(self, arguments: list[str]) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
        return done.stdout


def tell_parts(model: str, topology: str, output: str) -> None:
    """Print, as JSON, each step of the compiler with the processor time at its start; the last mark is the end."""
    from tvm_sched.problem_sources import packages_for

    marks: list[tuple[str, float]] = []

    def say(what: str, *_: int) -> None:
        marks.append((what, time.process_time()))

    with packages_for(Path(model)):
        from tvm_sched.relax import compile as compile_scheduled
    say("reading the model")
    compiled = compile_scheduled(model, topology, progress=say)
    say("writing the artifact")
    compiled.export(output)
    say("")
    print(json.dumps(marks))


def stay(first: str, second: str, topology: str, output: str) -> None:
    """Compile both models and print the processor seconds of the second."""
    from tvm_sched.problem_sources import packages_for

    with packages_for(Path(first)):
        from tvm_sched.relax import compile as compile_scheduled
    begin = 0.0
    for model in (first, second):
        begin = time.process_time()
        compile_scheduled(model, topology).export(output)
    print(time.process_time() - begin)


def of_model(model: str, topology: str) -> dict[str, object]:
    """Measure a row of the first table."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), topology)
        cold, size = bench.compile(model), bench.size()
        again, without = bench.compile(model), bench.compile(model, "--no-cache")
    name = Path(model.partition(":")[0]).name
    print(f"{name}: cold {cold} s, again {again} s, without a cache {without} s, {size / 2**20:.1f} MiB", flush=True)
    return {
        "model": name,
        "cold": asdict(cold),
        "again": asdict(again),
        "without": asdict(without),
        "bytes": size,
    }


def of_pair(first: str, second: str, what: str, topology: str) -> dict[str, object]:
    """Measure a row of the second table."""
    with tempfile.TemporaryDirectory() as folder:
        alone = Bench(Path(folder), topology).compile(second)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), topology)
        bench.compile(first)
        after = bench.compile(second)
        bench.compile(second)
        parts = bench.parts(second)  # with all its kernels known
    with tempfile.TemporaryDirectory() as folder:
        stays = Bench(Path(folder), topology).in_one_process(first, second)
    ratio = alone.processor / after.processor
    times = f"{ratio:.1f} times, in one process {stays:.1f} s"
    print(f"{Path(second).name}, {what}: cold {alone} s, after {after} s, {times}; {parts}", flush=True)
    return {
        "model": Path(second).name,
        "after": Path(first).name,
        "what": what,
        "cold": asdict(alone),
        "similar": asdict(after),
        "stays": stays,
        "parts": parts,
    }


def page(models: list[dict], pairs: list[dict], topology: str, path: Path | None) -> Page:
    """Make the page with tables and conclusion."""
    made = Page("Compile times", path)
    made.text(
        f"Seconds of `tvm-sched compile -t {topology}`, of processor time and in brackets of the clock, Python's own",
        "modules compiled before. Imports of PyTorch, and of ONNX's packages, are within them.",
    )
    if models:
        rows = []
        for row in models:
            cold, again, without = (Seconds(**row[name]) for name in ("cold", "again", "without"))
            times = f"{cold.processor / again.processor:.1f}"
            rows.append((row["model"], cold, again, times, without, f"{row['bytes'] / 2**20:.1f}"))
        made.table(("model", "cold", "the same again", "times", "`--no-cache`", "MiB"), rows)
    if pairs:
        made.text("## Similar models")
        kinds = ("similar", "in one process")
        head = ("model", "after", "how it differs", "cold", *(text for kind in kinds for text in (kind, "times")))
        made.table(head, map(_pair_line, pairs), left=3)
        made.text(*_conclusion(pairs))
        made.text("## A model whose kernels are all known: seconds of processor time")
        names = list(dict.fromkeys(name for row in pairs for name in row["parts"]))
        parts = ([row["model"], *(f"{row['parts'].get(name, 0.0):.2f}" for name in names)] for row in pairs)
        made.table(["model", *names], parts)
    return made


def _times(row: dict) -> float:
    return row["cold"]["processor"] / row["similar"]["processor"]


def _stay_times(row: dict) -> float:
    return row["cold"]["processor"] / row["stays"]


def _pair_line(row: dict) -> tuple[object, ...]:
    cold, similar = Seconds(**row["cold"]), Seconds(**row["similar"])
    return (
        row["model"],
        row["after"],
        row["what"],
        cold,
        similar,
        f"{_times(row):.1f}",
        f"{row['stays']:.1f}",
        f"{_stay_times(row):.1f}",
    )


def _conclusion(pairs: list[dict]) -> list[str]:
    """Compare the pairs with the aim."""
    times = sorted(map(_times, pairs))
    reached = sum(value >= TIMES for value in times)
    said = f"{reached} of {len(times)} are at least {TIMES:.0f} times faster ({times[0]:.1f} to {times[-1]:.1f})."
    stays = sorted(map(_stay_times, pairs))
    reached_there = sum(value >= TIMES for value in stays)
    said += f" In one process, {reached_there} of them ({stays[0]:.1f} to {stays[-1]:.1f})."
    if reached == len(times):
        return [said]
    least = sum(sum(row["parts"].values()) for row in pairs) / len(pairs)
    fixed = sum(row["parts"].get(OPENING, 0.0) for row in pairs) / len(pairs)
    return [
        f"{said}",
        f"A model whose kernels and measurements are all known takes {least:.1f} s on average (below), {fixed:.1f} of them",
        "before the model is read: imports of TVM and of what reads models. That is the least that a cache of kernels and",
        "measurements leaves; the rest of it is reading the model and passes over its graph in TVM and Python. So a command",
        f"is three times faster only where a cold compilation takes more than {TIMES * least:.0f} s.",
    ]


def main() -> None:
    arguments = parser((__doc__ or "").splitlines()[0])
    arguments.add_argument("models", nargs="*", metavar="MODEL[:NAME:SHAPE]")
    arguments.add_argument("-t", "--topology", default="cpu1")
    arguments.add_argument("--similar", action="store_true", help="only the similar models")
    arguments.add_argument("--stay", nargs=4, metavar=("FIRST", "SECOND", "TOPOLOGY", "OUTPUT"), help="used by itself")
    arguments.add_argument("--parts", nargs=3, metavar=("MODEL", "TOPOLOGY", "OUTPUT"), help="used by itself")
    options = arguments.parse_args()
    if options.parts:
        return tell_parts(*options.parts)
    if options.stay:
        return stay(*options.stay)
    os.environ.pop("TVM_SCHED_NO_CACHE", None)
    count = 1 if options.quick else None
    with tempfile.TemporaryDirectory() as made:
        pairs = () if options.models else PAIRS[:count]
        names = [
            *(() if options.models or options.similar else MODELS[:count]),
            *(name for pair in pairs for name in (pair.first, pair.second)),
        ]
        make(Path(made), tuple(dict.fromkeys(names)))
        own = () if options.similar else MODELS[:count]
        models = options.models[:count] or [f"{made}/{name}" for name in own]
        rows = [of_model(model, options.topology) for model in models]
        similar = [of_pair(f"{made}/{p.first}", f"{made}/{p.second}", p.what, options.topology) for p in pairs]
    write_json(options.json, {"topology": options.topology, "models": rows, "pairs": similar})
    page(rows, similar, options.topology, options.markdown).write()


if __name__ == "__main__":
    main()
