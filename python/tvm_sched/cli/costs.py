"""Commands on latencies: measure kernels, learn from measurements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .inputs import check_outputs
from .interrupt import interruptible
from .output import Output
from .shapes import InputShapes, one_shape, parse_shapes

if TYPE_CHECKING:
    from ..cost_model.learned_model import ErrorInterval
    from ..cost_model.profile import Profile

KERNELS = "kernels"
"""Word for the random networks where a model is expected."""


def profile(
    out: Output,
    source: Annotated[
        list[str],
        typer.Argument(metavar="MODEL|kernels...", help="Models, or `kernels` for a set of random networks."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the profile: .parquet or .json.")
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="cpu|cpuN|cuda:N", help="cpuN: one of N devices on this machine's cores; cuda:N: a GPU."
        ),
    ] = "cpu",
    input_shape: InputShapes = None,
    networks: Annotated[int, typer.Option("--networks", metavar="N", help="How many random networks.")] = 24,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random networks.")] = 0,
    again: Annotated[
        bool, typer.Option("--again", help="Measure all kernels, also those in the database of measurements.")
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
    """
    from ..cost_model.database import Database
    from ..cost_model.profile import ENDINGS

    check_outputs({"--output": (output, ENDINGS)}, [Path(each) for each in source if each != KERNELS])
    if networks < 1 or seed < 0 or pairs < 0:
        raise InputError(
            f"--networks {networks} --seed {seed} --pairs {pairs}: at least 1, at least 0 and at least 0 are allowed"
        )
    shapes = one_shape(parse_shapes(input_shape), "a profile is of one")
    models = _models(source, networks, seed)
    with interruptible(out), out.step("Profiling") as step:
        from ..relax.profile_models import profile_models

        found = profile_models(
            models, "cpu1" if device == "cpu" else device, input_shapes=shapes,
            database=Database(), again=again, alone=not in_run_only, pairs=0 if in_run_only else pairs, progress=step,
        )  # fmt: skip
    found.save(output)
    out.wrote(output, "profile")
    _show_profile(out, found, output)


def _models(source: list[str], networks: int, seed: int) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for each in source:
        if each == KERNELS:
            from ..relax.profiling.random_networks import random_networks

            models |= random_networks(networks, seed)
        elif not Path(each).is_file():
            raise InputError(f"{each}: no such file; give models, or the word {KERNELS!r}")
        else:
            models[Path(each).stem] = Path(each)
    return models


def _show_profile(out: Output, found: Profile, output: Path) -> None:
    from ..cost_model.interference import fit_profile
    from ..report.tables import table
    from ..report.units import format_time

    slowest = sorted(found.kernels, key=lambda row: -row.seconds)[:10]
    rows = []
    for row in slowest:
        times = (format_time(value) if value else "-" for value in (row.in_run, row.warm, row.cold))
        rows.append((_short(row.signature), *times, f"{row.error:.1%}"))
    out.show(table(("slowest kernels", "in the run", "warm", "cold", "± (95 %)"), rows))
    beside = []
    for pair in found.pairs[:10]:
        factors = (f"{together / alone:.2f}" for alone, together in zip(pair.alone, pair.beside, strict=True))
        beside.append((_short(pair.first), _short(pair.second), *factors))
    if beside:
        out.show(table(("kernel", "beside kernel", "times as long", "the other"), beside))
    fitted = fit_profile(found)
    if fitted is not None:
        low, high = fitted.interval
        out.say(
            f"{len(found.pairs)} pairs: serial share {fitted.serial_share:.2f}, contention {fitted.excess:.2f} of what "
            f"they ask for beyond the device; 90 % take {low:.2f} to {high:.2f} times what that says"
        )
    out.result(
        {
            "contention": fitted, "kernels": len(found.kernels), "machine": found.machine, "device": found.device,
            "latencies": found.latencies, "copies": found.copies, "pairs": len(found.pairs),
            "files": {"profile": str(output)},
        }
    )  # fmt: skip


def _short(signature: str) -> str:
    return signature if len(signature) < 60 else signature[:57] + "..."


def learn(
    out: Output,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.msgpack", help="Where to write the model, for --costs.")
    ],
    profiles: Annotated[
        list[Path] | None, typer.Argument(metavar="[PROFILE]...", help="What `tvm-sched profile` wrote.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="GPU latencies of the package aiconfigurator-core.")
    ] = True,
    vidur: Annotated[
        Path | None, typer.Option("--vidur", metavar="DIR", help="A checkout of vidur's compute profiles.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Same data and seed, same model.")] = 0,
) -> None:
    """Learn a cost model from published measurements of GPUs, and from profiles of your own machines."""
    check_outputs({"--output": (output, (".msgpack",))}, profiles or ())
    if seed < 0:
        raise InputError(f"--seed {seed}: 0 or more is allowed")
    from ..cost_model.sources import read_samples
    from ..cost_model.train import train

    with interruptible(out), out.step("Learning") as step:
        step("reading measurements", 0, 0)
        samples, about = read_samples(profiles or (), published=published, vidur=vidur)
        model = train(samples, seed, progress=step, about=about)
    model.save(output)
    out.wrote(output, "model")
    from ..report.tables import table

    rows = [
        (kind, str(len(part.devices)), *(_factors(spreads[""]) for spreads in (part.known, part.unknown)))
        for kind, part in model.parts.items()
    ]
    out.show(table(("devices", "distinct", "90 % of times / predicted", "of other devices"), rows))
    out.result({"about": model.about, "samples": len(samples), "files": {"model": str(output)}})


def _factors(interval: ErrorInterval) -> str:
    return f"{math.exp(interval.low):.2f} to {math.exp(interval.high):.2f}"
