"""Measured operators of Llama-like layers on A40, A100 and H100, from microsoft/vidur (MIT licence).

A folder holds ``<gpu>/<organisation>/<model>/mlp.csv``: milliseconds of each operator of a layer in float16, by the number
of tokens and of GPUs. Tensor parallelism divides one dimension of the layer among the GPUs.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tvm_sched.cost_model.device_properties import GPUS
from tvm_sched.cost_model.features import KernelWork, matrix_products
from tvm_sched.cost_model.samples import Samples
from tvm_sched_runtime.errors import InputError

SYSTEMS = {"a40": "A40", "a100": "A100", "h100": "H100"}
_BYTES = 2  # float16
Row = Mapping[str, float]


def read(folder: str | os.PathLike[str]) -> list[Samples]:
    """Read all samples of a folder, an entry for each file, grouped for cross-validation by model.

    Raises
    ------
    InputError
        There is no such file below the folder, or one is not what the format says.
    """
    root = Path(folder)
    files = sorted(root.glob("*/*/*/mlp.csv"))
    files = [file for file in files if file.relative_to(root).parts[0] in SYSTEMS]
    if not files:
        raise InputError(f"{root}: no file GPU/ORGANISATION/MODEL/mlp.csv with GPU among {', '.join(SYSTEMS)}")
    return [_read_file(root, file) for file in files]


def _read_file(root: Path, file: Path) -> Samples:
    gpu, _, model, _ = file.relative_to(root).parts
    try:
        with file.open(newline="") as stream:
            rows: list[Row] = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(stream)]
        parts = [_operator(name, describe, rows) for name, describe in OPERATORS.items()]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: not a file of vidur's layer times ({error!r})") from None
    work = KernelWork.concatenate([work for work, _ in parts])
    seconds = np.concatenate([times for _, times in parts])
    return Samples.on(GPUS[SYSTEMS[gpu]], work, seconds, np.full(len(work), model))


def _number(text: str) -> float:
    return {"True": 1.0, "False": 0.0}.get(text) if text in ("True", "False") else float(text or "nan")  # type: ignore[return-value]


def _operator(name: str, describe: Callable[[Row], KernelWork], rows: list[Row]) -> tuple[KernelWork, np.ndarray]:
    """Return the work and seconds of one operator in every row that has a time for it."""
    timed = [
        (row, row[f"time_stats.{name}.median"] / 1e3) for row in rows if row.get(f"time_stats.{name}.median", 0) > 0
    ]
    if not timed:
        return matrix_products([], [], [], "float16", 16), np.zeros(0)
    return KernelWork.concatenate([describe(row) for row, _ in timed]), np.array([seconds for _, seconds in timed])


def _product(n: Callable[[Row], float], k: Callable[[Row], float]) -> Callable[[Row], KernelWork]:
    return lambda row: matrix_products([row["num_tokens"]], [n(row)], [k(row)], "float16", 16)


def _rowwise(
    family: str,
    flops: int,
    reads: Callable[[Row], float],
    writes: Callable[[Row], float],
    **words: Callable[[Row], float],
) -> Callable[[Row], KernelWork]:
    """Return a function that describes an operator on each token by the numbers that it reads and writes.

    ``words``: what `family_of` and `FUNCTIONS` count in the kinds of such operators.
    """

    def describe(row: Row) -> KernelWork:
        tokens, read, written = row["num_tokens"], reads(row), writes(row)
        moved = {"read": _BYTES * tokens * read, "written": _BYTES * tokens * written}
        moved.update((name, count(row)) for name, count in words.items())
        return KernelWork.of(
            family, "float16", flops=np.array([flops * tokens * written]), m=tokens, n=written, library=1, **moved
        )

    return describe


def _share(row: Row) -> float:
    return row["num_tensor_parallel_workers"]


def _width(row: Row) -> float:
    return row["n_embd"]


def _expanded(row: Row) -> float:
    return row["n_expanded_embd"] / _share(row)


def _gates(row: Row) -> float:
    return 1 + row["use_gated_mlp"]


def _heads(row: Row) -> float:
    """Return how many numbers the queries, keys and values of a token have."""
    return _width(row) / row["n_head"] * (row["n_head"] + 2 * row["n_kv_head"]) / _share(row)


OPERATORS: dict[str, Callable[[Row], KernelWork]] = {
    "attn_pre_proj": _product(_heads, _width),
    "attn_post_proj": _product(_width, lambda row: _width(row) / _share(row)),
    "mlp_up_proj": _product(lambda row: _gates(row) * _expanded(row), _width),
    "mlp_down_proj": _product(_width, _expanded),
    "input_layernorm": _rowwise("normalise", 8, _width, _width, fused=lambda _: 1),
    "post_attention_layernorm": _rowwise("normalise", 8, _width, _width, fused=lambda _: 1),
    "mlp_act": _rowwise(
        "elementwise",
        4,
        lambda row: _gates(row) * _expanded(row),
        _expanded,
        fused=lambda row: row["use_gated_mlp"],
        exponentials=lambda row: row["use_gated_mlp"],
        polynomials=lambda row: 1 - row["use_gated_mlp"],
    ),
    "add": _rowwise("elementwise", 1, lambda row: 2 * _width(row), _width),
    "attn_rope": _rowwise("elementwise", 3, _heads, _heads, fused=lambda _: 1),
    "emb": _rowwise("gather", 0, _width, _width),
}
"""The operators of a layer, by their column."""
