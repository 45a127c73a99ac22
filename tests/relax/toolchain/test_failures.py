"""What a caller reads where TVM fails on a model that it could read."""

import contextlib

import pytest
import tvm
from tvm import relax

from relax import cases
from tvm_sched.relax import compile, compile_pipeline, make_problem
from tvm_sched.relax.toolchain.failures import explained
from tvm_sched_runtime.errors import InputError, UnsupportedModelError

PASS = "model '.*': TVM cannot compile this: its pass LegalizeOps failed: .*power only applies to float"


@pytest.mark.parametrize(
    "work",
    [
        lambda: compile(cases.Squares, "cpu2", name="squares"),
        lambda: make_problem(cases.Squares, "v100-server", name="squares"),
        lambda: compile_pipeline(cases.Squares, "cpu2", name="squares"),
        lambda: tvm.compile(cases.Squares, "tvm_sched/cpu2"),
    ],
)
def test_a_pass_of_tvm_that_fails_is_named(work):
    with pytest.raises(UnsupportedModelError, match=PASS):
        work()


def test_a_kernel_that_cannot_be_compiled_is_named():
    words = r"^model 'm': kernel 'tvm_sched_plus_one': TVM cannot .*not implemented"
    with pytest.raises(UnsupportedModelError, match=words):
        compile(cases.OfAGpu, "cpu2", "single", name="m")


def test_errors_of_others_remain_as_they_are():
    def cost_model(graph, topology):
        raise KeyError("no latency of mine")

    with pytest.raises(KeyError, match="no latency of mine"):
        make_problem(cases.OfAGpu, "cpu2", cost_model=cost_model)
    with pytest.raises(InputError, match=r"^given$") as caught, explained("model 'm'"):
        raise InputError("given")
    assert not isinstance(caught.value, UnsupportedModelError)


def test_the_callers_settings_and_instruments_hold_inside():
    @tvm.instrument.pass_instrument
    class Counter:
        begun = ended = 0

        def exit_pass_ctx(self):
            self.ended += 1

        def run_before_pass(self, mod, info):
            self.begun += 1

    counter = Counter()
    with tvm.transform.PassContext(opt_level=1, config={"tirx.disable_cse_tir": True}), explained("model 'm'"):
        inside = tvm.transform.PassContext.current()
        assert (inside.opt_level, bool(inside.config["tirx.disable_cse_tir"])) == (1, True)
    with tvm.transform.PassContext(instruments=[counter]):
        with explained("model 'm'"):
            relax.transform.DeadCodeElimination()(cases.Squares)
        assert (counter.begun, counter.ended) == (1, 0)
        with pytest.raises(UnsupportedModelError, match="model 'm': TVM cannot compile this: it failed: "):
            compile(cases.Squares, "cpu2", name="m")


def test_a_pass_whose_failure_was_caught_is_not_blamed():
    @tvm.transform.module_pass(opt_level=0, name="tries")
    def tries(mod, ctx):
        with contextlib.suppress(tvm.error.InternalError):
            relax.transform.LegalizeOps()(mod)
        return mod

    @tvm.transform.module_pass(opt_level=0, name="fails")
    def fails(mod, ctx):
        return relax.op.power(1, 2)

    passes = tvm.transform.Sequential([tries, fails])
    with pytest.raises(UnsupportedModelError, match="its pass fails failed: "), explained("model 'm'"):
        passes(cases.Squares)


@pytest.mark.parametrize(
    "error", [RecursionError("maximum recursion depth exceeded"), RuntimeError("maximum recursion depth")]
)
def test_a_kernel_that_is_nested_too_deeply_says_so(error):
    message = "model 'm': one of its kernels has more than 2,000 nested statements"
    with pytest.raises(UnsupportedModelError, match=message), explained("model 'm'"):
        raise error
