"""How repeatable pairs of kernels on two cores are: each pair three times, twice on cores that are given to it, once free.

    python benchmarks/measure_cpu_pairs.py -o benchmarks/data/cpu_pairs.json

Kernels of real and random networks, the longest of each bound by arithmetic and by memory: alone and beside each other on
one thread, kept on a core, and alone on all threads. On an otherwise idle machine: with ``--wait`` all is compiled before,
and measured when a line comes. `benchmarks/cost_model.py --part pairs` says what comes of it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tvm
from measure_cpu import networks

from tvm_sched.cost_model.device_properties import properties
from tvm_sched.cost_model.features import describe
from tvm_sched.cost_model.profile import this_machine
from tvm_sched.cost_model.signature import graph_of, signatures
from tvm_sched.relax import load_model
from tvm_sched.relax.passes import LowerToKernels, PrepareKernels
from tvm_sched.relax.problem.operator_graph import extract
from tvm_sched.relax.profiling.measure_interference import choose_pairs, measure_alone, measure_beside, measure_kernel
from tvm_sched.relax.profiling.random_networks import random_networks
from tvm_sched.relax.profiling.single_kernels import SingleKernel, single_kernels
from tvm_sched_runtime.problem import load_topology

NAMES = (
    "squeezenet", "inception_v1", "resnet50", "shufflenet", "gpt2", "llama", "minilm", "elementwise9", "transformer6",
    "convolutional12", "convolutional97",
)  # fmt: skip
COLUMNS = ["network", "first", "second", "alone", "alone_again", "all_threads", "beside", "beside_again", "beside_free"]


class Prepared(NamedTuple):
    """A network's pairs, and its kernels: on all threads, and twice on one."""

    name: str
    pairs: list[tuple[str, str]]
    whole: dict[str, SingleKernel]
    kernels: dict[str, SingleKernel]
    others: dict[str, SingleKernel]


def prepare(name: str, model: Any, count: int) -> Prepared:
    """Compile a network's kernels and choose its pairs, by times that need not be of a quiet machine."""
    lower = tvm.transform.Sequential([LowerToKernels(), PrepareKernels()])
    mod = lower(load_model(model, None, name).with_parameters())
    extraction = extract(mod)
    often = Counter(signatures(extraction.graph))
    whole = single_kernels(mod, extraction, often, 1)
    texts = list(whole)
    device = properties(load_topology("cpu1").devices[0])
    total = np.array([measure_kernel(whole[text], repeat=1) * often[text] for text in texts])
    pairs = [(texts[a], texts[b]) for a, b in choose_pairs(describe(graph_of(texts)), device, total, count)]
    names = {text for pair in pairs for text in pair}
    kernels, others = (single_kernels(mod, extraction, names, 2) for _ in range(2))
    return Prepared(name, pairs, whole, kernels, others)


def rows_of(prepared: Prepared) -> list[list[Any]]:
    """Seconds of each pair of a network's kernels, in the order of `COLUMNS`."""
    name, pairs, whole, kernels, others = prepared
    names = {text for pair in pairs for text in pair}
    all_threads = {text: measure_kernel(whole[text]) for text in names}
    alone = {text: measure_alone(kernels[text], 1) for text in names}
    rows = []
    for a, b in pairs:
        again = [measure_alone(kernels[text], 1) for text in (a, b)]
        ways = [
            [measure_beside(kernels[a], others[b], threads), measure_beside(others[b], kernels[a], threads)]
            for threads in (1, 1, 0)  # 0: where the system puts them
        ]
        rows.append([name, a, b, [alone[a], alone[b]], again, [all_threads[a], all_threads[b]], *ways])
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    arguments.add_argument("--pairs", type=int, default=6, metavar="N", help="of each network")
    arguments.add_argument("--networks", nargs="*", default=NAMES, choices=NAMES, metavar="NAME", help="of these alone")
    arguments.add_argument("--wait", action="store_true", help="measure when a line comes on standard input")
    options = arguments.parse_args()
    models = networks() | random_networks(114, 0)
    prepared = []
    for name in options.networks:
        prepared.append(prepare(name, models[name], options.pairs))
        print(f"{name} is ready", flush=True)
    if options.wait:
        input()
    rows = []
    for each in prepared:
        rows += [[*row[:3], *([float(f"{s:.4g}") for s in pair] for pair in row[3:])] for row in rows_of(each)]
    machine = this_machine()
    source = (
        f"{machine.cores} cores of {machine.processor}, seconds, {date.today()}, by benchmarks/measure_cpu_pairs.py"
    )
    lines = ",\n".join(json.dumps(row) for row in rows)
    options.output.write_text(
        f'{{"format": "cpu-pairs", "version": 1, "source": {json.dumps(source)},\n"columns": {json.dumps(COLUMNS)},\n'
        f'"rows": [\n{lines}\n]}}\n'
    )
    print(f"{len(rows)} pairs are measured", flush=True)


if __name__ == "__main__":
    main()
