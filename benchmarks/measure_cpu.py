"""Measure the kernels of the data that the shipped cost model is trained on, on a CPU device of this machine.

Twelve real networks and many random ones, in one pass without the database of measurements. Nothing else should run
meanwhile: `python benchmarks/measure_cpu.py --device cpu2 -o benchmarks/data/cpu2.json`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def networks() -> dict[str, Any]:
    """The real networks of the data, by the name that their latency has there."""
    from tvm_sched.testing import models

    made = {name: models.onnx_model(name) for name in models.ONNX_MODELS}
    made |= {"minilm": models.minilm(), "minilm128": models.minilm(128)}
    return made | {"gpt2": models.gpt2(3, 48, 192, 6), "llama": models.llama(3, 40, 256, 8)}


def main() -> None:
    from tvm_sched.relax.profile import profile_models
    from tvm_sched.relax.random_networks import random_networks

    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--device", default="cpu2", help="cpuN: one of N devices on this machine's cores")
    arguments.add_argument("--networks", type=int, default=114, metavar="N", help="how many random networks")
    arguments.add_argument("--seed", type=int, default=0, help="of the random networks")
    arguments.add_argument("--pairs", type=int, default=0, metavar="N", help="pairs of kernels of each network")
    arguments.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".json or .parquet")
    args = arguments.parse_args()

    def tell(what: str, done: int, of: int) -> None:
        print(f"{done + 1}/{of} {what}", file=sys.stderr, flush=True)

    models = networks() | random_networks(args.networks, args.seed)
    profile = profile_models(models, args.device, alone=False, pairs=args.pairs, progress=tell)
    profile.save(args.output)


if __name__ == "__main__":
    main()
