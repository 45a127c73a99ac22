"""What kernels read of their arguments: of tables the rows looked up, of slices the slice, else everything."""

import numpy as np
from tvm import relax
from tvm.script import tirx as T  # noqa: N812

from tvm_sched.relax import get_graph, get_problem, passes
from tvm_sched.relax.problem.read_bytes import count_read_bytes
from tvm_sched_runtime.problem import HOST, load_topology


def module(make, *shapes):
    """``main`` of float32 parameters with these shapes, and one input ``rows`` of three numbers."""
    builder = relax.BlockBuilder()
    rows = relax.Var("rows", relax.TensorType((3,), "int64"))
    parameters = [relax.Var(f"w{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)]
    with builder.function("main", [rows, *parameters], {"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(make(builder, rows, *parameters))
        builder.emit_func_output(result)
    return builder.get()


def reads(mod):
    graph = get_graph(passes.LowerToKernels(libraries=())(mod))
    return {operator.kind: operator.read_bytes or {} for operator in graph.operators}


def test_a_lookup_reads_its_rows():
    mod = module(lambda b, rows, w: relax.op.take(w, rows, axis=0, mode="fast"), (1000, 16))
    assert reads(mod) == {"take": {"w0": 3 * 16 * 4}}


def test_a_slice_is_read_and_a_product_reads_all():
    def make(b, rows, w, v):
        part = b.emit(relax.op.strided_slice(w, [0], [2], [6]))
        return relax.op.matmul(part, v)

    assert reads(module(make, (10, 8), (8, 5))) == {"strided_slice": {"w0": 4 * 8 * 4}, "matmul": {}}


def test_indices_that_are_the_table_too_are_all_read():
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((100,), "int32"), y: T.Buffer((4,), "int32")):
        for i in T.serial(4):
            with T.sblock("y"):
                v = T.axis.spatial(4, i)
                y[v] = x[x[v]]

    assert count_read_bytes(kernel) == {0: 2 * 4 * 4}


def test_each_thread_reads():
    @T.prim_func(private=True, s_tir=True)
    def kernel(x: T.Buffer((1000,), "float32"), y: T.Buffer((100,), "float32")):
        i = T.launch_thread("threadIdx.x", 100)
        y[i] = x[i]

    assert count_read_bytes(kernel) == {0: 100 * 4}


def test_loops_that_depend_on_data_say_nothing():
    @T.prim_func(private=True, s_tir=True)
    def kernel(n: T.Buffer((1,), "int32"), x: T.Buffer((100,), "float32"), y: T.Buffer((100,), "float32")):
        for i in T.serial(n[0]):
            y[i] = x[i]

    assert count_read_bytes(kernel) == {}


def test_direct_access_to_a_table_costs_its_rows():
    mod = module(lambda b, rows, w: relax.op.take(w, rows, axis=0, mode="fast"), (100_000, 1024))
    made = passes.EstimateLatencies(load_topology("v100-server"), "roofline")(passes.LowerToKernels(libraries=())(mod))
    problem = get_problem(made)
    assert problem.host_bytes(0) == 3 * 8 + 3 * 1024 * 4
    row = problem.route(HOST, 0).nanoseconds(problem.host_bytes(0))
    assert np.all(problem.costs.direct_ns[0] < problem.load_ns(problem.graph.index.tensor_id["w0"], 0) / 100)
    assert np.all(problem.costs.direct_ns[0] >= row)
