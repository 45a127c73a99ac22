"""How repeatable pairs of kernels on two cores are: each pair three times, twice on cores that are given to it, once free.

    python benchmarks/measure_cpu_pairs.py -o benchmarks/data/cpu_pairs.json

Kernels of real and random networks on one thread, the longest of each bound by arithmetic and by memory. On an otherwise
idle machine; `benchmarks/cost_model.py --part pairs` says what comes of it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from measure_cpu import networks

from tvm_sched.cost_model.devices import properties
from tvm_sched.cost_model.features import describe
from tvm_sched.cost_model.profile import this_machine
from tvm_sched.cost_model.signature import graph_of, signatures
from tvm_sched.problem import load_topology
from tvm_sched.relax.graph import extract
from tvm_sched.relax.importers import load_model
from tvm_sched.relax.passes.lower import LowerToKernels
from tvm_sched.relax.profiling.interference import choose_pairs, measure_beside, measure_kernel
from tvm_sched.relax.profiling.random_networks import random_networks
from tvm_sched.relax.profiling.single_kernels import single_kernels

NAMES = (
    "squeezenet", "inception_v1", "resnet50", "shufflenet", "gpt2", "llama", "minilm", "elementwise9", "transformer6",
    "convolutional12", "convolutional97",
)  # fmt: skip
COLUMNS = ["network", "first", "second", "alone", "alone_again", "all_threads", "beside", "beside_again", "beside_free"]


def rows_of(name: str, model: Any, count: int) -> list[list[Any]]:
    """Seconds of each pair of a network's kernels, both ways."""
    mod = tvm.transform.Sequential([LowerToKernels(device_kind="cpu")])(load_model(model, None, name).with_parameters())
    extraction = extract(mod)
    often = Counter(signatures(extraction.graph))
    whole = single_kernels(mod, extraction, often, 1)
    texts = list(whole)
    seconds = {text: measure_kernel(whole[text]) for text in texts}
    device = properties(load_topology("cpu1").devices[0])
    total = np.array([seconds[text] * often[text] for text in texts])
    chosen = [(texts[a], texts[b]) for a, b in choose_pairs(describe(graph_of(texts)), device, total, count)]
    names = {text for pair in chosen for text in pair}
    kernels, others = (single_kernels(mod, extraction, names, 2) for _ in range(2))
    alone = {text: measure_kernel(kernels[text]) for text in names}
    rows = []
    for pair in chosen:
        a, b = pair
        again = [measure_kernel(kernels[text]) for text in pair]
        ways = [
            [measure_beside(kernels[a], others[b], threads), measure_beside(others[b], kernels[a], threads)]
            for threads in (1, 1, 0)  # 0: where the system puts them
        ]
        rows.append([name, a, b, [alone[a], alone[b]], again, [seconds[a], seconds[b]], *ways])
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.json")
    arguments.add_argument("--pairs", type=int, default=6, metavar="N", help="of each network")
    given = arguments.parse_args()
    models = networks() | random_networks(114, 0)
    rows = [row for name in NAMES for row in rows_of(name, models[name], given.pairs)]
    machine = this_machine()
    source = f"{machine.cores} cores of {machine.processor}, seconds, by benchmarks/measure_cpu_pairs.py"
    lines = ",\n".join(json.dumps(row) for row in rows)
    given.output.write_text(
        f'{{"format": "cpu-pairs", "version": 1, "source": {json.dumps(source)},\n"columns": {json.dumps(COLUMNS)},\n'
        f'"rows": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
