"""Random torch modules exported, compiled here and compared with torch: right, refused, wrong.

``python distributions/frontends/benchmarks/torch_fuzz.py --count 500 --seed 0`` ends with status 1 if a module is wrong or
the compiler fails with another error than its own; the first is printed shrunk with ``--shrink``.
An interrupted run counts what it examined. Tolerances: `frontends.fuzz.torch_modules`.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import _random_models

from frontends.fuzz.torch_modules import RandomModule, difference, torch_modules


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
    return _random_models.judge(lambda: difference(module, partial(compile_and_run, target=target)))


def main() -> int:
    parser = _random_models.parser(__doc__.splitlines()[0], "module", count=500, steps=5)
    parser.add_argument("-t", "--target", default="cpu2", help="machine to compile for (default cpu2)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    return _random_models.examine(
        torch_modules(options.steps), partial(judge, target=options.target), options, "module"
    )


if __name__ == "__main__":
    sys.exit(main())
