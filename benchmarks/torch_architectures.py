"""Architectures of transformers, timm, torchvision and our own through torch.export: right, refused, wrong, failed.

Each runs in a process of its own, with a limit. Results go to a JSON file as they come; a run that finds the file takes up
where it ended. ``--markdown`` writes the page from them. Needs ``pip install tvm_sched[torch,transformers] timm torchvision``; those of a
package that is missing are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("TVM_SCHED_COSTS", "roofline")  # values are compared, not times: no kernel has to be measured

from _fork_server import run_forked

TOLERANCE = 1e-4


def main() -> int:
    arguments = _arguments()
    from _torch_architectures import architectures

    warnings.simplefilter("ignore")
    known = {name: each for name, each in architectures().items() if _selected(name, arguments)}
    results: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    _warm_up()
    wanted = [name for name in known if not known[name].missing and (arguments.again or name not in results)]
    work = run_forked(
        lambda name: _judge(known[name], arguments), wanted, seconds=arguments.limit, jobs=arguments.jobs
    )
    for name, result, failure, took in work:
        results[name] = result or {"verdict": "failed", "why": str(failure)[-1500:]}
        results[name]["seconds"] = round(took, 1)
        arguments.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"{results[name]['verdict']}: {name} ({took:.0f} s) {results[name]['why'][:300]}", flush=True)
    counts = Counter(results[name]["verdict"] for name in known if name in results)
    print(f"{sum(counts.values())} models: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
    return 1 if counts["wrong"] or counts["failed"] else 0


def _selected(name: str, arguments: argparse.Namespace) -> bool:
    return not arguments.only or any(part in name for part in arguments.only)


def _warm_up() -> None:
    import torch
    import transformers  # noqa: F401
    from _cpu_models import _import_torchvision

    import tvm_sched.relax

    _import_torchvision()
    import timm  # noqa: F401

    torch.set_num_threads(1)
    tvm_sched.relax.compile(torch.export.export(torch.nn.ReLU(), (torch.zeros(3),)), "cpu1", "heft")


def _judge(each: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """``right``, ``wrong``, ``refused``, ``failed``, or ``not exported``, and why."""
    import traceback

    import numpy as np
    import torch

    from tvm_sched.errors import TvmSchedError
    from tvm_sched.relax import compile

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    try:
        module, inputs = each.make()
        right = [t.numpy() for t in _leaves(module(*(t.clone() for t in inputs)))]
        again = [t.numpy() for t in _leaves(module(*(t.clone() for t in inputs)))]
    except Exception as error:
        return {"verdict": "not made", "why": traceback.format_exc()[-600:]}
    if any(not np.array_equal(a, b, equal_nan=True) for a, b in zip(right, again, strict=True)):
        return {"verdict": "not exported", "why": "its results are random"}
    try:
        program = torch.export.export(module, tuple(t.clone() for t in inputs), strict=False)
    except Exception as error:
        return {"verdict": "not exported", "why": f"{type(error).__name__}: {str(error)[:500]}"}
    try:
        result = compile(program, arguments.target, "heft", cost_model="roofline").run(*[t.numpy() for t in inputs])
    except TvmSchedError as error:
        return {"verdict": "refused", "why": str(error)}
    except Exception:
        return {"verdict": "failed", "why": traceback.format_exc()[-1500:]}
    found = result if isinstance(result, list) else [result]
    return _compared(found, right)


def _leaves(results: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _compared(found: list[Any], right: list[Any]) -> dict[str, Any]:
    import numpy as np

    if len(found) != len(right):
        return {"verdict": "wrong", "why": f"{len(found)} results, not {len(right)}"}
    worst = 0.0
    for number, (mine, theirs) in enumerate(zip(found, right, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return {"verdict": "wrong", "why": f"result {number} is {mine.dtype}{mine.shape}, not {theirs.dtype}{theirs.shape}"}
        if not theirs.size:
            continue
        a, b = mine.astype("float64"), theirs.astype("float64")
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        off = np.where(same, 0, np.abs(np.where(same, 0, a) - np.where(same, 0, b)))
        apart = float(np.nan_to_num(off, nan=np.inf).max() / (scale or 1))
        worst = max(worst, apart)
        if apart > TOLERANCE:
            return {"verdict": "wrong", "why": f"result {number} of {len(right)} differs by {apart:.3g} of {scale:.3g} in {(~same).sum()} of {a.size}"}
    flat = all(r.size < 2 or np.nanstd(r.astype("float64")) == 0 for r in right)
    return {"verdict": "right", "why": "constant results" if flat else "", "difference": worst}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="models whose name has this in it; may stand several times")
    parser.add_argument("--again", action="store_true", help="run what is selected although its results are there")
    parser.add_argument("--jobs", type=int, default=2, help="models at once (default 2)")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which one is killed (default 240)")
    parser.add_argument("--json", type=Path, default=Path("torch_architectures.json"), help="results, kept between runs")
    parser.add_argument("-t", "--target", default="cpu1", help="machine to compile for (default cpu1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
