"""Schedules of TVM's tuner and of dlight: taken for their target only, kept as they are, and right."""

from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import Schedule, dlight, meta_schedule

from tvm_frontends.errors import ModelWarning
from tvm_sched.relax import compile, passes, run_passes, target
from tvm_sched.relax.codegen.apply_schedules import fits
from tvm_sched.relax.codegen.cpu.kernels import lower_kernels, prepare_kernel
from tvm_sched.relax.compiled_results import compilation_key
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.errors import InputError

HOST = CompileTarget().host
X = np.random.default_rng(0).integers(-3, 4, (24, 24)).astype("float32")
EXPECTED = np.cumsum(np.maximum(X @ X, 0), 1)
TUNED = Path(__file__).parents[2] / "data/tuned"
SETTINGS = {"scheduler": "heft", "cost_model": "roofline", "cache": False}


@pytest.fixture(autouse=True)
def without_libraries(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")


@pytest.fixture(scope="module")
def model():
    """A product with a kernel of its own, and a running sum."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(x, x))))
            result = builder.emit_output(relax.op.cumsum(product, 1))
        builder.emit_func_output(result)
    return builder.get()


def kernel(mod, name):
    return next(f for v, f in mod.functions_items() if name in v.name_hint)


def extents(function):
    """The extents of a kernel's loops, the inner ones first."""
    found = []
    tvm_ffi.structural_walk(function.body, (tvm.tirx.For, lambda loop: found.append(int(loop.extent))))
    return found


def record(database, mod, name, tuned_for, tile, seconds, block="matmul"):
    """Put a schedule into a database that splits the product's first loop into tiles."""
    function = kernel(mod, name).with_attrs({"global_symbol": "main", "tirx.noalias": True})
    workload = tvm.IRModule({"main": function})
    text = function.script().replace('T.sblock("matmul")', f'T.sblock("{block}")')
    schedule = Schedule(tvm.IRModule({"main": tvm.script.from_source(text)}))
    schedule.split(schedule.get_loops(schedule.get_sblock(block))[0], factors=[None, tile])
    arguments = meta_schedule.arg_info.ArgInfo.from_prim_func(function)
    committed = database.commit_workload(workload)
    database.commit_tuning_record(
        meta_schedule.database.TuningRecord(schedule.trace, committed, [seconds], tuned_for, arguments)
    )


@pytest.fixture(scope="module")
def lowered(model):
    return passes.LowerToKernels(libraries=())(model)


@pytest.fixture(scope="module")
def tuned(lowered):
    """The fastest record is for a GPU, the next for another processor, then two for this one."""
    database = meta_schedule.database.MemoryDatabase()
    gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    other = tvm.target.Target({"kind": "llvm", "mcpu": "pentium4", "mtriple": "x86_64-linux-gnu"})
    cores = tvm.target.Target({"kind": "llvm", "num-cores": 96})
    for each, tile, seconds in ((gpu, 2, 0.1), (other, 3, 0.2), (HOST, 4, 0.4), (cores, 6, 0.3)):
        record(database, lowered, "matmul", each, tile, seconds)
    return database


def test_the_fastest_record_for_the_target_is_taken_and_kept(model, tuned):
    with tuned:
        compiled = compile(model, "cpu2", **SETTINGS)
        prepared = run_passes(model, "cpu2", "PrepareKernels", **SETTINGS)
        executable = tvm.compile(model, target("cpu2", **SETTINGS))
    np.testing.assert_array_equal(compiled.run(X), EXPECTED)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(X)).numpy(), EXPECTED)
    product, _ = compiled.problem.graph.operators
    assert (product.kind, product.flops) == ("scheduled.matmul_relu", 2 * 24**3 + 24**2)
    assert extents(kernel(prepared, "matmul")) == [24, 24, 6, 4, 24, 24]


def test_loops_that_are_arranged_are_not_vectorised():
    x = tvm.te.placeholder((64,), name="x")
    function = tvm.te.create_prim_func([x, tvm.te.compute((64,), lambda i: tvm.te.exp(x[i]), name="y")])
    ours, arranged = prepare_kernel(function), prepare_kernel(function.with_attr("tirx.is_scheduled", True))
    assert tvm_ffi.structural_equal(arranged.body, function.body)
    assert "float32x" in lower_kernels({"kernel": ours}, HOST)["kernel"].script()
    assert "float32x" not in lower_kernels({"kernel": arranged}, HOST)["kernel"].script()


def test_a_function_may_be_the_database(model):
    def schedule_product(schedule):
        if found := 'T.sblock("matmul")' in schedule.mod.script():
            schedule.split(schedule.get_loops(schedule.get_sblock("matmul"))[0], factors=[3, 8])
        return found

    with meta_schedule.database.ScheduleFnDatabase(schedule_product):
        mod = run_passes(model, "cpu2", "PrepareKernels", **SETTINGS)
    assert extents(kernel(mod, "matmul")) == [24, 24, 8, 3, 24, 24]


