"""What the bounds of the benchmark's instances leave open, by group, and what is missing where it is much.

Of the instances that have a best known solution: the gap between it and the strongest bound that is kept beside it. With
``--prove`` the package's bounds are computed anew first, and those that say more are kept with their evidence, which
`tvm_sched_check` has checked; those of partitions come from runs (`tvm-sched bench table --keep-bounds`).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from _common import HALVES, half, parser
from _result_page import Page

from tvm_sched_bench import BestKnown, Suite, load_suite, prove_kept
from tvm_sched_bench.best_known import Known

SUITE = Path(__file__).parent / "instances"
MEDIAN_AIM, OPEN, SHARE_AIM = 0.01, 0.08, 0.95

REASONS = {
    "networks, cold": """copies and whole loads. The bound weighs paths, devices and buses ([path and
  bus](../proofs/path_and_bus.md)), each operator loaded or reading directly. Most of what looked like a weak bound was
  weak schedules: with the sets of operators to read directly decided first (`schedulers/anytime/direct_reads.py`) the
  best known ones are 0 to 18 % faster, that of ResNet-50 on p4d took 1,444,851 ns in place of 1,748,399. Stretches
  between operators that all others precede or follow are priced as wholes: GoogLeNet on three A6000 had 23.3 % open
  before, SqueezeNet on v100-server 12.0 %. What is left: a direct read may begin in the midst of a load, loads need not
  be in time, and nothing is paid where a stretch begins on another device than the one before ended on. So ResNet-50,
  nearly a chain, is left with 4 to 10 %. That the buses carry what precedes each operator before it ends would add 1
  % or less to the linear program for GoogLeNet and ResNet-50, 4 % for SqueezeNet on v100-server (measured in a
  prototype before). Schedules are at fault as well: with 60 s of work, annealing that also moved the kind of access
  ([why it is not kept](removed_methods.md#kinds-of-access-as-a-move-of-annealing)) found the best
  known ones of all but SqueezeNet on p4d, which is proved optimal: 0.6 to 4.3 % shorter than those before.""",
    "regal, 32 stages": """graphs s0 and s3. The semidefinite bound stalls (10.5 % of s0 after 800 iterations).
  Prices of nodes left 7.4 % of s6 open, where it left 11.5 %; for s0 they were not found: the linear program stood at
  32.67 stages after 200 s of a core, where more than 32 means that there may be such prices, and less than 32 that
  there are none. Long annealing, three runs of 32 million moves, made the best known partitions of this group up to 5 %
  cheaper, and may do so again.""",
    "moirai": """copies. With free ones the best schedules found of Inception-v4 and GoogLeNet are 6.3 % and 0.1 % above the
  bound (6,803,090 and 928,021 ns); with true ones 14.1 % and 5.3 %. Bounds see copies inside of regions of at most 64
  operators, of which 10, 18 or all have places, and between neighbours.""",
}


def group_of(name: str) -> str:
    """Return the family of an instance, subdivided if its parts differ much."""
    family, _, instance = name.partition("/")
    if family == "networks":
        return f"networks, {instance.rpartition('-')[2]}"
    return f"regal, {instance.rpartition('-s')[2]} stages" if family == "regal" else family


def gap(suite: Suite, name: str, known: Known) -> float:
    """Return the gap between the best known solution and its bound."""
    case = suite.case(name)
    if case is None:
        raise SystemExit(f"best.json knows {name!r}, which is no instance of the suite")
    low, high = (known.value, known.bound) if case.kind.most else (known.bound, known.value)
    return 1 - low / high if high else 0.0


def prove(suite: Suite, best: BestKnown) -> None:
    """Compute bounds by formulas and keep those stronger than the known bounds."""
    weaker = [
        case
        for case in suite.cases
        if case.name in best.instances and (known := best.of(case)) and case.kind.better(known.bound, case.proof.bound)
    ]
    for each in prove_kept(best, weaker):
        known, new = each.before, each.now
        print(
            f"{each.case.name}: {known.bound:.10g} by {known.bound_by} -> {new.bound:.10g} by {new.bound_by}",
            file=sys.stderr,
        )


def page(by_name: dict[str, float], path: Path | None) -> Page:
    """The page of results."""
    gaps: dict[str, list[float]] = defaultdict(list)
    halves: dict[str, list[float]] = defaultdict(list)
    for name, open_part in by_name.items():
        gaps[group_of(name)].append(open_part)
        halves[half(name)].append(open_part)
    every = [*by_name.values()]
    under = sum(gap < OPEN for gap in every) / len(every)
    still = {group: [gap for gap in each if gap >= OPEN] for group, each in gaps.items()}
    if unexplained := [group for group, each in still.items() if each and group not in REASONS]:
        raise SystemExit(f"say in REASONS what is missing for {', '.join(unexplained)}")
    made = Page("What bounds leave open, and why", path)
    made.text(
        "Of the instances of [the benchmark](benchmark.md) that have a best known solution: the gap between it and the",
        f"strongest bound. The aims are a median gap of {MEDIAN_AIM:.0%} and {SHARE_AIM:.0%} of the instances under "
        f"{OPEN:.0%}.",
        f"Of {len(every)} instances: a median of {median(every):.1%}, and {under:.0%} under {OPEN:.0%}.",
    )
    made.table(
        ("half", "instances", "median gap", "largest", "under 8 %"),
        [
            (
                name,
                len(each),
                f"{median(each):.2%}",
                f"{max(each):.1%}",
                f"{sum(gap < OPEN for gap in each) / len(each):.1%}",
            )
            for name in HALVES
            if (each := halves[name])
        ],
    )
    rows = (
        (group, len(each), f"{median(each):.1%}", f"{max(each):.1%}", len(still[group]))
        for group, each in sorted(gaps.items())
    )
    made.table(("group", "instances", "median gap", "largest", "8 % or more"), rows)
    made.text("For each group with open instances, what is missing:")
    made.text(*(f"- **{group}**: {REASONS[group]}" for group in sorted(still) if still[group]))
    return made


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--prove", action="store_true", help="compute bounds anew and keep those that say more")
    options = arguments.parse_args()
    suite = load_suite(SUITE)
    best = BestKnown(suite)
    if options.prove:
        prove(suite, best)
    page({name: gap(suite, name, known) for name, known in best.instances.items()}, options.markdown).write()


if __name__ == "__main__":
    main()
