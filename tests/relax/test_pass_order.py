"""TVM's passes before, between and after ours, as the table in docs/tasks/write_pass.md says."""

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax import CompileOptions
from tvm_sched.relax.passes import pass_list
from tvm_sched_runtime.errors import InputError

T = relax.transform
RNG = np.random.default_rng(0)
X, FILTERS, WEIGHTS = (RNG.integers(-2, 3, shape).astype("float32") for shape in ((1, 4, 8, 8), (4, 4, 3, 3), (8, 8)))
EVERYWHERE = {
    "DeadCodeElimination": T.DeadCodeElimination(),
    "CanonicalizeBindings": T.CanonicalizeBindings(),
    "EliminateCommonSubexpr": T.EliminateCommonSubexpr(),
    "ConvertLayout": T.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]}),
    "ToMixedPrecision": T.ToMixedPrecision("float32"),
    "LegalizeOps": T.LegalizeOps(),
    "AnnotateTIROpPattern": T.AnnotateTIROpPattern(),
    "FoldConstant": T.FoldConstant(),
    "FuseOps": T.FuseOps(),
    "FuseTIR": T.FuseTIR(),
    "RealizeVDevice": T.RealizeVDevice(),
    "ToNonDataflow": T.ToNonDataflow(),
}
"""In an order in which they may all run."""
REFUSED = {
    "CallTIRRewrite": ([T.LegalizeOps(), T.ToNonDataflow(), T.CallTIRRewrite()], "memory is planned with the schedule"),
    "default_build": ([relax.get_pipeline("default_build")], "memory is planned with the schedule"),
}
PLACES = ("", "LowerToKernels", "EstimateLatencies", "Place", "EmitExecutor")


@pytest.fixture(scope="module")
def model():
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(X.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            builder.emit(relax.op.exp(x))
            image = builder.emit(relax.op.nn.relu(builder.emit(relax.op.nn.conv2d(x, relax.const(FILTERS), padding=1))))
            sums = builder.emit(relax.op.cumsum(image, 3))
            result = builder.emit_output(relax.op.matmul(sums, relax.const(WEIGHTS)))
        builder.emit_func_output(result)
    return builder.get()


def run(mod, inserted, behind):
    """Compile with TVM's passes behind one of ours (before all: ""), and run."""
    ours = pass_list(CompileOptions.of("cpu2", scheduler="heft", cost_model="roofline"))
    names = [each.info.name.removeprefix("tvm_sched.") for each in ours]
    split = names.index(behind) + 1 if behind else 0
    mod = tvm.transform.Sequential(ours[:split])(mod)
    with tvm.target.Target("llvm"):
        mod = tvm.transform.Sequential(inserted)(mod)
    mod = tvm.transform.Sequential(ours[split:])(mod)
    return relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())["main"](tvm.runtime.tensor(X)).numpy()


def expected():
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(X[0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    return (np.cumsum(np.maximum(np.einsum("cijkl,ockl->oij", windows, FILTERS), 0), 2) @ WEIGHTS)[None]


@pytest.mark.parametrize("behind", PLACES)
def test_all_passes_that_may_run_anywhere(model, behind):
    # ToMixedPrecision rounds; `test_a_pass_that_may_run_anywhere` has numbers that it does not round.
    passes = [each for name, each in EVERYWHERE.items() if behind or name != "ToMixedPrecision"]
    np.testing.assert_array_equal(run(model, passes, behind), expected())


@pytest.mark.thorough
@pytest.mark.parametrize("behind", PLACES)
@pytest.mark.parametrize(
    "name", [name for name in EVERYWHERE if name not in ("AnnotateTIROpPattern", "FuseOps", "FuseTIR")]
)
def test_a_pass_that_may_run_anywhere(model, name, behind):
    np.testing.assert_array_equal(run(model, [EVERYWHERE[name]], behind), expected())


@pytest.mark.parametrize("behind", PLACES[:-1])
@pytest.mark.parametrize("name", REFUSED)
def test_what_allocates_memory_is_refused_before_emission(model, name, behind):
    passes, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        run(model, passes, behind)


def test_another_graph_than_the_schedules_is_refused(model):
    def without_last(mod, ctx):
        body = mod["main"].body
        value = body.blocks[-1].bindings[-1].value.args[1].fields[0]
        main = relax.SeqExpr(body.blocks, value)
        mod["main"] = relax.Function(mod["main"].params, main, value.ty, True, mod["main"].attrs)
        return T.DeadCodeElimination()(mod)

    with pytest.raises(InputError, match="run EstimateLatencies and Place again"):
        run(model, [tvm.transform.module_pass(without_last, opt_level=0, name="WithoutLast")], "Place")


def test_bundled_parameters_are_refused(model):
    with pytest.raises(InputError, match="parameters in the tuple 'model_params'"):
        run(model, [T.BundleModelParams()], "LowerToKernels")
