"""Measured matrix products and attention of NVIDIA GPUs, from the PyPI package ``aiconfigurator-core`` (Apache-2.0).

The package is an optional dependency (extra ``data``); nothing of it is copied. Its tables hold milliseconds for each
framework (TensorRT-LLM, vLLM, SGLang) and version. The frameworks call the same libraries for a matrix product, but their
times differ by 1 to 8 percent in the median. So a sample is the median over the frameworks' newest versions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_sched.cost_model.device_properties import GPUS
from tvm_sched.cost_model.features import KernelWork, matrix_products
from tvm_sched.cost_model.samples import Samples
from tvm_sched_runtime.errors import InputError

SYSTEMS = {
    "a100_sxm": "A100", "h100_sxm": "H100", "h200_sxm": "H200", "l40s": "L40S", "b200_sxm": "B200", "gb200": "GB200",
    "b300_sxm": "B300", "gb300": "GB300", "rtx_pro_6000_server": "RTX PRO 6000",
}  # fmt: skip
"""The package's systems with NVIDIA GPUs, and the names of these GPUs."""
DTYPES = {"bfloat16": ("bfloat16", 16), "fp8": ("float8_e4m3fn", 8)}
FRAMEWORKS = ("vllm", "trtllm", "sglang")


def available() -> bool:
    """Return whether the package, and the reader of its files, are installed."""
    return all(importlib.util.find_spec(name) for name in ("aiconfigurator_core", "pyarrow"))


def read(systems: Sequence[str] = tuple(SYSTEMS)) -> list[Samples]:
    """Read all samples of the systems; a system with data has two entries, matrix products and attention.

    Raises
    ------
    InputError
        The package is not installed.
    """
    if not available():
        raise InputError(
            "the measured latencies of GPUs are in the package aiconfigurator-core, which is not installed: "
            "pip install 'tvm-sched[data]' (Python 3.11 or later)"
        )
    parts = [part for system in systems for part in (read_matrix_products(system), *read_attention(system))]
    return [part for part in parts if part is not None and len(part)]


def read_matrix_products(system: str) -> Samples | None:
    """Read the matrix products of one system, grouped for cross-validation by the shape of the weights."""
    parts = []
    for name, (dtype, bits) in DTYPES.items():
        tables = [
            _median_of({key: table[key][table["gemm_dtype"] == name] for key in ("m", "n", "k", "latency")})
            for table in _tables(system, "gemm", "gemm_perf.parquet")
        ]
        (m, n, k), milliseconds = _across_frameworks(tables)
        if not len(m):
            continue
        group = np.char.add(np.char.add(n.astype(np.str_), "x"), k.astype(np.str_))
        parts.append(
            Samples.on(GPUS[SYSTEMS[system]], matrix_products(m, n, k, dtype, bits), milliseconds / 1e3, group)
        )
    return Samples.concatenate(parts) if parts else None


def read_attention(system: str) -> Iterator[Samples]:
    """Yield the samples of attention of one system in bfloat16: for a prompt, and for one new token."""
    for file, family in (
        ("context_attention_perf.parquet", "attention"),
        ("generation_attention_perf.parquet", "decode_attention"),
    ):
        keys = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "latency")
        tables = []
        for table in _tables(system, "attention", file):
            plain = (table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")
            if "window_size" in table:
                plain &= table["window_size"] <= 0
            tables.append(_median_of({key: table[key][plain] for key in keys}))
        shape, milliseconds = _across_frameworks(tables)
        if len(milliseconds):
            batch, new, before, heads, pairs, head = (each.astype(np.float64) for each in shape)
            pairs = np.where(pairs > 0, pairs, heads)
            work = attention(family, batch, new, new + before, heads, pairs, head)
            group = np.char.add(np.char.add(shape[3].astype(np.str_), "/"), shape[4].astype(np.str_))
            yield Samples.on(GPUS[SYSTEMS[system]], work, milliseconds / 1e3, group)


def attention(
    family: str,
    batch: npt.NDArray[np.float64],
    queries: npt.NDArray[np.float64],
    keys: npt.NDArray[np.float64],
    heads: npt.NDArray[np.float64],
    pairs: npt.NDArray[np.float64],
    head: npt.NDArray[np.float64],
) -> KernelWork:
    """Describe causal attention in bfloat16 of the last ``queries`` of ``keys`` positions, ``pairs`` key-value heads."""
    seen = np.where(queries > 1, (2 * keys - queries + 1) / 2, keys)  # mean number of keys for a query
    flops = 4 * batch * heads * queries * seen * head
    outputs = 2 * batch * heads * queries * head
    return KernelWork.of(
        family, "bfloat16", flops=flops, read=outputs + 4 * batch * pairs * keys * head, written=outputs,
        batch=batch * heads, m=queries, n=keys, k=head, library=1,
    )  # fmt: skip


def _tables(system: str, operation: str, file: str) -> Iterator[dict[str, Any]]:
    """Yield the newest table of each framework, by columns."""
    import pyarrow.parquet

    spec = importlib.util.find_spec("aiconfigurator_core")
    places = spec.submodule_search_locations if spec else None
    if not places:
        return
    root = Path(next(iter(places))) / "systems" / "data" / system / operation
    for framework in FRAMEWORKS:
        files = sorted(root.glob(f"{framework}/*/{file}"), key=lambda path: _version(path.parent.name))
        if files:
            table = pyarrow.parquet.read_table(files[-1])
            yield {name: table.column(name).to_numpy() for name in table.column_names}


def _version(text: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in text.split("."))


Median = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _median_of(table: dict[str, Any]) -> Median:
    """Return the distinct shapes of a table, shape (shapes, keys), and the median of their positive latencies."""
    *keys, latency = table.values()
    right = np.isfinite(latency) & (latency > 0)
    return _group(np.stack([key[right] for key in keys], axis=1).astype(np.int64), latency[right])


def _group(shapes: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> Median:
    distinct, position = np.unique(shapes, axis=0, return_inverse=True)
    order = np.lexsort((values, position))
    first = np.searchsorted(position[order], np.arange(len(distinct)))
    count = np.diff(np.append(first, len(values)))
    ordered = values[order]
    middle = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2 if len(values) else values
    return distinct, middle


def _across_frameworks(tables: list[Median]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the columns of the shapes that any framework has, and the median of the frameworks' latencies."""
    if not tables:
        return np.zeros((3, 0), np.int64), np.zeros(0)
    shapes, milliseconds = _group(
        np.concatenate([shapes for shapes, _ in tables]), np.concatenate([values for _, values in tables])
    )
    return shapes.T, milliseconds
