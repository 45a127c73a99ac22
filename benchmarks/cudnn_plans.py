"""Which kernels cuDNN builds plans for without a GPU, from the properties of an H100: their number, size and workspace.

Convolutions with bias and ReLU in both layouts, and attention, at the shapes that `gpu_hour.py` times on a GPU. cuDNN 9.8 or
later is needed (``TVM_SCHED_CUDNN`` names its file), and for attention, which it compiles, NVIDIA's driver library.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import parser
from _result_page import NONE, Page

from tvm_sched_runtime import core_library

ROOT = Path(__file__).resolve().parents[1]
PROPERTIES = ROOT / "tests" / "data" / "cudnn_h100_properties.json"
FIRST = 90800
CONVOLUTIONS = {
    "3x3 64>64 56x56, batch 8": (8, 64, 56, 64, 3, 1, 1, 1),
    "1x1 64>256 56x56, batch 8": (8, 64, 56, 256, 1, 1, 0, 1),
    "1x1 256>64 56x56": (1, 256, 56, 64, 1, 1, 0, 1),
    "3x3 256>256 14x14": (1, 256, 14, 256, 3, 1, 1, 1),
    "3x3 128>256 28x28, stride 2": (1, 128, 28, 256, 3, 2, 1, 1),
    "7x7 3>64 224x224, stride 2, batch 8": (8, 3, 224, 64, 7, 2, 3, 1),
    "3x3 128 in 32 groups 56x56, batch 8": (8, 128, 56, 128, 3, 1, 1, 32),
    "3x3 depthwise 96 56x56, batch 8": (8, 96, 56, 96, 3, 1, 1, 96),
    "5x5 depthwise 240 28x28": (1, 240, 28, 240, 5, 1, 2, 240),
}
"""Batch, channels, size, outputs, window, stride, padding, groups."""
ATTENTION = {
    "8 x 12 heads, 384 rows, width 64": (8, 384, 384, 12, 12, 64, False),
    "32 heads, 2048 rows, width 128, causal": (1, 2048, 2048, 32, 32, 128, True),
    "32 heads on 8, 512 rows, width 128, causal": (1, 512, 512, 32, 8, 128, True),
    "8 x 32 heads, 1 row, 2048 keys, width 128": (8, 1, 2048, 32, 32, 128, False),
    "32 heads on 8, 1 row, 1000 keys, width 128": (1, 1, 1000, 32, 8, 128, False),
}
"""Batch, rows, keys, heads, heads of keys, width, causal."""


def convolution(shape: tuple[int, ...], dtype: str, layout: str) -> dict[str, Any]:
    """Describe a convolution with bias and ReLU, as `Claimer` does."""
    batch, channels, size, outputs, window, stride, padding, groups = shape
    extent = (size + 2 * padding - window) // stride + 1
    return {
        "kind": "conv2d", "dtype": dtype, "tf32": False, "layout": layout, "input": [batch, channels, size, size],
        "weights": [outputs, channels // groups, window, window], "output": [batch, outputs, extent, extent],
        "padding": [padding] * 2, "strides": [stride] * 2, "dilation": [1, 1], "groups": groups, "residual": False,
        "bias": True, "activation": "relu",
    }  # fmt: skip


def attention(shape: tuple[Any, ...], dtype: str) -> dict[str, Any] | None:
    """Describe attention over (batch, rows, heads, width), as the compiler does; None if it is left to our kernel."""
    from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda.attention_source import describe_for_cudnn

    batch, rows, keys, heads, shared, width, causal = shape
    each = heads // shared

    def strides(count: int, of_query: bool) -> list[int]:
        own = heads if of_query else shared
        group = each * width if of_query else width
        return [0, count * own * width, group, width if of_query else 0, own * width, 1]

    kernel = {
        "dtype": dtype, "result_dtype": dtype, "mask_dtype": None, "safe": False, "batch": batch, "groups": shared,
        "heads": each, "rows": rows, "keys": keys, "width": width, "out": width, "scale": width**-0.5, "causal": causal,
        "shift": keys - rows if causal else 0, "query": strides(rows, True), "key": strides(keys, False),
        "value": strides(keys, False), "result": strides(rows, True),
    }  # fmt: skip
    found: dict[str, Any] | None = describe_for_cudnn(kernel)
    return found


def has_driver() -> bool:
    """Return whether cuDNN can compile kernels: it loads them into the driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def plans_of(description: dict[str, Any]) -> tuple[str, ...]:
    """Build the plans of a kernel; return the cells of its row."""
    texts = list(core_library.function("tvm_sched.cudnn_plans")(json.dumps(description), PROPERTIES.read_text()))
    if not texts:
        return "none", NONE, NONE
    plans = [json.loads(str(text)) for text in texts]
    engines = dict.fromkeys(str(plan["engine"]["engineId"]) for plan in plans)
    return str(len(texts)), ", ".join(engines), f"{len(str(texts[0])):,}"


def table() -> Iterator[tuple[str, ...]]:
    """Yield the rows of all kernels."""
    for name, shape in CONVOLUTIONS.items():
        for dtype in ("float32", "float16", "bfloat16"):
            for layout in ("NCHW", "NHWC"):
                yield f"convolution {name}", dtype, layout, *plans_of(convolution(shape, dtype, layout))
    for name, heads in ATTENTION.items():
        for dtype in ("float16", "bfloat16"):
            described = attention(heads, dtype)
            if described is None:
                cells: tuple[str, ...] = ("ours alone", NONE, NONE)
            elif has_driver():
                cells = plans_of(described)
            else:
                cells = ("needs the driver", NONE, NONE)
            yield f"attention {name}", dtype, "BSHD", *cells


def main() -> None:
    """Build all plans and write the page."""
    arguments = parser(__doc__)
    options = arguments.parse_args()
    version = int(core_library.function("tvm_sched.cudnn_version")())
    if version < FIRST:
        raise SystemExit(f"cuDNN 9.8 or later is needed, found {version or 'none'}; TVM_SCHED_CUDNN names its file")
    rows = list(table())
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    page = Page("cuDNN's plans without a GPU", options.markdown)
    built = [row for row in rows if row[3].isdigit()]
    asked = [row for row in rows if not row[3].startswith(("needs", "ours"))]
    number = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
    page.text(
        f"cuDNN {number} built plans for {len(built)} of {len(asked)} kernels here, without a GPU, from the properties of",
        "an H100 80GB HBM3 that cuDNN 9.19 wrote there (`tests/data/cudnn_h100_properties.json`); convolutions have a bias",
        "and ReLU. *Plans*: of engines that the backend takes, at most four: deterministic, sums in float32, in float32",
        "without tensor cores; only attention's may be compiled when they are built. *Engines* are cuDNN's numbers, *bytes*",
        "those of the first plan as text. Where there is no plan, cuDNN's older interface,",
        "TVM or our kernel computes. Artifacts have no plans: these are built where the model loads, in 0.4 to 4 ms each",
        "([why](gpu_kernels.md#plans-of-cudnns-graph-interface)).",
    )
    page.table(("kernel", "type", "layout", "plans", "engines", "bytes"), rows, left=3)
    page.write()


if __name__ == "__main__":
    main()
