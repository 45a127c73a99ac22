"""The price of direct host access where tiles of a product read an operand several times."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.problem import FORBIDDEN, HOST, load_topology
from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.lower.kernel_libraries.nvidia.launches import library_launch, operand_reads
from tvm_sched.relax.passes import DescribeLaunches, EstimateLatencies, LowerToKernels

op = relax.op


def matmul(m, n, k, batch=1):
    return {"kind": "matmul", "batch": batch, "m": m, "n": n, "k": k}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (matmul(4096, 4096, 4096), (32, 16)),  # tiles of 256 x 128
        (matmul(512, 4096, 4096), (64, 4)),  # of 128 x 64
        (matmul(32, 4096, 4096), (128, 1)),  # of 32 x 32
        (matmul(1, 4096, 4096), (128, 1)),
        ({"kind": "conv2d", "output": [1, 64, 8, 8], "weights": [64, 3, 3, 3], "groups": 1}, (2, 2)),
    ],
)
def test_operands_are_read_once_for_each_tile_of_the_other_side(document, expected):
    assert operand_reads(document) == expected
    blocks = library_launch(document).blocks
    assert blocks % (expected[0] * expected[1]) == 0, "the tiles of the launch"


def problem_of(rows, libraries):
    x, w = (
        relax.Var("x", relax.TensorType((rows, 96), "float32")),
        relax.Var("w", relax.TensorType((96, 512), "float32")),
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(op.matmul(x, w))
        builder.emit_func_output(result)
    passes = [
        LowerToKernels(device_kind="cuda", libraries=libraries, archs=["sm_70"]),
        DescribeLaunches(["sm_70"]),
        EstimateLatencies(load_topology("v100-server"), "roofline"),
    ]
    return get_problem(tvm.transform.Sequential(passes)(builder.get()))


@pytest.mark.parametrize(("rows", "reads"), [(16, (16, 1)), (512, (16, 16))])
def test_a_product_waits_for_each_reading(rows, reads):
    problem = problem_of(rows, ("nvidia",))
    (operator,) = problem.graph.operators
    size = {tensor.name: tensor.size for tensor in problem.graph.tensors}
    crossing = sum(size[name] * count for name, count in zip(operator.inputs, reads, strict=True))
    for d, device in enumerate(problem.topology.devices):
        bus = problem.topology.route(HOST, d)
        assert problem.costs.direct_ns[0, d] == bus.nanoseconds(crossing) + round(device.launch_overhead * 1e9)
        assert problem.host_read_ns(0, d) == bus.nanoseconds(size["x"] + size["w"]), (
            "the bus is occupied for one reading"
        )


def test_other_kernels_keep_the_lower_bound():
    problem = problem_of(512, ())
    assert (problem.costs.direct_ns != FORBIDDEN).all()
    least = np.array([problem.host_read_ns(0, d) for d in range(len(problem.topology.devices))])
    assert (problem.costs.direct_ns[0] < 2 * least).all()
