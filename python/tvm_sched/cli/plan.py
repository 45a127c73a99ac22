"""The command ``plan``: placements for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .inputs import CostsName, TopologyName, check_directory
from .interrupt import interruptible
from .models import packages_for
from .output import Output
from .shapes import InputShapes, one_shape, parse_shapes

if TYPE_CHECKING:
    from ..plans import Row, RuntimePlan


def plan(
    out: Output,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Language model (a name such as llama-3-70b, a config.json, a folder of Hugging Face; no weights needed), "
            ".onnx for onnxruntime and openvino, .pt2 for torch.",
        ),
    ],
    topology: TopologyName,
    runtime: Annotated[
        str, typer.Option("--for", metavar="NAME", help="accelerate, vllm, llama.cpp, onnxruntime, openvino or torch.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the plan; models and scripts that belong to it beside it."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="N", help="Tokens of a sequence, new ones included. Default: 4096."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Sequences at once. Default: 1.")] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option("--new-tokens", metavar="N", help="Of the context, those generated. Default: 128 at most."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME", help="Weights: fp16 (default), bf16, fp32, int8, int4, q4_0, ..."),
    ] = None,
    cache_dtype: Annotated[
        str | None, typer.Option("--cache-dtype", metavar="NAME", help="Keys and values: fp16, bf16, fp8, q8_0, ...")
    ] = None,
    overhead: Annotated[
        str | None,
        typer.Option(
            "--overhead", metavar="BYTES", help="Memory of each GPU that the runtime takes itself, such as '1 GB'."
        ),
    ] = None,
    input_shape: InputShapes = None,
    costs: CostsName = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Say, too, which context, batch and GPUs would fit.")
    ] = False,
) -> None:
    """Split a model over a machine's GPUs for another runtime, and compare that with the runtime's default split.

    Memory is weights, keys and values, activations and the runtime's own; the plan holds the limits of
    all devices. Where nothing fits, the error says what would.
    """
    if output is not None:
        if output.is_dir():
            raise InputError(f"--output {output}: that is a directory; give a file")
        if output.resolve() == model.resolve():
            raise InputError(f"--output {output}: that is the model; give another name")
        check_directory("--output", output.parent)
    given = {"context": context, "batch": batch, "new_tokens": new_tokens, "dtype": dtype, "cache_dtype": cache_dtype}
    workload = {name: value for name, value in given.items() if value is not None}
    own = None if overhead is None else _bytes(overhead)
    shapes = one_shape(parse_shapes(input_shape), "a plan has one") if input_shape else None
    with interruptible(out), packages_for(model), out.step(f"Planning for {runtime}"):
        from ..plans import export_plan

        made = export_plan(
            model, topology, runtime, workload=workload, shapes=shapes, costs=costs or "roofline", overhead=own
        )
    written: list[Path] = []
    if output is not None:
        written = made.save(output)
        for number, path in enumerate(written):
            out.wrote(path, "plan" if number == 0 else "with it")
    _show(out, made)
    more = _limits(model, topology, runtime, workload, shapes, costs, own) if limits else []
    for sentence in more:
        out.show(sentence)
    if not made.on_gpus and not limits:
        out.say("not all of it is on GPUs, which costs time; --limits says what would fit there")
    out.result(_plan_json(made, more, written))


def _bytes(text: str) -> int:
    from ..problem.quantity import parse_quantity

    size = float(text) if text.strip().isdecimal() else parse_quantity(text, "bytes", "--overhead")
    if not 0 <= size < 1 << 60:
        raise InputError(f"--overhead {text}: 0 bytes or more, and less than 1 EiB, is allowed")
    return int(size)


def _limits(
    model: Path,
    topology: str,
    runtime: str,
    workload: dict[str, Any],
    shapes: Any,
    costs: str | None,
    overhead: int | None,
) -> list[str]:
    from ..plans import Workload
    from ..plans.fitting import advice
    from ..plans.planner import open_source
    from ..plans.runtimes import Request, get_runtime
    from ..problem import load_topology

    chosen = get_runtime(runtime)
    source = open_source(model, chosen, shapes)
    return advice(chosen, Request(source, load_topology(topology), Workload(**workload), costs or "roofline", overhead))


def _show(out: Output, made: RuntimePlan) -> None:
    from ..report.tables import table
    from ..report.units import format_ns

    phases = list(made.ours.phase_ns)
    names = {"prefill": "a pass of prompt", "decode": "a token", "run": "a run"}
    splits = (*made.defaults, made.ours)
    rows = [
        (row.label, "yes" if row.fits else "no", format_ns(row.total_ns), *(format_ns(row.phase_ns[p]) for p in phases))
        for row in splits
    ]
    rows.append(("no split is below", "", format_ns(made.lower_bound_ns), *("" for _ in phases)))
    title = f"{made.model} on {made.topology} for {made.runtime}: {made.measure}"
    out.show(table(("split", "fits", "time", *(names[phase] for phase in phases)), rows, title))
    places = dict.fromkeys(name for row in splits for name in row.held)
    memory = [(name, *(_memory(row, name) for row in splits)) for name in places]
    out.show(table(("memory, of what may be used", *(row.label for row in splits)), memory))
    for note in made.notes:
        out.say(note)


def _memory(row: Row, place: str) -> str:
    from ..report.units import format_bytes

    return f"{format_bytes(row.held[place])} of {format_bytes(row.limit[place])}" if place in row.held else ""


def _plan_json(made: RuntimePlan, limits: list[str], written: list[Path]) -> dict[str, Any]:
    def row(each: Row) -> dict[str, Any]:
        devices = [{"device": name, "bytes": size, "limit": each.limit[name]} for name, size in each.held.items()]
        return {
            "split": each.label,
            "total_ns": each.total_ns,
            "phase_ns": each.phase_ns,
            "fits": each.fits,
            "memory": devices,
        }

    return {
        "runtime": made.runtime, "model": made.model, "topology": made.topology, "costs": made.costs,
        "measure": made.measure,
        "ours": row(made.ours), "defaults": [row(each) for each in made.defaults], "lower_bound_ns": made.lower_bound_ns,
        "bound": made.bound, "gap": made.gap, "on_gpus": made.on_gpus,
        "settings": made.settings, "notes": list(made.notes), "limits": limits,
        "files": [str(path) for path in written],
    }  # fmt: skip
