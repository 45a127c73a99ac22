"""MatMulNBits with weights of 2, 4 and 8 bits beside a float32 product: microseconds of one thread, ours and ONNX Runtime's.

Each model is a chain of products; a time is the least of 15 runs, divided by the number of products.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TVM_SCHED_COSTS", "roofline")
import numpy as np
import onnx
import onnxruntime
from _common import parser
from _result_page import Row, report
from onnx import TensorProto, helper, numpy_helper

import tvm_sched.relax

BLOCK, RUNS = 32, 15


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=int, default=2048, help="rows and columns of each matrix")
    arguments.add_argument("--products", type=int, default=12, help="products of a chain")
    arguments.add_argument("--rows", type=int, nargs="+", default=[1, 64], help="rows that are multiplied")
    options = arguments.parse_args()
    if options.quick:
        options.size = min(options.size, 256)
    found = []
    for rows in options.rows:
        for bits in (32, 2, 4, 8):
            ours, theirs = (each / options.products * 1e6 for each in _times(chain(rows, bits, options), rows, options))
            print(f"{rows} rows, {bits} bits: {ours:.0f} us, ONNX Runtime {theirs:.0f} us", flush=True)
            case = f"{rows} rows, {bits} bits"
            found += [Row(case, "ours", ours, "us"), Row(case, "ONNX Runtime", theirs, "us")]
    report("Products with packed weights", found, options.json, options.markdown)


def chain(rows: int, bits: int, options: argparse.Namespace) -> onnx.ModelProto:
    """Return a model of products one after the other; 32 bits stand for float32."""
    rng, size = np.random.default_rng(0), options.size
    nodes, constants = [], []
    for number in range(options.products):
        names = [f"y{number}", f"b{number}", f"s{number}"]
        if bits == 32:
            values = [(rng.standard_normal((size, size)) / size**0.5).astype("float32")]
            nodes.append(helper.make_node("MatMul", names[:2], [f"y{number + 1}"]))
        else:
            numbers = rng.integers(0, 256, (size, size // BLOCK, BLOCK * bits // 8)).astype("uint8")
            scales = np.abs(rng.standard_normal((size, size // BLOCK))) / size**0.5 / 2**bits
            values = [numbers, scales.astype("float32")]
            attributes = {"K": size, "N": size, "bits": bits, "block_size": BLOCK}
            nodes.append(
                helper.make_node("MatMulNBits", names, [f"y{number + 1}"], domain="com.microsoft", **attributes)
            )
        constants += [numpy_helper.from_array(value, name) for value, name in zip(values, names[1:], strict=False)]
    ends = [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, [rows, size]) for k in (0, options.products)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _times(model: onnx.ModelProto, rows: int, options: argparse.Namespace) -> tuple[float, float]:
    x = np.random.default_rng(1).standard_normal((rows, options.size)).astype("float32")
    compiled = tvm_sched.relax.compile(model, "cpu1", "single", threads=1)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return _least(lambda: compiled.run(x)), _least(lambda: session.run(None, {"y0": x}))


def _least(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
