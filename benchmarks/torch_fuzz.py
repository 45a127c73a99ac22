"""Random torch modules exported, compiled here and compared with torch: right, refused, wrong.

``python benchmarks/torch_fuzz.py --count 500 --seed 0`` ends with status 1 where a module is wrong or the compiler fails
with another error than its own; the first is printed shrunk with ``--shrink``.
An interrupted run counts what it examined. Tolerances: `tvm_sched.testing.torch_modules`.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from functools import partial
from typing import Any

import hypothesis

from tvm_sched.errors import TvmSchedError
from tvm_sched.testing.torch_modules import RandomModule, difference, torch_modules


def compile_and_run(program: Any, feeds: list[Any], target: str = "cpu2") -> list[Any]:
    """With costs by the roofline: what is measured decides on speed, not on values."""
    import tvm_sched.relax

    result = tvm_sched.relax.compile(program, target, "heft", cost_model="roofline").run(*feeds)
    return result if isinstance(result, list) else [result]


def judge(module: RandomModule, target: str = "cpu2") -> tuple[str, str]:
    """``right``, ``refused``, ``not exported``, ``wrong`` or ``failed``, and why."""
    try:
        module.export()
    except Exception as error:
        return "not exported", f"{type(error).__name__}: {error}"
    try:
        told = difference(module, partial(compile_and_run, target=target))
    except TvmSchedError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return ("wrong", told) if told else ("right", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="modules (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="of hypothesis (default 0)")
    parser.add_argument("--steps", type=int, default=5, help="most steps of a module (default 5)")
    parser.add_argument("-t", "--target", default="cpu2", help="machine to compile for (default cpu2)")
    parser.add_argument("--shrink", action="store_true", help="stop at the first that is wrong, and make it small")
    parser.add_argument("--refused", action="store_true", help="print the modules that are refused, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    started = time.monotonic()

    @hypothesis.seed(options.seed)
    @hypothesis.settings(
        max_examples=options.count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(torch_modules(options.steps))
    def examine(module: RandomModule) -> None:
        verdict, why = judge(module, options.target)
        counts[verdict] += 1
        if verdict in ("refused", "not exported"):
            reasons[f"{verdict}: {re.sub('[0-9]+', '#', why.splitlines()[0])[:160]}"] += 1
            if options.refused:
                print(f"{verdict}: {why[:500]}\n{module}\n", flush=True)
        elif verdict != "right":
            if options.shrink:
                raise AssertionError(f"{verdict}: {why}")
            print(f"{verdict}: {why[:500]}\n{module}\n", flush=True)

    try:
        examine()
    except KeyboardInterrupt:
        print("interrupted; of the modules until then:")
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    total = sum(counts.values())
    print(f"{total} modules, seed {options.seed}, {time.monotonic() - started:.0f} s: "
          + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))  # fmt: skip
    return 1 if counts["wrong"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
