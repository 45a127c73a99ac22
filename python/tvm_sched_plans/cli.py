"""The command ``plan``: placements for other runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_sched.cli.attached_commands import PLAN
from tvm_sched.cli.inputs import CostsName, TopologyName, Writes
from tvm_sched.cli.interrupt import interruptible
from tvm_sched.cli.model_options import Shapes
from tvm_sched.cli.option_groups import FromApi
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.input_shapes import is_token_shape, one_shape, parse_shapes, token_shapes

WorkloadOptions = Annotated[
    dict[str, Any],
    FromApi("tvm_sched_plans.token_workload:TokenWorkload", ("context", "batch", "new_tokens", "dtype", "cache_dtype")),
]


app = typer.Typer()


def COMMANDS(root: typer.Typer) -> None:  # noqa: N802 - the name of the entry point
    """Add ``plan``."""
    root.add_typer(app)


GivenSplits = Annotated[
    list[str] | None,
    typer.Option(
        "--given",
        metavar="N,N,...",
        help="Price this split beside the plan: layers of each GPU in turn, as the runtime counts them (llama.cpp: with "
        "the output; a graph: operators). Several are allowed.",
    ),
]


@dataclass(frozen=True)
class PlanMemory:
    """The memory that a plan may use."""

    overhead: Annotated[
        str | None,
        typer.Option(
            "--overhead", metavar="BYTES", help="Memory of each GPU that the runtime takes itself, such as '1 GB'."
        ),
    ] = None
    free: Annotated[
        bool,
        typer.Option(
            "--free", help="Plan within the memory that is free: the topology's free_memory, or this machine's now."
        ),
    ] = False
    limits: Annotated[bool, typer.Option("--limits", help="Say, too, which context, batch and GPUs would fit.")] = False


@command(app, "plan", "tvm_sched_plans.plan_summary:PlanSummary", panel=PLAN, apart=True)
def plan(
    out: Output,
    *,
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
        str,
        typer.Option("--for", metavar="NAME", help="accelerate, exo, vllm, llama.cpp, onnxruntime, openvino or torch."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the plan; models and scripts that belong to it beside it."
        ),
        Writes(),
    ] = None,
    workload: WorkloadOptions,
    shape: Shapes = None,
    costs: CostsName = None,
    memory: PlanMemory,
    given: GivenSplits = None,
) -> None:
    """Split a model over a machine's GPUs for another runtime, and compare that with the runtime's default split.

    Memory is weights, keys and values, activations and the runtime's own; the plan holds the limits of
    all devices. Where nothing fits, the error says what would.

    $ tvm-sched plan llama-3-70b -t p4d --for vllm --context 8192 --batch 16 -o vllm.sh
    $ tvm-sched plan llama-2-13b/config.json -t my-machine.toml --for llama.cpp --dtype q4_0 -o llama.sh
    $ tvm-sched plan mistral-7b -t a6000-server --for accelerate -o device_map.json --json
    $ tvm-sched plan llama-3-70b -t my-machine.toml --for vllm --free --given 24,56 --given 40,40
    $ tvm-sched plan model.onnx -t a40x2 --for onnxruntime --shape batch=8 -o plan/onnxruntime_plan.json
    """
    tokens = [text for text in shape or () if is_token_shape(text)]
    if tokens:
        workload = dict(zip(("batch", "context"), token_shapes(tokens, 1)[0], strict=True)) | workload
    own = None if memory.overhead is None else _bytes(memory.overhead)
    others = [text for text in shape or () if not is_token_shape(text)]
    shapes = one_shape(parse_shapes(others), "a plan has one")
    from tvm_sched.problem_sources import packages_for

    with interruptible(out), packages_for(model), out.step(f"Planning for {runtime}"):
        from . import export_plan

        exported = export_plan(
            model, topology, runtime, workload=workload, shapes=shapes, costs=costs or "", overhead=own,
            given=[_counts(text) for text in given or ()], free=memory.free,
        )  # fmt: skip
    from .plan_summary import PlanSummary, plan_tables

    if output is not None:
        for number, path in enumerate(exported.save(output)):
            out.wrote(path, "plan" if number == 0 else "with it")
    out.show(*plan_tables(exported))
    for note in exported.notes:
        out.say(note)
    more = _limits(model, topology, runtime, workload, shapes, costs, own, memory.free) if memory.limits else []
    for sentence in more:
        out.show(sentence)
    if not exported.on_gpus and not memory.limits:
        out.say("not all of it is on GPUs, which costs time; --limits says what would fit there")
    out.result(PlanSummary.of(exported, more))


def _counts(text: str) -> list[int]:
    """Read the numbers of a split."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise InputError(f"--given {text}: whole numbers with commas between them are allowed, such as 24,40")
    return [int(word) for word in words]


def _bytes(text: str) -> int:
    from tvm_sched_runtime.problem.quantity import parse_quantity

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
    free: bool,
) -> list[str]:
    from .fitting import advice
    from .planner import plan_request

    return advice(*plan_request(model, topology, runtime, workload, shapes, costs or "", overhead, free))
