"""What ``tvm-sched generate`` and ``tvm-sched-run generate`` do, and the options of the latter."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import ExecutionError, InputError
from tvm_sched_runtime.run_artifact import add_verify

from .generator import MAX_TOKENS, GeneratedText, Generator, PlanTime, Prompt, Token
from .sampling import Sampling


@dataclass(frozen=True)
class Request:
    """Prompts, and how their texts are generated."""

    prompts: Sequence[str]
    """Texts; with ``tokens`` numbers of tokens with commas between, and "-" is what standard input holds."""
    max_tokens: int = MAX_TOKENS
    """Most tokens of each text."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    """As for `Sampling`. Default: those of the model's ``generation_config.json``, else the most likely token."""
    seed: int | None = None
    """Equal seeds give equal texts."""
    chat: bool = False
    """Whether each prompt is a message, around which the model's chat template is put."""
    tokens: bool = False
    """Whether prompts and texts are numbers of tokens."""

    def sampling(self, generator: Generator) -> Sampling:
        """Return the sampling: the model's, with the options that the user set."""
        own = asdict(generator.default_sampling())
        overrides = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        return Sampling(**own | overrides)

    def read(self) -> list[Prompt]:
        """Return the prompts as `Generator.start` takes them."""
        texts = [sys.stdin.read() if text == "-" else text for text in self.prompts]
        if not self.tokens:
            return list(texts)
        if self.chat:
            raise InputError("--chat is for texts, and --tokens for numbers of tokens: give one of them")
        try:
            return [[int(number) for number in text.replace(",", " ").split()] for text in texts]
        except ValueError as error:
            raise InputError(f"--tokens: a prompt is numbers with commas between, such as 1,15,27 ({error})") from None


@dataclass(frozen=True)
class GenerationSummary:
    """What ``--json`` prints."""

    texts: list[GeneratedText]
    """In the order of the prompts."""
    plans: list[PlanTime]
    """Predicted and measured times of the plans that ran."""


def generate_texts(generator: Generator, request: Request, write: Callable[[str], None] | None) -> GenerationSummary:
    """Generate the texts; a single one is written piece by piece as it comes, several when all have ended."""
    sampling, prompts = request.sampling(generator), request.read()
    shown = write if len(prompts) == 1 else None

    def show(token: Token) -> None:
        if shown is None:
            return
        numbers = (request.tokens or not generator.text.has_tokenizer) and token.id >= 0
        shown(f"{token.id} " if numbers else token.text)

    texts = generator.generate(prompts, max_tokens=request.max_tokens, sampling=sampling, chat=request.chat, watch=show)
    if write is not None:
        if shown is not None:
            write("\n")
        for number, text in enumerate(texts if shown is None else []):
            write(f"{number + 1}: {' '.join(map(str, text.tokens)) if request.tokens else text.text}\n")
    if wrong := [number for number, text in enumerate(texts, 1) if text.finished == "invalid"]:
        raise ExecutionError(
            f"text {wrong[0]}: after {len(texts[wrong[0] - 1].tokens)} tokens the logits are infinite or not numbers, so no "
            "token can be chosen; numbers have overflowed, or the weights hold such values"
        )
    return GenerationSummary(texts, generator.times())


def speed(summary: GenerationSummary) -> str:
    """Return sentences with the speed of generation, and with predicted and measured times of the plans."""
    tokens = sum(len(text.tokens) for text in summary.texts)
    first, last = max(t.prompt_seconds for t in summary.texts), max(t.seconds for t in summary.texts)
    prompt = sum(text.prompt_tokens for text in summary.texts)
    further, seconds = tokens - len(summary.texts), last - min(t.prompt_seconds for t in summary.texts)
    rate = f", then {further / seconds:.1f} tokens a second" if further > 0 and seconds > 0 else ""
    ends = ", ".join(dict.fromkeys(text.finished for text in summary.texts))
    lines = [f"{prompt} tokens of prompt, first token after {first:.3f} s{rate}; {tokens} tokens ({ends})"]
    for plan in summary.plans:
        share = "" if plan.memory_share is None else f", {plan.memory_share:.0%} of it at the memory's bandwidth"
        predicted = (
            "" if plan.predicted_seconds is None else f" (predicted: {1e3 * plan.predicted_seconds:.3g} ms{share})"
        )
        rows = "1 row" if plan.rows == 1 else f"{plan.rows} rows"
        lines.append(
            f"{plan.phase}, {rows}: {1e3 * plan.seconds:.3g} ms{predicted}, median of the last {plan.runs} runs"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str], program: str) -> int:
    """Run the command with ``arguments``; errors are the caller's to print."""
    options = vars(_parser(program).parse_args(list(arguments)))
    as_json = options.pop("json")
    artifact = options.pop("artifact")
    loading = {name: options.pop(name) for name in ("parameters", "threads", "verify")}
    request = Request(**options)

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    summary = generate_texts(Generator(artifact, **loading), request, None if as_json else write)
    if as_json:
        print(json.dumps(asdict(summary), indent=2))
    else:
        print(speed(summary), file=sys.stderr)
    return 0


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program, description="Generate text with what `tvm-sched compile --generate` wrote."
    )
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="text, or - for standard input; several at once")

    def number(kind: type) -> dict[str, Any]:
        return {"type": kind, "metavar": "X" if kind is float else "N"}

    parser.add_argument("--max-tokens", **number(int), default=MAX_TOKENS, help="most tokens of each text")
    parser.add_argument("--temperature", **number(float), help="0: the most likely token; default: the model's")
    parser.add_argument("--top-k", **number(int), help="draw from so many of the most likely tokens; 0: all")
    parser.add_argument("--top-p", **number(float), help="draw from the fewest tokens of at least this probability")
    parser.add_argument("--seed", **number(int), help="equal seeds give equal texts")
    parser.add_argument("--chat", action="store_true", help="put the model's chat template around each prompt")
    parser.add_argument("--tokens", action="store_true", help="prompts and texts are numbers of tokens")
    parser.add_argument("--threads", **number(int), help="threads of all CPU devices together")
    parser.add_argument(
        "--parameter-file", dest="parameters", type=Path, metavar="FILE", help="safetensors file of the parameters"
    )
    add_verify(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser
