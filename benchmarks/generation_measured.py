r"""Text of a language model on several devices: measured beside predicted, with the tokens of transformers.

The model is a random Llama (27 million weights). Each row compiles it for a machine: one thread; two devices; prompts
on one and decode steps on the other; emulated GPUs, with the parameters resident. The greedy tokens must be those that
transformers computes in float64. Predicted is the latency of the plan's schedule, measured the shortest of its runs: by the
clock on CPUs, by the emulator's record on emulated GPUs, which take the times that the plan says.

    python benchmarks/generation_measured.py --markdown docs/results/generation_measured.md
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _common import parser
from _result_page import Page

from tvm_sched_bench.testing.language_models import save_model
from tvm_sched_language import (
    GenerationOptions,
    Generator,
    compile_language_model,
    compile_stages,
    open_language_model,
)
from tvm_sched_runtime.problem import Topology, load_topology

SIZES = {
    "vocab_size": 2048, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1536, "max_position_embeddings": 512, "initializer_range": 0.1,
}  # fmt: skip
PIECE, CONTEXT, RUNS = 64, 256, 15
TEXTS = 4
"""In a pipeline of two stages; two texts are in each."""
SMALL = 48_000_000
"""Bytes of a GPU that cannot hold the model: float32 weights have 115 MB."""


def machines(quick: bool) -> Iterator[tuple[str, Topology | str, dict[str, Any], dict[str, Any]]]:
    """Name, topology, options of generation and of compilation of each row."""
    apart = {"prefill_devices": ("cpu0",), "decode_devices": ("cpu1",)}
    yield "cpu1, one thread", "cpu1", {}, {"threads": 1}
    yield "cpu2, any device", "cpu2", {}, {}
    yield "cpu2, prompts on cpu0, decode on cpu1", "cpu2", apart, {}
    if quick:
        return
    gpus = {"resident": 1.0, "cost_model": "roofline", "backend": "emulated", "options": {"work": 2.0}}
    server = load_topology("v100-server")
    names = [device.name for device in server.devices]
    small_devices = tuple(msgspec.structs.replace(device, memory=SMALL) for device in server.devices)
    yield "v100-server, one GPU", server, {}, {**gpus, "scheduler": "single", "options": {}}
    yield "v100-server, any GPU", server, {}, gpus
    apart = {"prefill_devices": tuple(names[:2]), "decode_devices": tuple(names[2:])}
    yield "v100-server, prompts on two GPUs, decode on the others", server, apart, gpus
    small = msgspec.structs.replace(server, name="small", devices=small_devices)
    yield f"v100-server with {SMALL // 10**6} MB a GPU", small, {}, gpus


def expected(folder: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens of transformers in float64."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def used_devices(module: Any) -> list[str]:
    """Devices of the kernels of each plan."""
    found = []
    for plan in module.plans():
        numbers = {plan["queues"][step["queue"]].get("device") for step in plan["steps"] if step["kind"] == "kernel"}
        found.append(", ".join(plan["devices"][number]["name"] for number in sorted(numbers)))
    return found


def pipelines(
    folder: Path, prompt: list[int], truth: list[int], quick: bool
) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Machine, run, predicted and measured milliseconds of the slowest stage, ratio, and tokens a second of all texts."""
    sizes = GenerationOptions(context=CONTEXT, pieces=(PIECE,), sequences=TEXTS)
    whole = open_language_model(folder, sizes)
    staged = with_fields(whole, stages=2)
    gpus = {"resident": 1.0, "cost_model": "roofline", "backend": "emulated"}
    rows = [("cpu1, one thread", whole, "cpu1", {"threads": 1}), ("cpu2, two stages", staged, "cpu2", {})]
    rows += [] if quick else [("v100-server, two stages", staged, load_topology("v100-server"), gpus)]
    for name, model, topology, settings in rows:
        compiler = compile_stages if model.stages > 1 else compile_language_model
        compiled = compiler(model, topology, **settings)
        generator = Generator(compiled.modules if model.stages > 1 else compiled.module)
        best = 0.0
        for _ in range(RUNS):
            texts = generator.generate([prompt] * TEXTS, max_tokens=RUNS, stop=())
            if any(text.tokens != truth for text in texts):
                raise SystemExit(f"{name}: the tokens {texts[0].tokens} are not {truth}")
            first, last = max(text.prompt_seconds for text in texts), max(text.seconds for text in texts)
            best = max(best, (RUNS - 1) * TEXTS / (last - first))
            if generator.module.emulated:
                break
        if generator.module.emulated:  # parameters are resident from a plan's second run in a row on
            generator.generate([[*prompt, *prompt]], max_tokens=1, stop=())
        for time in generator.times():
            if time.phase == "prompt" or time.rows == TEXTS // model.stages:
                assert time.predicted_seconds is not None
                ratio = time.least_seconds / time.predicted_seconds
                rate = f"{best:.0f}" if time.phase == "decode" and not generator.module.emulated else ""
                yield (name, f"{time.phase}, {time.rows} rows", f"{1e3 * time.predicted_seconds:.3f}",
                       f"{1e3 * time.least_seconds:.3f}", f"{ratio:.2f}", rate)  # fmt: skip


