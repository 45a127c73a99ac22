r"""Tokens a second of language models on CPUs: tvm_sched beside other engines, and what number formats cost.

The model is a folder of Hugging Face with a tokenizer. Engines run in processes of their own, one at a time, in alternating
turns. The figure is the least time of all turns: by the clock, or with ``--shared`` the processor time over the threads.
The bandwidth of ours is the bytes of all parameters times decode steps a second; beside it stands the best one with which
NumPy finds the largest number of the same mapped file, just before, with as many threads.
llama.cpp gets the same weights, which ``gguf`` writes in its formats from a GGUF file of the model (``--gguf``). Models
that their own tools have converted are named by ``--peer``. ``--json`` keeps results, so that formats and numbers of
threads may be measured one after the other; without formats, only the page is written.

    python benchmarks/language_models.py gemma-hf --gguf gemma.gguf --python peers/bin/python --json speed.json \
        --peer "OpenVINO GenAI,int8,ov-int8:" --markdown docs/results/language_models.md
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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

    def __init__(self, engine: str, path: str, threads: int, python: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        if engine != "tvm_sched":
            environment.pop("PYTHONPATH", None)
        command = [python, str(HERE / "_language_worker.py"), engine, path, str(threads)]
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
        """Processor seconds and seconds of the prompt with its first token, and of the whole text."""
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


PIECE, EVERY = 128, 4
"""Rows of the plan for prompts, and that of how many tokens the loss is measured with it: each needs a run of its own."""


def losses(artifact: Path, tokens: list[int], *, pieces: bool) -> dict[int, float]:
    """-log(probability) of tokens by position: read one by one, or in pieces, of which some rows are looked at."""
    from tvm_sched_language import Generator

    module, found = Generator(artifact).module, {}
    size = PIECE if pieces else 1
    for begin in range(0, len(tokens) - size, size):
        positions = np.arange(begin, begin + size, dtype=np.int32)
        given = (np.array(tokens[begin : begin + size], np.int32), positions, np.zeros(size, np.int32))
        for row in range(EVERY - 1, size, EVERY) if pieces else (0,):
            logits = module.run(*given, np.array([row], np.int32))[0][0].astype(np.float64)
            largest = logits.max()
            place = begin + row + 1
            found[place] = float(largest + np.log(np.exp(logits - largest).sum()) - logits[tokens[place]])
    return found


def reference_losses(folder: Path, tokens: list[int]) -> dict[int, float]:
    """The same by transformers in float32."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        chances = torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)
    return {place: -float(chances[place - 1, tokens[place]]) for place in range(1, len(tokens))}


def perplexities(found: dict[int, float], reference: dict[int, float]) -> tuple[float, float]:
    """Those of a reading and of the reference for the same tokens."""
    return tuple(float(np.exp(np.mean([of[place] for place in found]))) for of in (found, reference))  # type: ignore[return-value]


def size_of(artifact: Path) -> float:
    """MiB of an artifact with its parameters."""
    beside = artifact.with_suffix(".safetensors")
    return (artifact.stat().st_size + (beside.stat().st_size if beside.exists() else 0)) / 2**20


