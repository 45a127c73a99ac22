"""Measure the kernels of the data that the shipped cost model is trained on, on a CPU device of this machine.

Twelve real networks and many random ones, in one pass without the database of measurements; nothing else should run
meanwhile. The data in the repository is made by

    python benchmarks/measure_cpu.py --device cpu2 -o benchmarks/data/cpu2.json
    python benchmarks/measure_cpu.py --device cpu1 --pairs 6 -o benchmarks/data/cpu1.json

on a machine of two cores: devices of one thread and of two.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tvm_sched.cost_model.profile import ENDINGS


def networks() -> dict[str, Any]:
    """Return the real networks by the name that their latency has in the data."""
    from tvm_sched_bench.testing import models

    made = {name: models.onnx_model(name) for name in models.ONNX_MODELS}
    made |= {"minilm": models.minilm(), "minilm128": models.minilm(128)}
    return made | {"gpt2": models.gpt2(3, 48, 192, 6), "llama": models.llama(3, 40, 256, 8)}


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu2", help="cpuN: one of N devices on this machine's cores")
    parser.add_argument("--networks", type=int, default=114, metavar="N", help="how many random networks")
    parser.add_argument("--seed", type=int, default=0, help="of the random networks")
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="pairs of kernels of each network")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=" or ".join(ENDINGS))
    args = parser.parse_args()
    if args.output.suffix not in ENDINGS:  # said before hours of measuring
        parser.error(f"--output {args.output}: the name of a profile ends in {' or '.join(ENDINGS)}")
    return args


def main() -> None:
    args = arguments()
    from tvm_sched.relax.profile_models import profile_models
    from tvm_sched.relax.profiling.random_networks import random_networks

    def tell(what: str, done: int, of: int) -> None:
        print(f"{done + 1}/{of} {what}", file=sys.stderr, flush=True)

    models = networks() | random_networks(args.networks, args.seed)
    profile_models(models, args.device, alone=False, pairs=args.pairs, progress=tell).save(args.output)


if __name__ == "__main__":
    main()
