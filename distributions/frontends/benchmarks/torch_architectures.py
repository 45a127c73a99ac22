"""Architectures of transformers, timm, torchvision and our own through torch.export: right, refused, wrong, failed.

Each runs in a process of its own, with a limit. Results go to a JSON file as they come; a run that finds the file takes up
where it ended. ``--markdown`` writes a page of what the file holds, beside what became of each model when it was first run
(``data/torch_architectures.json``). It needs timm and torchvision; models of packages that are missing are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the parent forks: it must have one thread
os.environ.setdefault("TVM_SCHED_COSTS", "roofline")  # values are compared, not times: no kernel has to be measured

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))  # what all benchmarks share
import numpy as np
from _fork_server import run_forked, write_results
from _result_page import Page

TOLERANCE = 1e-4
FIRST = Path(__file__).parent / "data" / "torch_architectures.json"
"""Verdicts of first runs, before anything was changed for a model: ``{name: [verdict, reason]}``."""
UNFIT = ("not made", "not exported")
"""Verdicts that say nothing of this package."""


def main() -> int:
    arguments = _arguments()
    from _torch_architectures import architectures

    warnings.simplefilter("ignore")
    known = {name: each for name, each in architectures().items() if _selected(name, arguments)}
    results: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    wanted = [name for name in known if not known[name].missing and (arguments.again or name not in results)]
    if wanted and not arguments.page_only:
        _warm_up()
        work = run_forked(
            lambda name: _judge(known[name], arguments), wanted, seconds=arguments.limit, jobs=arguments.jobs
        )
        for name, result, failure, took in work:
            results[name] = result or {"verdict": "failed", "why": _last_line(str(failure))}
            write_results(arguments.json, results)
            print(f"{results[name]['verdict']}: {name} ({took:.0f} s) {results[name]['why']}", flush=True)
    counts = _counts(results[name]["verdict"] for name in known if name in results)
    print(f"{sum(counts.values())} models: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()))
    if arguments.markdown:
        _page(results, arguments.about, arguments.markdown).write()
    return 1 if counts["wrong"] or counts["failed"] else 0


def _selected(name: str, arguments: argparse.Namespace) -> bool:
    return not arguments.only or any(part in name for part in arguments.only)


def _counts(verdicts: Iterable[str]) -> Counter[str]:
    return Counter(verdict for verdict in verdicts if verdict not in UNFIT)


def _warm_up() -> None:
    """Import and compile once what every child needs."""
    import torch
    import transformers  # noqa: F401

    import tvm_sched.relax

    torch.set_num_threads(1)
    tvm_sched.relax.compile(torch.export.export(torch.nn.ReLU(), (torch.zeros(3),)), "cpu1", "heft")


def _judge(each: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return ``right``, ``imported``, ``wrong``, ``refused``, ``failed`` or a verdict of `UNFIT`, and why."""
    import torch

    from tvm_sched.relax import compile, load_model
    from tvm_sched_runtime.errors import TvmSchedError

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    verdict = "not made"
    try:
        module, inputs = each.make()
        right, again = ([t.numpy() for t in _tensors(module(*(t.clone() for t in inputs)))] for _ in range(2))
        if _difference(again, right)[0]:
            return {"verdict": "not made", "why": "its results are random"}
        verdict = "not exported"
        program = torch.export.export(module, tuple(t.clone() for t in inputs), strict=False)
        verdict = "failed"
        if arguments.import_only:
            load_model(program)
            return {"verdict": "imported", "why": ""}
        result = compile(program, arguments.target, "heft", cost_model="roofline").run(*[t.numpy() for t in inputs])
    except TvmSchedError as error:
        return {"verdict": "refused", "why": str(error)}
    except Exception:
        return {"verdict": verdict, "why": _last_line(traceback.format_exc())}
    why, worst = _difference(result if isinstance(result, list) else [result], right)
    return {"verdict": "wrong" if why else "right", "why": why, "difference": worst}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith(("File ", "^", "~"))]
    return (errors or lines or [""])[-1][:300]


def _tensors(results: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


def _difference(found: list[Any], right: list[Any]) -> tuple[str, float]:
    """Return what is wrong, empty if nothing is, and the largest difference over the tensor's largest magnitude."""
    if len(found) != len(right):
        return f"{len(found)} results, not {len(right)}", np.inf
    worst = 0.0
    for number, (mine, theirs) in enumerate(zip(found, right, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            told = f"result {number} is {mine.dtype}{list(mine.shape)}, not {theirs.dtype}{list(theirs.shape)}"
            return told, np.inf
        a, b = mine.astype("float64"), theirs.astype("float64")
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(np.where(same, 0, np.abs(a - b)), nan=np.inf)
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) or 1.0
        worst = max(worst, float(apart.max(initial=0.0)) / scale)
        if worst > TOLERANCE:
            return f"result {number} differs by {worst:.2g} of its largest value {scale:.2g}", worst
    return "", worst


def _shown(verdict: str) -> str:
    return "converted only" if verdict == "imported" else verdict


def _page(results: dict[str, Any], about: str, path: Path) -> Page:
    """Make the page; ``about`` names commit, machine and day of the results."""
    import torch
    import transformers

    first = json.loads(FIRST.read_text())
    names = [name for name in sorted(results) if results[name]["verdict"] not in UNFIT]
    now, before = (
        _counts(results[name]["verdict"] for name in names),
        _counts(first.get(name, ["", ""])[0] for name in names),
    )
    page = Page("Architectures of PyTorch", path, notes=about)
    page.text(
        "Networks at small sizes with random weights, exported by `torch.export`, compiled with the roofline's costs, run, "
        f"and compared with eager PyTorch. *Right* is a difference of at most {TOLERANCE:g} of each result's largest value. "
        "*Converted only* is no success: those were converted to Relax, and neither compiled nor run. "
        f"torch {torch.__version__}, transformers {transformers.__version__}."
    )
    verdicts = ("right", "imported", "refused", "wrong", "failed")
    runs = (("first run", before), ("now", now))
    counts = ([name, sum(found[v] for v in verdicts), *(found[v] for v in verdicts)] for name, found in runs)
    page.table(["", "models", *map(_shown, verdicts)], counts)
    rows = []
    for name in names:
        why = (results[name]["why"] or first.get(name, ["", ""])[1]).split("; change it in the model")[0]
        rows.append(
            (name, _shown(first.get(name, ["", ""])[0]), _shown(results[name]["verdict"]), why.replace("|", "/"))
        )
    head = ("model", "first run", "now", "why")
    page.data(head, rows)
    page.text("Those that are not right:")
    page.table(head, [row for row in rows if row[2] != _shown("right")], left=4)
    return page


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="models whose name has this in it; may stand several times")
    parser.add_argument("--again", action="store_true", help="run what is selected although its results are there")
    parser.add_argument(
        "--import-only", action="store_true", help="convert the programs, and neither compile nor run them"
    )
    parser.add_argument("--jobs", type=int, default=2, help="models at once (default 2)")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which one is killed (default 240)")
    parser.add_argument(
        "--json", type=Path, default=Path("torch_architectures.json"), help="results, kept between runs"
    )
    parser.add_argument("--markdown", type=Path, help="write a page of the results here")
    parser.add_argument("--about", default="", help="a sentence for the page: commit, machine, day of the results")
    parser.add_argument("--page-only", action="store_true", help="run nothing; for --markdown")
    parser.add_argument("-t", "--target", default="cpu1", help="machine to compile for (default cpu1)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