def read_bandwidth(file: Path, threads: int) -> float:
    """Bytes a second with which threads read a mapped file that is in memory, the best of five times."""
    numbers = np.asarray(np.memmap(file, np.int32, "r", shape=(file.stat().st_size // 4,)))
    parts, best = np.array_split(numbers, 8 * threads), np.inf
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            begin = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - begin)
    return numbers.nbytes / best


def measure(
    engines: dict[str, tuple[str, str]], threads: int, tokens: list[int], steps: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """The least processor seconds, and seconds, of prompt and whole text by engine, in alternating turns.

    ``engines`` has the path and the Python of each.
    """
    best: dict[str, dict[str, list[float]]] = {}
    workers = {engine: Worker(engine, path, threads, python) for engine, (path, python) in engines.items()}
    try:
        for worker in workers.values():
            worker.measure(tokens, 2)  # warm
        for _ in range(rounds):
            for engine, worker in workers.items():
                for part, seconds in worker.measure(tokens, steps).items():
                    known = best.setdefault(engine, {}).setdefault(part, seconds)
                    best[engine][part] = [min(a, b) for a, b in zip(known, seconds, strict=True)]
    finally:
        for worker in workers.values():
            worker.end()
    return best


def main() -> None:
    """Measure, and write the page."""
    arguments = parser(__doc__)
    arguments.add_argument("folder", type=Path, help="folder of Hugging Face")
    arguments.add_argument("--gguf", type=Path, help="the same model as GGUF, for llama.cpp")
    arguments.add_argument("--python", default=sys.executable, help="the Python of the other engines")
    arguments.add_argument(
        "--peer", action="append", default=[], metavar="ENGINE,FORMAT,PATH",
        help="a model of OpenVINO GenAI (PATH is FOLDER:PRECISION) or ONNX Runtime GenAI (FOLDER), or of transformers "
        "(FOLDER:DTYPE)",
    )  # fmt: skip
    arguments.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")
    arguments.add_argument("--rounds", type=int, default=3, help="turns of each engine")
    arguments.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    arguments.add_argument("--steps", type=int, default=32, help="decode steps")
    arguments.add_argument("--formats", nargs="*", default=list(FORMATS), choices=FORMATS, help="formats of weights")
    arguments.add_argument("--quality", action="store_true", help="measure the perplexity of the formats, too")
    arguments.add_argument("--text", type=int, default=512, help="tokens of the text for perplexity")
    arguments.add_argument("--shared", action="store_true", help="figures from processor time")
    arguments.add_argument(
        "--work", type=Path, help="folder for artifacts and GGUF files, kept; default: a temporary one"
    )
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        _run(given, given.work or Path(temporary))


def _engines(given: Any, kind: str, work: Path) -> dict[str, tuple[str, str]]:
    """Path and Python of the engines that have a model in this format."""
    engines = {"tvm_sched": (str(work / f"{kind}.so"), sys.executable)}
    for peer in given.peer:
        engine, of, path = peer.split(",", 2)
        if of == kind:
            engines[engine] = (path, given.python)
    if given.gguf and kind in GGUF:
        path = work / f"{GGUF[kind]}.gguf"
        if not path.exists():
            write_gguf(given.gguf, path, GGUF[kind])
        engines["llama.cpp"] = (str(path), given.python)
    return engines


def _run(given: Any, work: Path) -> None:
    work.mkdir(exist_ok=True)
    formats = ("float32", "int4") if given.quick else tuple(given.formats)
    if missing := tuple(kind for kind in formats if not (work / f"{kind}.so").exists()):
        compile_formats(given.folder, missing, work)
    tokens = _tokens(given.folder, 1 + max(given.prompt, given.text))
    known: dict[str, list[dict[str, Any]]] = {"speed": [], "quality": []}
    if given.json and given.json.exists():
        known = json.loads(given.json.read_text())

    def keep(part: str, row: dict[str, Any], *keys: str) -> None:
        known[part] = [other for other in known[part] if any(other[key] != row[key] for key in keys)]
        known[part].append(row)
        print(row, flush=True)
        if given.json:
            given.json.write_text(json.dumps(known, indent=1))

    for kind in formats:
        for threads in given.threads:
            parameters = work / f"{kind}.safetensors"
            bandwidth = read_bandwidth(parameters, threads)
            found = measure(_engines(given, kind, work), threads, tokens[: given.prompt], given.steps, given.rounds)
            for engine, seconds in found.items():
                of = {part: each[0] / threads if given.shared else each[1] for part, each in seconds.items()}
                prompt, decode = of["prompt"], of["whole"] - of["prompt"]
                row = {
                    "threads": threads, "format": kind, "engine": engine, "prompt": given.prompt / prompt,
                    "decode": given.steps / decode, "first": prompt, "tokens": [given.prompt, given.steps],
                    "clock": "processor" if given.shared else "wall",
                }  # fmt: skip
                if engine == "tvm_sched":
                    row |= {"read": parameters.stat().st_size * row["decode"], "bandwidth": bandwidth}
                keep("speed", row, "threads", "format", "engine")
    if given.quality:
        text = tokens[: given.text + 1]
        reference = reference_losses(given.folder, text)
        for kind in formats:
            path = work / f"{kind}.so"
            row = {"format": kind, "MiB": size_of(path), "tokens": given.text}
            for part, pieces in (("steps", False), ("prompts", True)):
                row[part], row[f"{part}_reference"] = perplexities(losses(path, text, pieces=pieces), reference)
            keep("quality", row, "format")
    _write(given, known)


def _tokens(folder: Path, count: int) -> list[int]:
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT.read_text("utf-8")).ids
    return list(found[:count])


def _write(given: Any, known: dict[str, list[dict[str, Any]]]) -> None:
    rows, quality = known["speed"], known["quality"]
    clocks = {row["clock"] for row in rows}
    sizes = sorted({tuple(row["tokens"]) for row in rows})
    notes = f"The model is `{given.folder.name}`. " + " ".join(
        f"The prompt has {prompt} tokens, {steps} steps follow." for prompt, steps in sizes
    )
    notes += (
        "\nFigures are from the least processor time of alternating turns, divided by the threads; the machine was shared."
        if clocks == {"processor"}
        else "\nFigures are from the least time of alternating turns by the clock, while no other job ran on the machine."
    )
    page = Page("Language models on CPUs", given.markdown, notes=notes)
    for threads in sorted({row["threads"] for row in rows}):
        page.text(f"## {threads} thread{'s' if threads > 1 else ''}")
        page.table(
            [
                "format",
                "engine",
                "prompt, tokens/s",
                "decode, tokens/s",
                "first token, s",
                "decode, GB/s",
                "of the memory's",
            ],
            [
                [
                    row["format"],
                    row["engine"],
                    f"{row['prompt']:.0f}",
                    f"{row['decode']:.1f}",
                    f"{row['first']:.3f}",
                    *_bandwidth_cells(row),
                ]
                for kind in FORMATS
                for row in rows
                if (row["threads"], row["format"]) == (threads, kind)
            ],
            left=2,
        )
    if quality:
        page.text("## What formats cost")
        page.text(
            f"Perplexity of {quality[0]['tokens']} tokens of `docs/model.md`; transformers in float32: "
            f"{quality[0]['steps_reference']:.3f}. *Steps*: read one by one, as text is generated; products with 8 and 4 "
            f"bits also round each group of 32 activations to 8 bits. *Prompts*: every {EVERY}th of the tokens, read in "
            f"pieces of {PIECE} (transformers: {quality[0]['prompts_reference']:.3f})."
        )
        page.table(
            ["format", "artifact, MiB", "steps", "more than transformers", "prompts", "more than transformers"],
            [
                [kind, f"{q['MiB']:.0f}", *(text for part in ("steps", "prompts") for text in _loss_cells(q, part))]
                for kind in FORMATS
                for q in quality
                if q["format"] == kind
            ],
        )
    page.write()


def _bandwidth_cells(row: dict[str, Any]) -> list[str]:
    if "read" not in row:
        return ["", ""]
    return [f"{row['read'] * 1e-9:.1f}", f"{row['bandwidth'] * 1e-9:.1f} ({row['read'] / row['bandwidth']:.0%})"]


def _loss_cells(row: dict[str, Any], part: str) -> list[str]:
    return [f"{row[part]:.3f}", f"{100 * (row[part] / row[part + '_reference'] - 1):+.2f} %"]


if __name__ == "__main__":
    main()
