"""The command `sweep`: a model over variants of a machine."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tvm_sched_runtime.errors import InputError

from ..worker_pool import LOCAL, executor_of
from .attached_commands import PLAN
from .inputs import OptionalTopology, ReportFile
from .methods import SchedulerOptions
from .model_options import OfferedVariants, RequestOptions, model_warnings
from .output import INTERRUPTED, Output
from .registration import app, command

DEFAULT_WORK = 1.0
"""Seconds of work for each variant: with work, and no time limit, the same seed gives the same table."""


@dataclass(frozen=True)
class SweepOptions:
    """The varied properties of the machine, prices and target."""

    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="KEY=VALUES",
            help="gpus=1..8, link=pcie3,pcie4,nvlink, bandwidth=0.5,1,2 (factors of all buses and links), disk=none,3.5GB/s "
            "(parameters lie there when a run begins), batch=1,8,32, or topology=v100-server,p4d. May be repeated: every "
            "combination is a variant.",
        ),
    ]
    price: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="[NAME=]PRICE",
            help="Price an hour of each device; with a name: of devices whose model contains it, such as H200=4, or more "
            "for each device joined by that link, such as nvlink=0.3. May be repeated.",
        ),
    ] = None
    target: Annotated[
        float | None, typer.Option("--target", metavar="MS", help="Latency in ms: say which variant is enough for it.")
    ] = None
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="KIND[:ADDRESS]",
            help="Where schedules are computed; processes:4 are four of this machine.",
        ),
    ] = LOCAL


@command(app, "sweep", ".sweep:Sweep", panel=PLAN, apart=True)
def sweep(
    out: Output,
    *,
    source: Annotated[
        Path, typer.Argument(metavar="MODEL|PROBLEM", help="As in `schedule`; one of them.", show_default=False)
    ],
    topology: OptionalTopology = None,
    over: SweepOptions,
    method: SchedulerOptions,
    model_options: RequestOptions,
    offered: OfferedVariants,
    report: ReportFile = None,
) -> None:
    """Schedule a model on variants of a machine: which is enough, and where another GPU stops paying.

    For each variant: predicted latency, the bound that no schedule of these kernels is
    below, inferences a second if runs follow one another, and costs by --price. --report
    writes a page that shows the schedule of each variant. Ctrl-C keeps finished rows.

    $ tvm-sched sweep model.onnx -t v100-server --vary gpus=1..8 --vary link=pcie3,pcie4,nvlink --target 2
    $ tvm-sched sweep gpt2-large --shape 1x128 -t p4d --vary gpus=1,2,4,8 --vary batch=1,8 --report sweep.html
    $ tvm-sched sweep problem.json --vary bandwidth=0.25,0.5,1,2,4 --report sweep.html
    $ tvm-sched sweep model.onnx --vary topology=v100-server,p4d,h200x8 --price V100=2.5 --price A100=3 --price H200=5
    """
    if over.target is not None and not 0 < over.target < float("inf"):
        raise InputError(f"--target {over.target}: a number of milliseconds above 0 is allowed")
    from ..schedulers import get
    from ..sweep import Grid, parse_prices, parse_vary, run, summarise

    chosen = get(method.scheduler)
    options = method.of(chosen, out)
    if "work" in chosen.option_names and not {"work", "time_limit"} & options.keys():
        options["work"] = DEFAULT_WORK
    grid = Grid(
        source, topology, parse_vary(over.vary), replace(model_options, **offered), parse_prices(over.price or ())
    )
    executor = executor_of(over.workers)
    try:
        with out.step(f"Sweeping {source.name}") as step, model_warnings(out):
            solved, complete = run(grid, method.scheduler, options, executor, step)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():  # after Ctrl-C they still compute
            process.kill()
    if not complete and not solved:
        raise KeyboardInterrupt
    table = summarise(grid, solved, method.scheduler, options, over.target and over.target / 1e3)
    if report:
        from ..report.sweep_page import write_sweep_page

        write_sweep_page(report, table, solved)
        out.wrote(report, "report")
    from ..report.sweep_page import sweep_table

    out.show(sweep_table(table), *(escape(answer) for answer in table.answers))
    out.result(table)
    if not complete:
        out.say(f"interrupted; {len(solved)} of {table.wanted} rows are finished")
        out.finish()
        raise typer.Exit(INTERRUPTED)
