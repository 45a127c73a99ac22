"""The command ``learn``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from tvm_sched.cli.attached_commands import MACHINE
from tvm_sched.cli.inputs import Writes
from tvm_sched.cli.interrupt import interruptible
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError

if TYPE_CHECKING:
    from tvm_sched.cost_model.learned_model import ErrorInterval, LearnedModel

app = typer.Typer()


@command(app, "learn", "tvm_sched_bench.training.command:LearnedSummary", panel=MACHINE)
def learn(
    out: Output,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.msgpack", help="Where to write the model, for --costs."),
        Writes((".msgpack",)),
    ],
    profiles: Annotated[
        list[Path] | None, typer.Argument(metavar="[PROFILE]...", help="What `tvm-sched profile` wrote.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="GPU latencies of the package aiconfigurator-core.")
    ] = True,
    vidur: Annotated[
        Path | None, typer.Option("--vidur", metavar="FOLDER", help="A checkout of vidur's compute profiles.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Same data and seed, same model.")] = 0,
) -> None:
    """Learn a cost model from published measurements of GPUs, and from profiles of your own machines.

    $ tvm-sched learn -o model.msgpack
    $ tvm-sched learn profile.parquet --vidur vidur/data/profiling/compute --seed 1 -o model.msgpack
    """
    if seed < 0:
        raise InputError(f"--seed {seed}: 0 or more is allowed")
    from .sources import read_samples
    from .train import train

    with interruptible(out), out.step("Learning") as step:
        step("reading measurements", 0, 0)
        samples, about = read_samples(profiles or (), published=published, vidur=vidur)
        model = train(samples, seed, progress=step, about=about)
    model.save(output)
    out.wrote(output, "model")
    out.show(learned_table(model))
    out.result(LearnedSummary(model.about, len(samples)))


class LearnedSummary(msgspec.Struct, frozen=True):
    """A learned cost model: its sources, and how many samples it was trained on."""

    about: dict[str, str]
    samples: int


def learned_table(model: LearnedModel) -> Table:
    """Return a table of the differences between measurements and the predictions of a learned model, by kind of device."""
    from tvm_sched.report.tables import table

    rows = [
        (kind, str(len(part.devices)), *(_factors(spreads[""]) for spreads in (part.known, part.unknown)))
        for kind, part in model.parts.items()
    ]
    return table(("devices", "distinct", "80 % of times / predicted", "of other devices"), rows)


def _factors(interval: ErrorInterval) -> str:
    return f"{math.exp(interval.low):.2f} to {math.exp(interval.high):.2f}"
