"""End to end: modules through the pipeline, on one to four devices, against TVM's own build."""

import os
import re
import shutil
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax, te

from docs.snippets import ROOT
from relax import cases
from relax.cases import CASES, SQUARE, VECTOR
from relax.compare import assert_same, leaves, run
from tvm_sched.relax import CompileOptions, compile, get_graph, get_problem, get_schedule, passes, run_passes, target
from tvm_sched.relax.lower.lower_to_kernels import names_of
from tvm_sched.relax.profiling.calibration import KernelTimer
from tvm_sched.relax.toolchain.linking import load_executable
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Storage, load_topology
from tvm_sched_runtime.runtime import ScheduledModule

QUICK = {"work": 0.05}
"""For tests in which the schedule is not the point."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES)
def test_equals_tvm(case):
    mod, inputs = CASES[case]
    expected = run(tvm.compile(mod, "llvm"), *inputs)
    for devices in (1, 2, 3, 4):
        found = run(tvm.compile(mod, target(f"cpu{devices}", scheduler="anytime", options=QUICK)), *inputs)
        assert_same(found, expected)


def test_branches_use_both_devices_and_reuse_memory():
    executable = tvm.compile(cases.Branches, target("cpu2", options=QUICK))
    plan = ScheduledModule(executable).plans()[0]
    used = {plan["queues"][step["queue"]]["name"] for step in plan["steps"] if step["kind"] == "kernel"}
    assert used <= {"cpu0", "cpu1"}
    expected = run(tvm.compile(cases.Branches, "llvm"), SQUARE)
    for _ in range(20):
        assert_same(run(executable, SQUARE), expected)


@pytest.mark.parametrize("devices", [1, 3])
def test_constants_only(devices):
    mod, expected = cases.constants_only()
    assert_same(run(tvm.compile(mod, f"tvm_sched/cpu{devices}")), expected)


def test_tuple_input():
    executable = tvm.compile(cases.TupleInput, "tvm_sched/cpu2")
    a, b, c = (tvm.runtime.tensor(VECTOR * k) for k in (1, 2, 3))
    found = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"]((a, (b,)), c)
    assert_same(found, VECTOR * 2)


def test_function_beside_main_still_runs():
    machine = tvm.relax.VirtualMachine(tvm.compile(cases.OtherFunctions, "tvm_sched/cpu2"), tvm.cpu())
    assert_same(machine["other"](tvm.runtime.tensor(VECTOR)), VECTOR * VECTOR)


def test_passes_alone_leave_their_attributes():
    mod = tvm.transform.Sequential([passes.LowerToKernels(), passes.PrepareKernels()])(cases.Branches)
    assert len(get_graph(mod).operators) >= 6
    mod = passes.SplitByDominators(operators=3)(mod)
    mod = passes.EstimateLatencies("cpu2", measure=KernelTimer())(mod)
    problem = get_problem(mod)
    assert problem.graph == get_graph(mod)
    mod = passes.Place("anytime", QUICK)(mod)
    assert get_schedule(mod).problem == problem.digest
    mod = tvm.transform.Sequential([passes.AllocateStreams(), passes.OrderLaunches()])(mod)
    assert get_schedule(mod).problem == problem.digest
    mod = tvm.transform.Sequential([passes.EmitExecutor(), tvm.relax.get_pipeline("default_build")])(mod)
    assert_same(
        run(tvm.compile(mod, "llvm", relax_pipeline=None), SQUARE), run(tvm.compile(cases.Branches, "llvm"), SQUARE)
    )


def test_passes_run_up_to_one_of_them():
    mod = run_passes(cases.Branches, "cpu2", "EstimateLatencies", cost_model="roofline")
    assert get_problem(mod).graph == get_graph(mod)
    assert "tvm_sched.schedule" not in mod.attrs
    assert "R.matmul" not in run_passes(cases.Operators, "cpu2", "LowerToKernels").script()
    placed = run_passes(cases.Branches, "cpu2", "Place", cost_model="roofline", scheduler="single")
    assert get_schedule(placed).scheduler == "single"
    with pytest.raises(InputError, match=r"no pass 'Placed' runs for these options.*SetCompileTarget, LowerToKernels"):
        run_passes(cases.Branches, "cpu2", "Placed")
    names = [str(each.info.name) for each in passes.pass_list(CompileOptions.of("cpu2", scheduler="single"))]
    assert names == [
        f"tvm_sched.{name}"
        for name in (
            *("SetCompileTarget", "LowerToKernels", "PrepareKernels", "EstimateLatencies"),
            *("Place", "AllocateStreams", "OrderLaunches", "EmitExecutor"),
        )
    ]


def test_passes_to_the_end_embed_parameters():
    options = CompileOptions.of("cpu2", scheduler="single", cost_model="roofline", parameters="external")
    assert "tvm_frontends.parameters" not in run_passes(cases.constants_only()[0], options).attrs


def test_parameters_are_joined_where_schedules_are_not_measured():
    machine = msgspec.structs.replace(load_topology("cpu2"), storage=Storage("disk", 1e9, 1e-6))
    for measure in (False, True):
        mod = run_passes(cases.Operators, machine, "EstimateLatencies", cost_model="roofline", measure=measure)
        assert get_problem(mod).joinable is not measure


def test_steps_of_lowering_are_passes_to_stop_after():
    options = CompileOptions.of("cpu2", scheduler="single", cost_model="roofline")
    (lower,) = (each for each in passes.pass_list(options) if isinstance(each, passes.LowerToKernels))
    behind = {name: run_passes(cases.Operators, options, name) for name in names_of(lower.steps())}
    assert list(behind) == [
        *("BindParameters", "SimplifyOperators", "SplitTail", "WidenHalf", "FoldParameters", "ClaimOperators"),
        *("FoldParametersAgain", "LegalizeOperators", "SplitRows", "FuseOperators", "OfferVariants"),
        *("MakeKernels", "LiftParameters"),
    ]  # fmt: skip
    tvm.ir.assert_structural_equal(behind["LiftParameters"], run_passes(cases.Operators, options, "LowerToKernels"))
    texts = {name: mod.script() for name, mod in behind.items()}
    assert "R.call_dps_packed" not in texts["FoldParameters"]
    assert "R.call_dps_packed" in texts["ClaimOperators"]
    assert "R.cumsum" in texts["FoldParametersAgain"]
    assert "R.cumsum" not in texts["LegalizeOperators"]
    assert "op_pattern" not in texts["SplitRows"]
    assert "op_pattern" in texts["FuseOperators"]
    with pytest.raises(InputError, match="'FuseOperator' runs for these options; did you mean 'FuseOperators'"):
        run_passes(cases.Operators, options, "FuseOperator")


def test_steps_of_lowering_are_listed():
    listed = re.findall(r"^\| - `(\w+)`", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    beside = {"before_fusion": [passes.SplitRows(1)], "after_fusion": [passes.OfferVariants()]}
    assert (
        names_of(passes.LowerToKernels(libraries=("nvidia", "onednn"), device_kind="cuda", **beside).steps()) == listed
    )


def test_every_way_to_an_executable_gives_the_same_plan():
    options = CompileOptions.of("cpu2", scheduler="heft", cost_model="roofline")
    by_target = tvm.compile(cases.Branches, target(options))
    by_build = tvm.relax.build(cases.Branches, "llvm", relax_pipeline=relax.get_pipeline("tvm_sched", topology=options))
    plans = [ScheduledModule(load_executable(each)).plans() for each in (by_target, by_build)]
    assert plans == [compile(cases.Branches, options).module.plans()] * 2


def test_pass_without_its_attribute_names_the_pass():
    with pytest.raises(InputError, match="run the pass EstimateLatencies"):
        passes.Place("single")(passes.LowerToKernels()(cases.Branches))


def test_kernels_that_are_not_prepared_are_refused():
    """Their indices are not bounded, and their loops may be parallel."""
    chain = [passes.LowerToKernels(libraries=()), passes.EstimateLatencies("cpu2", "roofline"), passes.Place("single")]
    with pytest.raises(InputError, match="run PrepareKernels after LowerToKernels"):
        passes.EmitExecutor()(tvm.transform.Sequential(chain)(cases.Branches))


def test_named_pipeline():
    executable = tvm.compile(cases.SameTwice, "tvm_sched/cpu2", relax_pipeline="tvm_sched")
    assert_same(run(executable, VECTOR), run(tvm.compile(cases.SameTwice, "llvm"), VECTOR))
    chosen = tvm.relax.get_pipeline("tvm_sched", topology="cpu2", scheduler="single")
    assert_same(
        run(tvm.compile(cases.SameTwice, "llvm", relax_pipeline=chosen), VECTOR),
        [np.exp(VECTOR), VECTOR] + [np.exp(VECTOR)] * 2,
    )


def test_named_pipeline_asks_for_a_topology():
    with pytest.raises(InputError, match="names no topology"):
        tvm.compile(cases.SameTwice, "llvm", relax_pipeline="tvm_sched")


def test_topology_file(tmp_path):
    from tvm_sched_runtime.problem import load_topology, write_topology

    path = tmp_path / "machine.toml"
    write_topology(path, load_topology("cpu2"))
    executable = tvm.compile(cases.Branches, target(path, scheduler="single"))
    assert ScheduledModule(executable).info()["scheduler"] == "single"
    with pytest.raises(InputError, match="neither a preset nor a file"):
        target("nosuch")


@pytest.mark.parametrize("topology", ["v100-server", "v100-hetero", "a40x2", "p4d"])
@pytest.mark.sampled(6)
def test_gpu_topologies_compute_values(topology):
    """Loads, direct host access, peer copies and results that have to be copied out."""
    seq = tvm.transform.Sequential(
        [
            passes.LowerToKernels(),
            passes.PrepareKernels(),
            passes.EstimateLatencies(topology),
            passes.Place("anytime", QUICK),
            passes.EmitExecutor(backend="cpu"),
            tvm.relax.get_pipeline("default_build"),
        ]
    )
    inputs = cases.operators_inputs()
    found = run(tvm.compile(cases.Operators, "llvm", relax_pipeline=seq), *inputs)
    assert_same(found, run(tvm.compile(cases.Operators, "llvm"), *inputs))


def test_emulated_by_default():
    plan = ScheduledModule(tvm.compile(cases.Branches, target("a40x2", options=QUICK))).plans()[0]
    assert plan["backend"] == "emulated"


FRESH = """
import sys, numpy as np
sys.modules['torch'] = None  # tvm_ffi would import it, which takes longer than the rest
import tvm
if not {installed}:
    from tvm_sched.relax.autoload import register
    register()
