"""The command ``generate``: text from a compiled language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .attached_commands import SERVE
from .output import Output
from .registration import app, command


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


@command(app, "generate", ".text_generation.command:GenerationSummary", panel=SERVE)
def generate(
    out: Output,
    *,
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="What `compile --generate` wrote.")],
    prompts: Annotated[
        list[str],
        typer.Argument(metavar="PROMPT...", help="A text, or - for standard input; several are generated at once."),
    ],
    sampling: SamplingOptions,
    parameters: Annotated[
        Path | None, typer.Option("--parameter-file", metavar="FILE", help="Safetensors file of the parameters.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads of all CPU devices together.")
    ] = None,
) -> None:
    """Generate text with a language model that `compile --generate` compiled; it is printed as it comes.

    $ tvm-sched compile qwen/ --generate -t cpu1 -o qwen.so
    $ tvm-sched generate qwen.so "Once upon a time" --max-tokens 200 --temperature 0.7 --top-p 0.9 --seed 1
    $ tvm-sched generate qwen.so "What is a roofline?" --chat --json
    """
    from ..text_generation.command import Request, generate_texts, speed
    from ..text_generation.generator import Generator

    request = Request(prompts, **vars(sampling))
    generator = Generator(artifact, parameters, threads=threads)
    summary = generate_texts(generator, request, None if out.json else out.text)
    if not out.json:
        out.say(speed(summary))
    out.result(summary)
