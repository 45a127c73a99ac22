"""The command ``profile``: measure kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import one_shape, parse_shapes

from .attached_commands import MACHINE
from .inputs import Writes
from .interrupt import interruptible
from .model_options import Shapes
from .output import Output
from .registration import app, command

KERNELS = "kernels"
"""Name of the random networks in place of a model."""


@command(app, "profile", ".report.profiles:ProfileSummary", panel=MACHINE, apart=True)
def profile(
    out: Output,
    source: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL|kernels...", help="Models, or `kernels` for a set of random networks."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the profile: .parquet or .json."),
        Writes((".parquet", ".json")),
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="cpu|cpuN|cuda:N", help="cpuN: one of N devices on this machine's cores; cuda:N: a GPU."
        ),
    ] = "cpu",
    shape: Shapes = None,
    networks: Annotated[int, typer.Option("--networks", metavar="N", help="How many random networks.")] = 24,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random networks.")] = 0,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Measure all kernels anew, also those in the database of measurements.")
    ] = False,
    pairs: Annotated[
        int,
        typer.Option("--pairs", metavar="N", help="How many pairs of each model's kernels to measure in parallel."),
    ] = 6,
    in_run_only: Annotated[
        bool, typer.Option("--in-run-only", help="Leave out measuring kernels alone, warm and cold, and in parallel.")
    ] = False,
) -> None:
    """Measure every distinct kernel of models on this machine, until their times are known to 2 %.

    What was measured once, with the same versions, is taken from a database in
    the user's cache directory.

    $ tvm-sched profile googlenet.onnx -o profile.parquet
    $ tvm-sched profile bert.onnx kernels --device cpu2 --shape ids:1,128 -o profile.json
    """
    if networks < 1 or seed < 0 or pairs < 0:
        raise InputError(
            f"--networks {networks} --seed {seed} --pairs {pairs}: at least 1, at least 0 and at least 0 are allowed"
        )
    shapes = one_shape(parse_shapes(shape), "a profile is of one")
    models = _models(source, networks, seed)
    from ..cost_model.database import Database
    from ..report.profiles import ProfileSummary, profile_tables

    with interruptible(out), out.step("Profiling") as step:
        from ..relax.profile_models import profile_models

        measured = profile_models(
            models, "cpu1" if device == "cpu" else device, input_shapes=shapes,
            database=Database(), again=no_cache, alone=not in_run_only, pairs=0 if in_run_only else pairs, progress=step,
        )  # fmt: skip
    measured.save(output)
    out.wrote(output, "profile")
    summary = ProfileSummary.of(measured)
    out.show(*profile_tables(measured))
    if summary.contention:
        out.say(summary.sentence())
    out.result(summary)


def _models(source: list[Path], networks: int, seed: int) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for each in source:
        if str(each) == KERNELS:
            from ..relax.profiling.random_networks import random_networks

            models |= random_networks(networks, seed)
        elif not each.is_file():
            raise InputError(f"{each}: no such file; give models, or the word {KERNELS!r}")
        else:
            models[each.stem] = each
    return models
