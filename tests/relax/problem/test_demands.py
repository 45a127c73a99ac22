"""What operators say that their kernels take of a GPU."""

import json
from math import prod
from pathlib import Path

import msgspec
import pytest
import tvm
from tvm import relax

from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.lower.kernel_libraries.nvidia.launches import library_launch
from tvm_sched.relax.passes import DescribeLaunches, EstimateLatencies, LowerToKernels
from tvm_sched_runtime.problem import Demand, KernelResources, Problem, load_topology

op = relax.op
LAUNCHES = json.loads((Path(__file__).parents[3] / "benchmarks/data/h100_launches.json").read_text())


@pytest.fixture(scope="module")
def model():
    x, w = relax.Var("x", relax.TensorType((64, 96), "float32")), relax.Var("w", relax.TensorType((96, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(op.nn.softmax(x))
            result = builder.emit_output(op.matmul(y, w))
        builder.emit_func_output(result)
    return builder.get()


def free_streams(topology):
    """A machine that older programs know, too."""
    devices = tuple(msgspec.structs.replace(d, stream_overhead=0, wait_overhead=0) for d in topology.devices)
    return msgspec.structs.replace(topology, devices=devices)


def lowered(model, gpus=(), **options):
    passes = [LowerToKernels(**options), EstimateLatencies(free_streams(load_topology("a40x2")), "occupancy")]
    if gpus:
        passes.insert(1, DescribeLaunches(gpus))
    return get_problem(tvm.transform.Sequential(passes)(model))


def test_launches_of_kernels_that_are_lowered_alone(model):
    problem = lowered(model, libraries=(), gpus=["sm_86"])
    softmax, product = problem.graph.operators
    assert (softmax.kind, softmax.demand.memory_bound, softmax.demand.source) == ("softmax", True, "launch")
    assert (product.kind, product.demand.memory_bound) == ("matmul", False)
    assert [each.demand.launches[0].registers for each in (softmax, product)] == [32, 64]  # assumed
    assert all(launch.threads <= 1024 for each in (softmax, product) for launch in each.demand.launches)
    loaded = Problem.from_json(problem.to_json())
    assert loaded.graph == problem.graph


def test_nothing_is_said_without_gpus(model):
    assert not any(operator.demand for operator in lowered(model, libraries=()).graph.operators)


def test_a_product_of_the_library_by_the_model(model):
    problem = lowered(model, libraries=("nvidia",), device_kind="cuda", gpus=["sm_86"])
    product = next(operator for operator in problem.graph.operators if operator.demand.source == "library")
    assert product.demand == Demand((KernelResources(2, 64, 80, 6528),), False, "library")


def test_the_model_of_libraries_beside_what_an_h100_was_given():
    seen, ratios = set(), []
    for case, _, grid, *_ in LAUNCHES["rows"]:
        kind, *sizes = case.split()
        if case in seen:
            continue  # the second kernel of a split sum
        seen.add(case)
        numbers = [int(size) for size in sizes]
        if kind == "conv":
            channels, filters, extent, kernel, stride = numbers
            out = -(-extent // stride)
            weights = [filters, channels, kernel, kernel]
            document = {"kind": "conv2d", "output": [1, filters, out, out], "weights": weights, "groups": 1}
        else:
            batch, m, n, k = numbers if kind == "bmm" else (1, *numbers)
            document = {"kind": "matmul", "batch": batch, "m": m, "n": n, "k": k}
        found = library_launch(document).blocks / prod(grid)
        ratios.append(max(found, 1 / found))
    assert (len(ratios), sum(ratio < 2.1 for ratio in ratios)) == (55, 52)
    assert max(ratios) <= 4


def test_occupancy_looks_at_demands(model):
    used = lowered(model, libraries=(), gpus=["sm_86"]).costs.concurrency.utilisation
    guessed = lowered(model, libraries=()).costs.concurrency.utilisation
    assert (used[:, :, 0] != guessed[:, :, 0]).any()
    assert load_topology("a40x2").devices[0].arch == "sm_86"
