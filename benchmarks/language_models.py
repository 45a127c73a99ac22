"""Tokens a second of language models on CPUs: tvm_sched beside llama.cpp and transformers, and what number formats cost.

The model is a folder of Hugging Face with a tokenizer. Engines run in processes of their own, one at a time, in alternating
turns. The figure is the least processor time of all turns, divided by the threads, since the machine may be shared: with one
thread it is the time that the engine would take alone. llama.cpp gets the same weights, which ``gguf`` writes in its formats
from a GGUF file of the model (``--gguf``). An engine whose package is missing is left out, and the page says so.

    python benchmarks/language_models.py gemma-hf --gguf gemma.gguf --markdown docs/results/language_models.md
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import parser
from _result_page import Page

HERE = Path(__file__).parent
FORMATS = ("float32", "bfloat16", "int8", "int4", "int4-zeros")
GGUF = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's format of each of ours: 8 and 4 bits have groups of 32, too."""
TEXT = HERE.parent / "docs" / "model.md"


class Worker:
    """A process of ``_language_worker.py``."""

    def __init__(self, engine: str, path: str, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, str(HERE / "_language_worker.py"), engine, path, str(threads)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self.process.args))} ended")  # type: ignore[arg-type]
        return json.loads(line)

    def measure(self, tokens: list[int], steps: int) -> dict[str, list[float]]:
        """Processor seconds and seconds of prompt and decode steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"tokens": tokens, "steps": steps}) + "\n")
        self.process.stdin.flush()
        result: dict[str, list[float]] = self._answer()
        return result

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def compile_formats(folder: Path, formats: tuple[str, ...], into: Path) -> dict[str, Path]:
    """An artifact for each format."""
    from tvm_sched_language import GenerationOptions, compile_language_model, open_language_model

    made = {}
    for number_format in formats:
        options = GenerationOptions(context=1024, weights=number_format)
        made[number_format] = into / f"{number_format}.so"
        model = open_language_model(folder, options)
        compile_language_model(model, "cpu1", cost_model="roofline").export(made[number_format])
    return made


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """Write the weights of a GGUF file in another format; vectors stay float32."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, arch=str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        of = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=of)
    wanted = gguf.GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        matrix = values.ndim > 1
        stored = gguf.quantize(values, wanted) if matrix else values.astype(np.float32)
        writer.add_tensor(tensor.name, stored, raw_dtype=wanted if matrix else gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def losses(artifact: Path, tokens: list[int]) -> float:
    """Mean of -log(probability) of the tokens after the first."""
    from tvm_sched_language import Generator

    module, total = Generator(artifact).module, 0.0
    for position, (token, following) in enumerate(itertools.pairwise(tokens)):
        given = (np.array([number], np.int32) for number in (token, position, 0, 0))
        logits = module.run(*given)[0][0].astype(np.float64)
        largest = logits.max()
        total += largest + np.log(np.exp(logits - largest).sum()) - logits[following]
    return total / (len(tokens) - 1)


def reference_losses(folder: Path, tokens: list[int]) -> float:
    """The same by transformers in float32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return float(model(torch.tensor([tokens]), labels=torch.tensor([tokens])).loss)


def size_of(artifact: Path) -> float:
    """MiB of an artifact with its parameters."""
    beside = artifact.with_suffix(".safetensors")
    return (artifact.stat().st_size + (beside.stat().st_size if beside.exists() else 0)) / 2**20


def measure(
    engines: dict[tuple[str, str], str], threads: int, tokens: list[int], steps: int, rounds: int
) -> dict[tuple[str, str], dict[str, list[float]]]:
    """The least processor seconds, and seconds, of prompt and decode by engine and format, in alternating turns."""
    best: dict[tuple[str, str], dict[str, list[float]]] = {}
    workers = {key: Worker(key[0], path, threads) for key, path in engines.items()}
    try:
        for worker in workers.values():
            worker.measure(tokens, 2)  # warm
        for _ in range(rounds):
            for key, worker in workers.items():
                for part, seconds in worker.measure(tokens, steps).items():
                    known = best.setdefault(key, {}).setdefault(part, seconds)
                    best[key][part] = [min(a, b) for a, b in zip(known, seconds, strict=True)]
    finally:
        for worker in workers.values():
            worker.end()
    return best


def main() -> None:
    """Measure, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path, help="folder of Hugging Face")
    arguments.add_argument("--gguf", type=Path, help="the same model as GGUF, for llama.cpp")
    arguments.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    arguments.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    arguments.add_argument("--steps", type=int, default=32, help="decode steps")
    arguments.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS, help="formats of weights")
    arguments.add_argument(
        "--llama", nargs="*", default=list(GGUF), choices=list(GGUF), help="those that llama.cpp runs, too"
    )
    arguments.add_argument(
        "--transformers", nargs="*", default=["float32", "bfloat16"], choices=["float32", "bfloat16"],
        help="those that transformers runs, too",
    )  # fmt: skip
    arguments.add_argument("--text", type=int, default=512, help="tokens of the text for perplexity")
    arguments.add_argument(
        "--work", type=Path, help="folder for artifacts and GGUF files, kept; default: a temporary one"
    )
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        _run(given, given.work or Path(temporary))