from tvm.runtime.vm import VirtualMachine
machine = VirtualMachine(tvm.runtime.load_module({path!r}), tvm.cpu())
result = machine["main"](tvm.runtime.tensor(np.load({x!r})))
np.save({y!r}, result.numpy())
if tvm._RUNTIME_ONLY:
    found = [m for m in sys.modules if m.split(".")[0] in ("ortools", "xgboost", "rustworkx") or m == "tvm.relax"]
    assert not found, found
"""


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    path = tmp_path_factory.mktemp("branches") / "model.so"
    tvm.compile(cases.Branches, target("cpu2", options=QUICK)).export_library(str(path))
    return path


@pytest.mark.parametrize("runtime_only", [False, True])
def test_fresh_process(branches, tmp_path, runtime_only):
    path, x, y = (str(tmp_path / name) for name in ("model.so", "x.npy", "y.npy"))
    shutil.copyfile(branches, path)
    np.save(x, SQUARE)
    from importlib.metadata import entry_points

    installed = any(entry.value.startswith("tvm_sched") for entry in entry_points(group="tvm.backends"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if runtime_only:
        environment["TVM_USE_RUNTIME_LIB"] = "1"
    script = FRESH.format(installed=installed, path=path, x=x, y=y)
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
    assert_same(np.load(y), run(tvm.compile(cases.Branches, "llvm"), SQUARE))


UNCHANGED = """
import sys, numpy as np
sys.modules['torch'] = None  # tvm_ffi would import it, which takes longer than the rest
import tvm
from tvm import relax, te
from relax import cases
executable = tvm.compile(cases.Operators, "llvm")
print(executable.as_text())
"""


@pytest.mark.slow
def test_other_targets_compile_as_without_us():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    without = subprocess.run(
        [sys.executable, "-c", UNCHANGED], check=True, env=environment, capture_output=True, text=True
    )
    assert tvm.compile(cases.Operators, "llvm").as_text().strip() == without.stdout.strip()


def test_build_of_a_relax_model_names_compile():
    """TVM 0.27 ends in an AttributeError, for every target; functions of TIR are built as before."""
    for name in ("tvm_sched/cpu2", "llvm"):
        with (
            pytest.warns(DeprecationWarning, match="build is deprecated"),
            pytest.raises(InputError, match=r"'main' is one of Relax; call tvm\.compile"),
        ):
            tvm.build(cases.Operators, name)
    product = te.create_prim_func(
        [x := te.placeholder((4,), "float32", "x"), te.compute((4,), lambda i: x[i] * x[i], "y")]
    )
    given, found = tvm.runtime.tensor(np.arange(4, dtype="float32")), tvm.runtime.empty((4,), "float32")
    tvm.tirx.build(product, "llvm")["main"](given, found)
    assert found.numpy().tolist() == [0, 1, 4, 9]


def test_unschedulable_operator_is_named():
    with pytest.raises(InputError, match=r"'y'.*nonzero.*depends on data"):
        tvm.compile(cases.Nonzero, "tvm_sched/cpu2")


def test_symbolic_shape_is_named_for_devices_that_need_static_ones():
    with pytest.raises(InputError, match=r"'x'.*static shapes"):
        tvm.compile(cases.Symbolic, "tvm_sched/v100-server")


def test_external_packed_functions():
    """Kernels that are no PrimFuncs: one that writes into its last arguments, one that returns its result."""
    tvm.register_global_func("test.tvm_sched.dps", lambda x, y: y.copyfrom(x.numpy() + 1), override=True)
    tvm.register_global_func("test.tvm_sched.packed", lambda x: tvm.runtime.tensor(x.numpy() * 2), override=True)
    ty = tvm.relax.TensorType((4,), "float32")
    x = tvm.relax.Var("x", ty)
    builder = tvm.relax.BlockBuilder()
    with builder.function("main", [x]):
        y = builder.emit(tvm.relax.call_dps_packed("test.tvm_sched.dps", [x], out_ty=ty))
        z = builder.emit(tvm.relax.call_pure_packed("test.tvm_sched.packed", y, ty_args=ty))
        builder.emit_func_output(z)
    assert_same(run(tvm.compile(builder.get(), "tvm_sched/cpu2"), VECTOR), (VECTOR + 1) * 2)


def test_leaves_helper():
    assert len(leaves([np.zeros(1), [np.zeros(2), np.zeros(3)]])) == 3


@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0, 1.5, -1.0])
def test_small_whole_powers_are_products(exponent):
    x = relax.Var("x", relax.TensorType((2, 5), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.power(x, relax.const(np.float32(exponent))))
        builder.emit_func_output(result)
    made = compile(builder.get(), "cpu1", "single")
    kinds = [operator.kind for operator in made.problem.graph.operators]
    assert all("power" in kind for kind in kinds) == (exponent not in (2, 3, 4))
    value = np.array([[-2.0, -1.0, 0.5, 1.0, 3.0], [0.1, -0.3, 7.0, 1e-3, 2.5]], np.float32)
    value = value if exponent != 1.5 else np.abs(value)
    np.testing.assert_allclose(made.module.run(value)[0], value**exponent, rtol=1e-6)


def test_targets_of_any_number_of_devices_are_known_when_asked_for():
    for name in ("cpu129", "cpu2345/throughput"):
        target = tvm.target.Target(f"tvm_sched/{name}")
        assert "tvm_sched" in target.keys
        assert str(target.attrs["model"]) == name.split("/")[0]


@pytest.mark.parametrize(
    ("name", "hint"), [("cpu0", ""), ("cpu10000", ""), ("v100-sever", "did you mean 'v100-server'"), ("cpu2/fast", "")]
)
def test_an_unknown_target_says_which_there_are(name, hint):
    with pytest.raises(InputError, match=f"there is no target 'tvm_sched/{name}'.*{hint}.*cpu1 to cpu9999") as caught:
        tvm.compile(cases.SameTwice, f"tvm_sched/{name}")
    assert "tvm_sched.relax.target('machine.toml', ...)" in str(caught.value)


def test_other_unknown_targets_fail_as_in_tvm():
    with pytest.raises(ValueError, match="is not defined") as caught:
        tvm.target.Target("tvm_schedule")
    assert not isinstance(caught.value, InputError)
