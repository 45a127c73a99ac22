"""Cases of `test_onednn.py` that other tests use, too."""

import pytest

from relax.compare import assert_same, run_plainly
from tvm_sched.relax import compile
from tvm_sched.relax.api import make_problem
from tvm_sched.relax.lower.kernel_libraries import get_library
from tvm_sched.relax.lower.kernel_libraries.kernel_library import VARIABLE

needs_onednn = pytest.mark.skipif(
    get_library("onednn").why_not() is not None, reason=f"oneDNN cannot be used here: {get_library('onednn').why_not()}"
)


def check(monkeypatch, mod, inputs, kind):
    compiled = compile(mod, "cpu2", "single")
    kinds = [operator.kind for operator in compiled.problem.graph.operators]
    found = [compiled.run(*inputs), compiled.run(*inputs)]
    monkeypatch.setenv(VARIABLE, "")
    plain = make_problem(mod, "cpu1").graph.operators
    assert not any(operator.kind.startswith("onednn") for operator in plain)
    expected = run_plainly(mod, *inputs)
    for each in found:
        assert_same(each, expected, rtol=2e-5)
    if kind is None:
        assert not any(name.startswith("onednn") for name in kinds)
    else:
        assert f"onednn.{kind}" in kinds
        own = sum(operator.flops for operator in plain if "matmul" in operator.kind)
        if own and kind.startswith("matmul"):
            assert sum(operator.flops for operator in compiled.problem.graph.operators) >= own
