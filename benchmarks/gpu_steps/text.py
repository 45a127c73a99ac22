"""Text on a GPU: tokens of a small model, and decode steps and prompts of large layers beside the memory roofline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .artifacts import load, write_parameters
from .record import Step
from .running import medians
from .weights import Array, numbers, tokens, type_of

SIZES = {"rehearsal": (64, 4, 96, 1, 128), "7B": (4096, 32, 11008, 4, 4096)}
"""Hidden width, heads, inner width, layers and context of the models whose steps are timed."""
VOCAB = {"rehearsal": 64, "7B": 32000}
FORMATS = ("bfloat16", "int8", "int4")
PIECES = {"rehearsal": (16,), "7B": (16, 128, 512)}
PROMPT, TOKENS = (7, 3, 60, 11, 5), 24
"""Prompt of the small model, and how many greedy tokens are compared."""


def packed_numbers(name: str, shape: tuple[int, ...], dtype: str) -> Array:
    """Draw an array of a packed model: tiles and scales of any value that is finite, norms near 1."""
    if dtype == "uint16":  # bits of bfloat16
        return numbers(name, shape, 0.02, "bfloat16").view(np.uint16)
    if dtype == "float32":
        return (numbers(name, shape, 0.1) + (1 if len(shape) == 1 else 0)).astype(np.float32)
    return tokens(name, shape, 256).astype(np.uint8).view(type_of(dtype))


def random_model(size: str, number_format: str, options: Any) -> Any:
    """Return a language model of Llama's form whose packed arrays are empty; `packed_numbers` draws them where it runs."""
    from tvm_sched_language.architecture import angles
    from tvm_sched_language.decoder import PackedWeights, Sizes
    from tvm_sched_language.language_model import LanguageModel
    from tvm_sched_language.packing import pack
    from tvm_sched_runtime.problem import DecoderConfig

    (hidden, heads, inner, count, context), vocab = SIZES[size], VOCAB[size]
    architecture = DecoderConfig(
        layers=count,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        intermediate=inner,
        context=context,
        norm_eps=1e-6,
        tied=True,
    )
    found: dict[str, tuple[Array, ...]] = {"angles.10000": (angles(architecture, 10000.0, context),)}

    def add(name: str, outputs: int, terms: int) -> None:
        tile = pack(np.zeros((16, terms), np.float32), number_format)
        found[name] = tuple(
            packed_numbers(name if k == 0 else f"{name}.{k}", (-(-outputs // 16), *array.shape[1:]), array.dtype.name)
            for k, array in enumerate(tile)
        )

    add("table", vocab, hidden)
    for k in range(count):
        add(f"{k}.qkv.weight", 3 * hidden, hidden)
        add(f"{k}.output.weight", hidden, hidden)
        add(f"{k}.up.weight", 2 * inner, hidden)
        add(f"{k}.down.weight", hidden, inner)
    for name in ("norm.weight", *(f"{k}.{norm}_norm.weight" for k in range(count) for norm in ("attention", "inner"))):
        found[name] = (packed_numbers(name, (hidden,), "float32"),)
    packed = PackedWeights(architecture, number_format, found, dict.fromkeys(found, number_format))
    sizes = Sizes(context, options.sequences, options.pieces)
    about = {"version": 1, "family": "llama", "vocab": vocab, "context": context, "sequences": 1, "stop": []}
    return LanguageModel(f"{size} {number_format}", Path(size), architecture, sizes, packed, about)


def bytes_read(problem: Any, filled: float) -> int:
    """Return the bytes that a run has to read: all parameters once, and keys and values as far as they are filled."""
    kinds: dict[str, float] = {"parameter": 1.0, "input": filled}
    return round(sum(tensor.size * kinds.get(tensor.kind, 0.0) for tensor in problem.graph.tensors))


def text(step: Step) -> None:
    """Compare greedy tokens with those of the CPU's kernels, then time the plans of large models with random weights."""
    for file, about in step.artifacts("text"):
        run = compared if "expected" in about else timed
        step.measure(about["name"], lambda r=run, f=file, a=about: r(step, f, a), 8, 60, (file,))


def compared(step: Step, file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Generate greedy tokens; first runs of a plan are issued, further ones are graphs."""
    from tvm_sched_language import Generator

    parameters = write_parameters(step, file, about, packed)
    loaded = load(file, parameters, devices=[0] * about["devices"])
    (found,) = Generator(loaded).generate([list(PROMPT)], max_tokens=TOKENS)
    if found.tokens != about["expected"]:
        raise ValueError(f"tokens {found.tokens} differ from those of the CPU, {about['expected']}")
    return {"tokens": len(found.tokens)}


def timed(step: Step, file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Time each plan, issued and as a graph, in the middle of the context."""
    recipes = about["recipes"]
    parameters = write_parameters(
        step, file, about, lambda name: packed_numbers(name, tuple(recipes[name]["shape"]), recipes[name]["dtype"])
    )
    plans: dict[str, Any] = {}
    for graph in (False, True):
        loaded = load(file, parameters, resident=1.0, graph=graph)
        for number, plan in enumerate(loaded.plans()):
            rows, outputs = (plan["arguments"][k]["shape"][0] for k in (0, 3))
            first = about["context"] // 2
            positions = np.arange(first, first + rows) if outputs == 1 else np.full(rows, first)
            places = np.zeros(rows) if outputs == 1 else np.arange(rows)
            wanted = np.array([rows - 1]) if outputs == 1 else np.arange(rows)
            given = [x.astype(np.int32) for x in (np.zeros(rows), positions, places, wanted)]
            given.append(np.tile([0.7, 0, 0.9, 0.5], (outputs, 1)))
            for _ in range(3):
                found = np.asarray(loaded.run(*given)[0])
            if not ((found >= 0) & (found < about["vocab"])).all():
                raise ValueError(f"there are no tokens {found.tolist()}")
            way = "graph" if graph else "issued"
            row = plans.setdefault(f"{rows} rows", {"times": {}, **about["plans"][number]})
            row["times"] |= medians({way: lambda loaded=loaded, given=given: loaded.run(*given)}, seconds(step), 60)
    return {"plans": plans}


def seconds(step: Step) -> float:
    """Return for how long a plan is timed."""
    return 0.02 if step.quick else 0.8


def packed(name: str) -> Array:
    """All arrays of the small model are stored by value."""
    raise LookupError(name)
