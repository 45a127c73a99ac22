"""HIOS: operators over several devices and in stages within each, after Kundu and Shu (IPDPS Workshops 2023)."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.checks import require_at_least
from tvm_sched_runtime.problem import Problem, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule

from ..registry import NoOptions
from .common import native_methods
from .scheduler_registry import register


class HiosOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `hios-lp`, `hios-mr` and `hios-mr-anywhere`.

    Parameters
    ----------
    window : int
        Largest number of operators in a stage (K of the paper); 1: no stages.
    streams : int, optional
        Most streams of a device (L of the paper); the operators of a stage get them in turn, and those of one stream run one
        after another. None: each operator of a stage has its own.
    """

    window: int = 2
    streams: int | None = None

    def __post_init__(self) -> None:
        require_at_least(self, window=1)
        if self.streams is not None:
            require_at_least(self, streams=1)


def _hios(scenario: Scenario, mapping: native_methods.Mapping, options: HiosOptions) -> Schedule:
    streams = max(1, min(options.streams or options.window, len(scenario.graph.operators)))
    return native_methods.fit_into_memory(native_methods.hios(scenario, mapping, options.window, streams)).to_schedule()


WITHOUT_STAGES = HiosOptions(window=1)


@register("hios-lp", options=HiosOptions)
def hios_lp(problem: Problem, workload: Workload, options: HiosOptions) -> Schedule:
    """HIOS-LP: longest paths one after another, each on the device where it ends first; then stages by a sliding window.

    Algorithms 1 and 2 of HIOS. Paths use mean times over devices and links, which may be unequal here. As in the paper, the
    choice of devices ignores contention for links and loads of parameters. In the final schedule loads and copies take
    turns, and it is priced so. O(paths x (operators + edges) x devices), then O(operators x window x
    (operators + edges)). Without concurrency in the costs there are no stages.

    A group of Algorithm 2 that brings no gain leaves no trace, as the paper's text has it. Line 11 as printed would keep it
    in the graph, where later groups join it and stages grow beyond the window.

    Raises
    ------
    InfeasibleError
        The schedule needs too much memory, which HIOS ignores, and no repair succeeds.
    """
    return _hios(workload.scenario(problem), "paths", options)


@register("hios-mr", options=HiosOptions)
def hios_mr(problem: Problem, workload: Workload, options: HiosOptions) -> Schedule:
    """HIOS-MR: for each operator and device the best of the mappings recorded for the operators before; then stages.

    Algorithms 3 and 2 of HIOS as printed: the first operator is on the first device, the i-th on one of the first i. On
    unequal devices `hios-mr-anywhere` is the better choice. O(operators^2 x devices + edges x devices^2), then as `hios-lp`.

    Raises
    ------
    InfeasibleError
        As `hios-lp`; or the first device cannot run the first operator.
    """
    return _hios(workload.scenario(problem), "records", options)


@register("hios-mr-anywhere", options=HiosOptions)
def hios_mr_anywhere(problem: Problem, workload: Workload, options: HiosOptions) -> Schedule:
    """`hios-mr` with each operator on any device, also the first: ours, for unequal devices.

    On equal devices the table then holds mirror images of a mapping instead of different ones.

    Raises
    ------
    InfeasibleError
        As `hios-lp`.
    """
    return _hios(workload.scenario(problem), "records-anywhere", options)


@register("hios-lp-inter")
def hios_lp_inter(problem: Problem, workload: Workload, options: NoOptions) -> Schedule:
    """HIOS-LP without stages: Algorithm 1 of HIOS, lines 1 to 16."""
    return _hios(workload.scenario(problem), "paths", WITHOUT_STAGES)


@register("hios-mr-inter")
def hios_mr_inter(problem: Problem, workload: Workload, options: NoOptions) -> Schedule:
    """HIOS-MR without stages: Algorithm 3 of HIOS, lines 1 to 26."""
    return _hios(workload.scenario(problem), "records", WITHOUT_STAGES)
