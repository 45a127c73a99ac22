"""Pooling with ``ceil_mode`` before opset 22, of which ONNX infers a window too many where the last one lies in the padding.

The windows of PyTorch, ONNX Runtime and the standard from opset 22 on start in the tensor or in the padding before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

POOLS = ("AveragePool", "LpPool", "MaxPool")
HIDDEN = "tvm_frontends.pool"
"""Domain of pools while their input's shape is unknown, so that nothing infers the shape of their result."""

COUNTED = 22
"""First opset for which ONNX infers the right number of windows."""


@dataclass(frozen=True)
class Windows:
    """The windows along one axis of a pool with ``ceil_mode``: stride, reach with dilation, padding at both ends."""

    stride: int
    reach: int
    before: int
    after: int

    @property
    def may_lie_in_padding(self) -> bool:
        """Whether there is a size of the axis for which the last window lies in the padding."""
        return self.stride + self.after > self.reach

    def padding(self, size: int) -> int:
        """Return the padding at the end with which rounding down gives the windows that start before it."""
        count = -(-(size + self.before + self.after - self.reach) // self.stride) + 1
        if (count - 1) * self.stride >= size + self.before:
            count -= 1
        return max(0, (count - 1) * self.stride + self.reach - size - self.before)


def hide_pools(model: ir.Model) -> list[ir.Node]:
    """Hide the pools of which ONNX might infer a window too many, and return them; `settle_pools` shows them again."""
    hidden = []
    if model.opset_imports.get("", COUNTED) < COUNTED:
        for node in model.graph.all_nodes():
            windows = _windows(node) if node.op_type in POOLS and node.domain in ("", "ai.onnx") else []
            if any(each.may_lie_in_padding for each in windows):
                node.domain = HIDDEN
                hidden.append(node)
    return hidden


def settle_pools(pools: list[ir.Node]) -> bool:
    """Show hidden pools again; set the padding of those with static inputs, so that windows are counted by rounding down.

    Only windows that start in the padding at the end are lost, so the others keep what they cover and count.

    Returns
    -------
    bool
        Whether any padding was set.
    """
    import onnx_ir as ir

    changed = False
    for node in pools:
        node.domain = ""
        x = node.inputs[0]
        if x is None or x.shape is None or not x.shape.is_static():
            continue
        windows = _windows(node)
        sizes = [int(size) for size in x.shape.numpy()[2:]]
        after = [each.padding(size) for each, size in zip(windows, sizes, strict=True)]
        node.attributes["pads"] = ir.AttrInt64s("pads", [*(each.before for each in windows), *after])
        node.attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
        changed = True
    return changed


def _windows(node: ir.Node) -> list[Windows]:
    """Return the windows of a pool along its axes; none if its sizes are not rounded up or its padding is automatic."""
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    if not values.get("ceil_mode") or values.get("auto_pad", "NOTSET") != "NOTSET":
        return []
    kernel = values["kernel_shape"]
    rank = len(kernel)
    ones = [1] * rank
    strides, dilations = values.get("strides", ones), values.get("dilations", ones)
    pads = values.get("pads", [0] * 2 * rank)
    return [Windows(strides[d], (kernel[d] - 1) * dilations[d] + 1, pads[d], pads[d + rank]) for d in range(rank)]
