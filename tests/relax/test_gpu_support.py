"""Which kernels GPUs have none for, and which run on one thread there."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_frontends.kernels.recurrent import Cell, Weights, emit_direction, gpu_recurrent_kernel, make_activation
from tvm_frontends.kernels.trees import Forest, forest_kernel
from tvm_sched.relax import inspect_model
from tvm_sched.relax.codegen.cuda.gpu_schedule import has_one_thread, schedule_for_gpu
from tvm_sched.relax.gpu_support import check_for_gpus
from tvm_sched_runtime.errors import InputError

GATES = tuple(map(make_activation, ("Sigmoid", "Tanh", "Tanh")))


def module(write, *shapes):
    """Relax's ``main`` of float32 inputs of these shapes."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(write(builder, *inputs)))
        builder.emit_func_output(result)
    return builder.get()


def lstm(hidden, steps=3, batch=2):
    cell = Cell("lstm", steps, batch, hidden, GATES)

    def write(builder, x, w, r):
        return emit_direction(builder, cell, Weights(w, r), x)[0]

    return module(write, (steps, batch, 4), (4 * hidden, 4), (4 * hidden, hidden))


def test_a_recurrent_layer_has_a_thread_for_each_hidden_unit():
    support = check_for_gpus(lstm(17))
    assert (support.refused, support.one_thread) == ({}, [])
    (kernel,) = [f for v, f in lstm(17).functions_items() if "lstm" in v.name_hint]
    assert not has_one_thread(gpu_recurrent_kernel(kernel))
    script = gpu_recurrent_kernel(kernel).script()
    assert 'T.thread_binding(2, thread="blockIdx.x")' in script, "sequences"
    assert 'T.thread_binding(24, thread="threadIdx.x")' in script, "units, filled up to three vectors of eight"


def test_states_beyond_shared_memory_leave_one_thread():
    support = check_for_gpus(lstm(4200))
    assert support.refused == {}
    assert [name.partition("_layer")[0] for name in support.one_thread] == ["lstm"]
    notes = inspect_model(lstm(4200), backend="cuda").notes
    assert any("lstm_layer" in note and "one thread" in note for note in notes)


def test_functions_of_the_host_are_refused():
    def write(builder, x):
        return relax.call_dps_packed("somebody.elses", relax.Tuple([x]), out_ty=relax.TensorType((4,), "float32"))

    support = check_for_gpus(module(write, (4,)))
    assert list(support.refused) == ["somebody.elses"]
    assert "compile for a topology of CPUs, or leave the operator out" in support.refused["somebody.elses"]
    (refusal,) = inspect_model(module(write, (4,)), backend="cuda").refused
    assert refusal.node == "somebody.elses"
    assert inspect_model(module(write, (4,))).refused == []


def test_sizes_that_depend_on_data_are_refused():
    support = check_for_gpus(module(lambda builder, x: relax.op.nonzero(x), (4, 4)))
    assert "sizes that are known only when it runs" in support.refused[""]


def test_a_backend_that_there_is_not():
    with pytest.raises(InputError, match="backend is 'rocm', expected 'cpu' or 'cuda'"):
        inspect_model(module(lambda builder, x: relax.op.abs(x), (4,)), backend="rocm")


def test_one_parallel_loop_has_a_thread_for_each_iteration():
    forest = Forest(
        np.array([0], "int32"), np.array([1], "int32"), np.zeros(1, "int32"), np.zeros(1, "int32"),
        np.array([0.5], "float32"), np.array([[1, 2]], "int32"), np.zeros((2, 1), "int32"), np.ones((2, 1), "float32"), 1,
    )  # fmt: skip
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    assert (
        'threadIdx.x"'
        in schedule_for_gpu(tvm.IRModule({"trees": forest_kernel(forest, 0, 2)}), target)["trees"].script()
    )
    for rows, blocks, threads in ((1, 1, 1), (6, 1, 6), (128, 1, 128), (300, 3, 128)):
        kernel = forest_kernel(forest, rows, 2)
        script = schedule_for_gpu(tvm.IRModule({"trees": kernel}), target)["trees"].script()
        assert f'T.thread_binding({blocks}, thread="blockIdx.x")' in script
        assert f'T.thread_binding({threads}, thread="threadIdx.x")' in script
        assert (f"< T.int64({rows})" in script) == (rows == 300), "only a block that is not full needs a guard"
