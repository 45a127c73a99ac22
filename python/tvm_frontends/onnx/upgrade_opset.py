"""Upgrade the opset of an ONNX model by ONNX's C++ library in a separate process, since broken models may crash it.

``python upgrade_opset.py VERSION`` reads a model from standard input, converts its opset to VERSION if it is older, and
writes the result to standard output. The file is run by its path, so that the child process imports only onnx.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

SECONDS = 300.0
"""Time limit of the child process."""


class NativeError(Exception):
    """ONNX's library failed on a model; the message has the reason."""


def upgrade(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Convert a model to a newer opset, in a child process.

    The model must be small enough for protobuf (2 GB), so large initializers must be left out.

    Raises
    ------
    NativeError
        The library refused the model, or ended the process.
    """
    import onnx

    command = [sys.executable, "-I", str(Path(__file__)), str(version)]
    try:
        done = subprocess.run(
            command, input=model.SerializeToString(), capture_output=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NativeError(f"onnx.version_converter took more than {SECONDS:.0f} s") from None
    if done.returncode < 0:
        raise NativeError(f"onnx.version_converter ended its process with signal {-done.returncode}")
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["without a message"]
        raise NativeError(f"onnx.version_converter failed: {lines[-1]}")
    return onnx.ModelProto.FromString(done.stdout)


def main() -> None:
    """Run the child process of `upgrade`."""
    import onnx
    from onnx import version_converter

    model = onnx.ModelProto.FromString(sys.stdin.buffer.read())
    if any(item.version < 7 for item in model.opset_import if item.domain in ("", "ai.onnx")):
        spell_out_broadcasts(model)
    if any(item.version < 13 for item in model.opset_import if item.domain in ("", "ai.onnx")):
        flatten_hardmax(model)
    sys.stdout.buffer.write(version_converter.convert_version(model, int(sys.argv[1])).SerializeToString())


def spell_out_broadcasts(model: onnx.ModelProto) -> None:
    """Reshape second operands by the attribute ``axis`` of opset 6 and older, which ONNX's converter ignores."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {
        item.name: len(item.type.tensor_type.shape.dim)
        for item in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    ranks |= {tensor.name: len(tensor.dims) for tensor in inferred.initializer}
    nodes = []
    for node in model.graph.node:
        attributes = {item.name: item.i for item in node.attribute}
        if len(node.input) == 2 and attributes.get("broadcast") and "axis" in attributes:
            first, second = (ranks[name] for name in node.input)
            axis = attributes["axis"] + (first if attributes["axis"] < 0 else 0)
            missing = list(range(second, second + first - axis - second))
            if missing:
                wide = f"{node.output[0]}__operand"
                nodes.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [wide], axes=missing))
                node.input[1] = wide
            kept = [item for item in node.attribute if item.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def flatten_hardmax(model: onnx.ModelProto) -> None:
    """Flatten inputs of Hardmax, which is over all axes from ``axis`` on before opset 13; ONNX's converter leaves them."""
    import onnx

    nodes = []
    for node in model.graph.node:
        if node.op_type != "Hardmax" or node.domain not in ("", "ai.onnx"):
            nodes.append(node)
            continue
        axis = next((item.i for item in node.attribute if item.name == "axis"), 1)
        flat, best, shape = (f"{node.output[0]}__{name}" for name in ("flat", "best", "shape"))
        nodes += [
            onnx.helper.make_node("Shape", [node.input[0]], [shape]),
            onnx.helper.make_node("Flatten", [node.input[0]], [flat], axis=axis),
            onnx.helper.make_node("Hardmax", [flat], [best], name=node.name, axis=1),
            onnx.helper.make_node("Reshape", [best, shape], [node.output[0]]),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


if __name__ == "__main__":
    main()
