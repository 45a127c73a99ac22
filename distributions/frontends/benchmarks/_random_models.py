"""What the benchmarks of random models share: their arguments, the loop over the models, and the counts."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis.strategies import SearchStrategy

from tvm_sched_runtime.errors import TvmSchedError

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))  # for frontends.fuzz, which is in no wheel

FAILURES = ("wrong", "failed")
"""Verdicts that are faults of this package."""


def parser(description: str, noun: str, count: int, steps: int) -> argparse.ArgumentParser:
    """Make the shared arguments; ``noun`` is the name of a model, ``count`` and ``steps`` are defaults."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--count", type=int, default=count, help=f"{noun}s (default {count})")
    result.add_argument("--seed", type=int, default=0, help="of hypothesis (default 0)")
    result.add_argument("--steps", type=int, default=steps, help=f"most steps of a {noun} (default {steps})")
    result.add_argument("--shrink", action="store_true", help="stop at the first that is wrong, and make it small")
    result.add_argument("--refused", action="store_true", help=f"print the {noun}s that are refused, too")
    return result


def judge(compare: Callable[[], str]) -> tuple[str, str]:
    """``right``, ``refused``, ``wrong`` or ``failed``, and why; ``compare`` returns what differs."""
    try:
        told = compare()
    except TvmSchedError as error:
        return "refused", str(error)
    except Exception as error:
        return "failed", f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return ("wrong", told) if told else ("right", "")


def examine(
    models: SearchStrategy[Any],
    verdict_of: Callable[[Any], tuple[str, str]],
    options: argparse.Namespace,
    noun: str,
    found: Callable[[Any, str, int], None] | None = None,
) -> int:
    """Judge random models and print the counts; 1 where one is wrong or the compiler fails, else 0.

    Parameters
    ----------
    verdict_of
        A model's verdict, and why.
    options
        Of `parser`.
    found
        Called with each model that is wrong or fails, the verdict, and how many had it so far.
    """
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    started = time.monotonic()

    @hypothesis.seed(options.seed)
    @hypothesis.settings(
        max_examples=options.count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(models)
    def one(model: Any) -> None:
        verdict, why = verdict_of(model)
        counts[verdict] += 1
        if verdict in FAILURES and options.shrink:
            raise AssertionError(f"{verdict}: {why}")
        if verdict in FAILURES or (verdict != "right" and options.refused):
            print(f"{verdict}: {why[:500]}\n{model}\n", flush=True)
        if verdict in FAILURES and found is not None:
            found(model, verdict, counts[verdict])
        if verdict not in (*FAILURES, "right"):
            reasons[f"{verdict}: {re.sub('[0-9]+', '#', why.strip().partition(chr(10))[0])[:160]}"] += 1

    try:
        one()
    except KeyboardInterrupt:
        print(f"interrupted; of the {noun}s until then:")
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    each = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{counts.total()} {noun}s, seed {options.seed}, {time.monotonic() - started:.0f} s: {each}")
    return 1 if any(counts[verdict] for verdict in FAILURES) else 0