def _run(given: Any, work: Path) -> None:
    work.mkdir(exist_ok=True)
    formats = ("float32", "int4") if given.quick else tuple(given.formats)
    artifacts = {kind: work / f"{kind}.so" for kind in formats}
    if missing := tuple(kind for kind, path in artifacts.items() if not path.exists()):
        compile_formats(given.folder, missing, work)
    engines = {("tvm_sched", kind): str(path) for kind, path in artifacts.items()}
    for kind in given.transformers:
        engines["transformers", kind] = f"{given.folder}:{kind}"
    left_out = []
    if given.gguf and importlib.util.find_spec("xllamacpp") and importlib.util.find_spec("gguf"):
        for kind in given.llama:
            if kind in formats:
                path = work / f"{GGUF[kind]}.gguf"
                if not path.exists():
                    write_gguf(given.gguf, path, GGUF[kind])
                engines["llama.cpp", kind] = str(path)
    else:
        left_out.append("llama.cpp (packages xllamacpp and gguf, and --gguf)")
    tokens = _tokens(given.folder, 1 + max(given.prompt, given.text))
    page = Page(
        "Language models on CPUs",
        given.markdown,
        notes=f"The model is `{given.folder.name}`; the prompt has {given.prompt} tokens, {given.steps} steps follow.\n"
        f"Tokens a second are computed from the least processor time of {given.rounds} alternating turns, divided by\n"
        "the threads; the machine was shared with other work, so times by the clock say little.",
    )
    if left_out:
        page.text(f"Left out: {', '.join(left_out)}.")
    rows: list[dict[str, Any]] = []
    for threads in given.threads:
        found = measure(engines, threads, tokens[: given.prompt], given.steps, given.rounds)
        for (engine, kind), seconds in found.items():
            rows.append(
                {
                    "threads": threads, "format": kind, "engine": engine,
                    "prompt": given.prompt * threads / seconds["prompt"][0],
                    "decode": given.steps * threads / seconds["decode"][0],
                    "first": seconds["prompt"][0] / threads,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    tokens = tokens[: given.text + 1]
    reference = reference_losses(given.folder, tokens)
    quality = []
    for kind, path in artifacts.items():
        loss = losses(path, tokens)
        quality.append(
            {"format": kind, "MiB": size_of(path), "perplexity": np.exp(loss), "more": np.exp(loss - reference) - 1}
        )
        print(quality[-1], flush=True)
    _write(given, page, rows, quality, float(np.exp(reference)), len(tokens) - 1)


def _tokens(folder: Path, count: int) -> list[int]:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text("utf-8")).ids
    return list(found[:count])


def _write(
    given: Any, page: Page, rows: list[dict[str, Any]], quality: list[dict[str, Any]], reference: float, count: int
) -> None:
    for threads in dict.fromkeys(row["threads"] for row in rows):
        page.text(f"## {threads} thread{'s' if threads > 1 else ''}")
        page.table(
            ["format", "engine", "prompt, tokens/s", "decode, tokens/s", "first token, s"],
            [
                [row["format"], row["engine"], f"{row['prompt']:.0f}", f"{row['decode']:.1f}", f"{row['first']:.2f}"]
                for kind in FORMATS
                for row in rows
                if (row["threads"], row["format"]) == (threads, kind)
            ],
            left=2,
        )
    page.text("## What formats cost")
    page.text(
        f"Perplexity of {count} tokens of `docs/model.md`; transformers in float32: {reference:.3f}. Products with 8 and 4 "
        "bits also round each group of 32 activations to 8 bits."
    )
    page.table(
        ["format", "artifact, MiB", "perplexity", "more than transformers"],
        [[q["format"], f"{q['MiB']:.0f}", f"{q['perplexity']:.3f}", f"{100 * q['more']:+.2f} %"] for q in quality],
    )
    page.write()
    if given.json:
        given.json.write_text(json.dumps({"speed": rows, "quality": quality}, indent=1))


if __name__ == "__main__":
    main()