def test_a_record_for_another_target_is_not_used(model, lowered):
    database = meta_schedule.database.MemoryDatabase()
    record(database, lowered, "matmul", tvm.target.Target({"kind": "cuda", "arch": "sm_80"}), 2, 0.1)
    with database, pytest.warns(ModelWarning, match=r"1 kernels do not use .*relu \(tuned for cuda sm_80\); .*llvm"):
        mod = run_passes(model, "cpu2", "PrepareKernels", **SETTINGS)
    assert "tirx.is_scheduled" not in kernel(mod, "matmul").attrs


def test_a_record_that_does_not_go_with_the_kernel_is_not_used(model, lowered):
    database = meta_schedule.database.MemoryDatabase()
    record(database, lowered, "matmul", HOST, 5, 0.1, block="absent")
    with database, pytest.warns(ModelWarning, match="TVM cannot apply the record"):
        run_passes(model, "cpu2", "PrepareKernels", **SETTINGS)


def test_a_database_of_other_kernels_is_reported(model):
    with meta_schedule.database.MemoryDatabase(), pytest.warns(ModelWarning, match="for none of the kernels: tune"):
        run_passes(model, "cpu2", "PrepareKernels", **SETTINGS)


def test_the_folder_of_a_tuner(tmp_path):
    """`tests/data/tuned` is of the kernel below: a record for a GPU, and a slower one for CPUs."""
    x = tvm.te.placeholder((24,), name="x")
    twice = tvm.te.create_prim_func([x, tvm.te.compute((24,), lambda i: x[i] * 2, name="y")])
    builder, argument = relax.BlockBuilder(), relax.Var("x", relax.TensorType((24,), "float32"))
    name = builder.add_func(twice.without_attr("global_symbol").with_attr("tirx.noalias", True), "twice")
    with builder.function("main", [argument]):
        with builder.dataflow():
            result = builder.emit_output(relax.call_tir(name, [argument], argument.ty))
        builder.emit_func_output(result)
    mod = run_passes(builder.get(), "cpu2", "PrepareKernels", tuned=TUNED, **SETTINGS)
    assert extents(kernel(mod, "twice")) == [4, 6]
    found = compile(builder.get(), "cpu2", tuned=TUNED, **SETTINGS).run(X[0])
    np.testing.assert_array_equal(found, 2 * X[0])


@pytest.mark.parametrize(
    ("wanted", "tuned_for", "answer"),
    [
        ({}, {}, True),
        ({"mcpu": "haswell"}, {"num-cores": 8}, True),
        ({"mcpu": "haswell"}, {"mcpu": "haswell", "num-cores": 8}, True),
        ({"mcpu": "haswell"}, {"mcpu": "skylake-avx512"}, False),
        ({"mcpu": "skylake-avx512"}, {"mcpu": "haswell"}, False),
        ({"mcpu": "haswell"}, {"mattr": ["+avx512f"]}, False),
        ({}, {"mtriple": "aarch64-linux-gnu"}, False),
    ],
)
def test_targets_that_fit(wanted, tuned_for, answer):
    here = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}
    assert fits(tvm.target.Target(here | tuned_for), tvm.target.Target(here | wanted)) is answer


def test_gpus_fit_by_architecture():
    gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert fits(gpu, gpu)
    assert not fits(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}), gpu)
    assert not fits(HOST, gpu)
    assert not fits(None, gpu)


def test_folders_without_schedules_are_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"there is no database_workload.json; the folder that TVM's tuner got"):
        run_passes(model, "cpu2", "PrepareKernels", tuned=str(tmp_path))
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).write_text("[1, 2\n")
    with pytest.raises(InputError, match="whose schedules cannot be read"):
        run_passes(model, "cpu2", "PrepareKernels", tuned=str(tmp_path))
    with pytest.raises(InputError, match="tuned is 3; the folder of a database"):
        run_passes(model, "cpu2", "PrepareKernels", tuned=3)


def test_a_compiled_model_in_the_cache_is_of_its_schedules(tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"a model")
    keys = []
    for content in ("[1]", "[2]"):
        (tmp_path / "database_workload.json").write_text(content)
        keys.append(compilation_key(model, {"tuned": str(tmp_path)}))
    assert keys[0] != keys[1]


def test_kernels_that_dlight_scheduled_keep_their_loops(model):
    """Neither fused to a following kernel, nor cut for several devices, nor vectorised."""
    with tvm.target.Target("llvm"):
        scheduled = dlight.ApplyDefaultSchedule(_Swapped())(relax.transform.LegalizeOps()(model))
    settings = SETTINGS | {"rows": True}
    mod = run_passes(scheduled, "cpu4", "PrepareKernels", **settings)
    for name in ("matmul", "relu"):
        assert tvm_ffi.structural_equal(kernel(mod, name).body, kernel(scheduled, name).body)
    compiled = compile(scheduled, "cpu4", **settings)
    np.testing.assert_array_equal(compiled.run(X), EXPECTED)
    kinds = [each.kind for each in compiled.problem.graph.operators]
    assert kinds == ["scheduled.matmul", "scheduled.relu", "cumsum"]


class _Swapped(dlight.base.ScheduleRule):
    """Swap the two outer loops of a kernel."""

    def apply(self, func, target, tunable):
        schedule = Schedule(func)
        if 'T.sblock("root")' not in func.script():
            return None
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            schedule.reorder(*schedule.get_loops(block)[1::-1])
        return schedule
