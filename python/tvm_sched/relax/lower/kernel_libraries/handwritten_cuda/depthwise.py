"""Depthwise convolutions of half precision on GPUs: claims, and CUDA source (`depthwise.cuh`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ..kernel_library import KernelSet, Names
from ..nvidia.claim import Claimer
from .attention_source import ELEMENTS, describe_launch

HEADER = "depthwise.cuh"
KIND = "depthwise_conv2d"
CHANNELS, PIXELS = 8, 4
"""Channels and pixels of the result that a thread computes."""
_THREADS = 128
_MOST_THREADS = (1 << 31) - 1


class DepthwiseClaimer(Claimer):
    """Replaces depthwise convolutions of half precision with channels last, with a bias and ReLU behind them.

    The first call compares the kernel with cuDNN's, where that is there.
    """

    fuses_depthwise = True

    def __init__(self, mod: Any, kernels: KernelSet, names: Names, settings: dict[str, Any]) -> None:
        super().__init__(mod, kernels, names)
        self.settings = settings

    def _describe_convolution(self, call: Any) -> tuple[dict[str, Any], list[Any]] | None:
        found = super()._describe_convolution(call)
        if found is None or not _takes(found[0]):
            return None
        return {**found[0], "kind": KIND, **self.settings}, found[1]

    def _describe_matmul(self, call: Any) -> None:
        return None

    def _add_tensor(self, result: Any, other: Any) -> bool:
        return False


def _takes(kernel: Mapping[str, Any]) -> bool:
    channels = kernel["input"][1]
    same = channels == kernel["groups"] == kernel["output"][1] and kernel["weights"][1] == 1
    half = kernel["dtype"] in ("float16", "bfloat16") and kernel["layout"] == "NHWC"
    return half and same and channels % CHANNELS == 0 and 0 < _items(kernel) <= _MOST_THREADS


def _items(kernel: Mapping[str, Any]) -> int:
    """Return the number of threads that have something to compute."""
    batch, channels, rows, columns = kernel["output"]
    return prod((batch, rows, -(-columns // PIXELS), channels // CHANNELS))


def render(symbol: str, kernel: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source of a kernel, and its launches for ``cpp/kernels/cuda/image.h``."""
    element, biased = ELEMENTS[kernel["dtype"]], kernel["bias"]
    batch, channels, rows, columns = kernel["output"]
    numbers = {"batch": batch, "channels": channels, "rows": rows, "columns": columns}
    numbers |= dict(zip(("height", "width"), kernel["input"][2:], strict=True))
    numbers |= dict(zip(("window_rows", "window_columns"), kernel["weights"][2:], strict=True))
    numbers |= dict(zip(("stride_rows", "stride_columns"), kernel["strides"], strict=True))
    numbers |= dict(zip(("top", "left"), kernel["padding"], strict=True))
    numbers |= dict(zip(("dilation_rows", "dilation_columns"), kernel["dilation"], strict=True))
    flags = {"biased": biased, "relu": kernel["activation"] == "relu"}
    members = [f"  static constexpr int {name} = {value};" for name, value in numbers.items()]
    members += [f"  static constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()]
    parameters = ["in", "weights", *(["bias"] if biased else [])]
    given = ", ".join(f"const {element}* {name}" for name in parameters)
    source = [
        f"struct {symbol} {{", *members, "};",
        f'extern "C" __global__ void __launch_bounds__({_THREADS}) {symbol}_kernel({given}, {element}* out) {{',
        f"  tvm_sched::depthwise<{element}, {symbol}>(in, weights, {'bias' if biased else 'nullptr'}, out);",
        "}",
    ]  # fmt: skip
    count = len(parameters) + 1
    launch = describe_launch(
        f"{symbol}_kernel", [-(-_items(kernel) // _THREADS), 1, 1], _THREADS, [["tensor", k] for k in range(count)]
    )
    fields = ("dtype", "tf32", "layout", "input", "weights", "output", "padding", "strides", "dilation", "groups",
              "residual", "bias", "activation")  # fmt: skip
    library = {"kind": "conv2d", **{name: kernel[name] for name in fields}}
    return "\n".join(source) + "\n", {
        "tensors": count, "workspaces": [], "launches": [launch], "convolution": library,
    }  # fmt: skip
