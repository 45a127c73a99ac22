"""The command ``generate``, and the options of ``compile`` for language models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_sched.cli.attached_commands import SERVE
from tvm_sched.cli.inputs import StoredParameters
from tvm_sched.cli.output import Output
from tvm_sched.cli.registration import command
from tvm_sched_runtime.errors import InputError

if TYPE_CHECKING:
    from tvm_sched.cli.attached_commands import Compiled
    from tvm_sched.relax.options import CompileOptions

app = typer.Typer()


def COMMANDS(root: typer.Typer) -> None:  # noqa: N802 - the name of the entry point
    """Add ``generate``."""
    root.add_typer(app)


@dataclass(frozen=True)
class TextOptions:
    """How `compile` compiles a language model to generate text."""

    generate: Annotated[
        bool,
        typer.Option(
            "--generate",
            help="Compile a language model's folder to generate text with `tvm-sched generate`: plans for pieces of prompts "
            "and for decode steps, with caches of keys and values that are updated in place.",
        ),
    ] = False
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="N",
            help="--generate: most tokens of a sequence. Default: the model's positions, at most 2048.",
        ),
    ] = None
    sequences: Annotated[
        int | None, typer.Option("--sequences", metavar="N", help="--generate: texts that are generated at once.")
    ] = None
    pieces: Annotated[
        str | None,
        typer.Option(
            "--pieces", metavar="N,N", help="--generate: lengths of the plans that read prompts. Default: 16,128."
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FORMAT",
            help="--generate: format of the weights of products: float32 (default), bfloat16, int8, int4, int4-zeros.",
        ),
    ] = None

    prefill_on: Annotated[
        str | None,
        typer.Option(
            "--prefill-on",
            metavar="DEVICES",
            help="--generate: devices that may read prompts, with commas between. Default: all.",
        ),
    ] = None
    decode_on: Annotated[
        str | None,
        typer.Option(
            "--decode-on",
            metavar="DEVICES",
            help="--generate: devices that may compute the decode steps, with commas between. Default: all.",
        ),
    ] = None

    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            "-k",
            metavar="N",
            help="--generate: stages of a pipeline, in which several texts follow each other. Each has some of the layers, "
            "its part of the topology's devices, and an artifact of its own (model.so, model.stage1.so, ...).",
        ),
    ] = None

    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            "--tensor-parallel",
            metavar="N",
            help="--generate: devices that compute each layer together, each with some of its heads. Default: for GPUs, of "
            "1, 2, 4, ... and all, the number whose schedule of a decode step is fastest; else 1.",
        ),
    ] = None

    def options_for(self, model: Path) -> dict[str, Any] | None:
        """Return the fields of `GenerationOptions` that the user set; None without --generate."""
        names = ("context", "sequences", "pieces", "weights", "prefill_on", "decode_on", "stages", "tensor_parallel")
        fields = {name: value for name in names if (value := getattr(self, name)) is not None}
        if not self.generate:
            if fields:
                option = next(iter(fields)).replace("_", "-")
                raise InputError(f"--{option} is for language models: give --generate, too")
            return None
        if not model.is_dir():
            raise InputError(f"{model}: --generate takes a folder of Hugging Face with config.json and weights")
        from tvm_sched.problem_sources import device_names

        if self.pieces is not None:
            try:
                fields["pieces"] = tuple(int(piece) for piece in self.pieces.split(","))
            except ValueError:
                raise InputError(f"--pieces {self.pieces}: numbers with commas between are allowed: 16,128") from None
        for phase in ("prefill", "decode"):
            if (text := fields.pop(f"{phase}_on", None)) is not None:
                fields[f"{phase}_devices"] = tuple(device_names(f"--{phase}-on", text))
        return fields

    def compile(self, model: Path, options: CompileOptions, progress: Any) -> Compiled:
        """Compile the folder of a language model."""
        from . import GenerationOptions, compile_language_model, compile_stages, open_language_model

        progress("reading the model", 0, 0)
        opened = open_language_model(model, GenerationOptions(**self.options_for(model) or {}))
        compiler = compile_stages if opened.stages > 1 else compile_language_model
        return compiler(opened, options, progress=progress)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    max_tokens: Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of each text.")] = 256
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            metavar="X",
            help="Logits are divided by it; 0 takes the most likely token. Default of this and the next two: what the "
            "model's generation_config.json says, else the most likely token.",
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", metavar="N", help="Draw from so many of the most likely tokens; 0: all.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", metavar="X", help="Draw from the fewest tokens that have at least this probability."),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Equal seeds give equal texts.")] = None
    chat: Annotated[
        bool, typer.Option("--chat", help="Each prompt is a message; the model's chat template is put around it.")
    ] = False
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Prompts and texts are numbers of tokens, with commas between.")
    ] = False


@command(app, "generate", "tvm_sched_language.command:GenerationSummary", panel=SERVE)
def generate(
    out: Output,
    *,
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="What `compile --generate` wrote.")],
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="A text, or - for standard input; several are generated at once."),
    ],
    sampling: SamplingOptions,
    stored: StoredParameters,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads of all CPU devices together.")
    ] = None,
) -> None:
    """Generate text with a language model that `compile --generate` compiled; it is printed as it comes.

    $ tvm-sched compile qwen/ --generate -t cpu1 -o qwen.so
    $ tvm-sched generate qwen.so "Once upon a time" --max-tokens 200 --temperature 0.7 --top-p 0.9 --seed 1
    $ tvm-sched generate qwen.so "What is a roofline?" --chat --json
    """
    from .command import Request, generate_texts, speed
    from .generator import Generator

    request = Request(prompts, **vars(sampling))
    generator = Generator(artifact, stored.parameter_file, threads=threads, verify=stored.verify or None)
    summary = generate_texts(generator, request, None if out.json else out.text)
    if not out.json:
        out.say(speed(summary))
    out.result(summary)