def main() -> None:
    """Measure, and write the page."""
    options = parser(__doc__).parse_args()
    prompt = np.random.default_rng(1).integers(3, SIZES["vocab_size"], PIECE).tolist()
    notes = (
        f"A prompt of {PIECE} tokens is read in one piece, {RUNS} times; a decode step generates a token. All rows gave the "
        "tokens of transformers in float64. On CPUs, all kernels were measured in a run before the schedule was made. The "
        "machine had other work, so the shortest run is compared, and medians are longer. The first run of a plan on a GPU "
        "also loads the parameters, and where prompts are read elsewhere, the keys and values of a text are moved between "
        "two plans: neither is in these figures. Emulated GPUs take the plan's own times: there the ratio is 1 by "
        "construction, and a row checks tokens and bookkeeping alone."
    )
    page = Page("Text on several devices", options.markdown, notes=notes)
    rows = []
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = save_model("llama", Path(temporary), **SIZES)
        truth = expected(folder, prompt, RUNS)
        staged = list(pipelines(folder, prompt, truth, options.quick))
        print(staged, flush=True)
        base = open_language_model(folder, GenerationOptions(context=CONTEXT, pieces=(PIECE,)))
        for name, topology, devices, settings in machines(options.quick):
            model = compile_language_model(with_fields(base, **devices), topology, **settings)
            generator = Generator(model.module)
            for _ in range(RUNS):
                (text,) = generator.generate([prompt], max_tokens=RUNS, stop=())
                if text.tokens != truth:
                    raise SystemExit(f"{name}: the tokens {text.tokens} are not {truth}")
                if generator.module.emulated:
                    break
            if generator.module.emulated:  # a plan's parameters are resident from its second run in a row on
                generator.generate([[*prompt, *prompt]], max_tokens=1, stop=())
            used = used_devices(generator.module)
            for time, where, schedule in zip(generator.times(), used, model.schedules, strict=True):
                assert schedule.certificate is not None
                assert time.predicted_seconds is not None
                measured = time.least_seconds
                rows.append(
                    [name, time.phase, where, f"{1e3 * time.predicted_seconds:.3f}", f"{1e3 * measured:.3f}",
                     f"{measured / time.predicted_seconds:.2f}",
                     "" if generator.module.emulated else f"{1e3 * time.seconds:.3f}", f"{schedule.certificate.gap:.1%}"]
                )  # fmt: skip
                print(rows[-1], flush=True)
    page.table(
        ["machine", "run", "devices", "predicted, ms", "measured, ms", "ratio", "median, ms", "gap to the bound"],
        rows,
        left=3,
    )
    page.text("## Pipelines")
    page.text(
        f"{TEXTS} texts at once. Of two stages, each device has half of the layers, and two of the texts are in each stage. "
        "Predicted and measured are the times of a run, in a pipeline of its slowest stage; tokens a second are of all "
        "texts behind their prompts, the best of all turns."
    )
    page.table(
        ["machine", "run", "predicted, ms", "measured, ms", "ratio", "tokens/s of all texts"],
        [list(row) for row in staged],
        left=2,
    )
    page.write()


if __name__ == "__main__":
    main()
