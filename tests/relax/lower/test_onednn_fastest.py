"""Which of oneDNN's implementations computes a kernel: written into its description, the same values by each."""

import json

import numpy as np
import pytest

from relax.compare import assert_same
from relax.lower.onednn_cases import needs_onednn
from relax.lower.onednn_fastest_cases import call, depthwise, product
from relax.onednn_cases import IMAGE, arrays, convolution, module, steps
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.kernel_library import KernelSet
from tvm_sched.relax.lower.kernel_libraries.onednn import fastest
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION, implementation
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.core_library import function

pytestmark = needs_onednn

RNG = np.random.default_rng(4)
REFERENCE = "ref:any"
"""oneDNN's implementation of everything, on every processor, and the last that it would take."""


@pytest.mark.parametrize("kernel", [depthwise(24, 9), product(7, 33, 20)])
def test_each_implementation_computes_the_same(kernel):
    arguments = [RNG.standard_normal(o["dims"]).astype("float32") for o in kernel["operands"][:-1]]
    named = {**kernel, "implementation": REFERENCE}
    assert implementation(kernel) != REFERENCE
    assert implementation(named) == REFERENCE
    # Also once the other implementation of the same kernel was made in this process.
    for _ in range(2):
        np.testing.assert_allclose(call(named, *arguments), call(kernel, *arguments), rtol=1e-5, atol=1e-5)


def test_where_there_is_no_implementation_of_a_name_onednn_chooses():
    kernel = depthwise(16, 8)
    assert implementation({**kernel, "implementation": "jit:of_another_processor"}) == implementation(kernel)


def test_a_choice_is_one_of_onednns_and_never_its_reference():
    document = {"version": VERSION, "kernels": {"a": depthwise(64, 56), "b": product(64, 64, 64)}}
    found = [str(name) for name in function("tvm_sched.onednn_fastest_implementations")(json.dumps(document))]
    assert len(found) == 2
    for kernel, name in zip(document["kernels"].values(), found, strict=True):
        assert "ref" not in name
        if name:
            assert implementation({**kernel, "implementation": name}) == name


def kernels_of(*described):
    kernels = KernelSet("onednn")
    for kernel, flops in described:
        kernels.documents[f"k{len(kernels.documents)}"] = json.dumps({"flops": flops, "kernel": kernel})
    return kernels


def answer(monkeypatch, name):
    """Let each question be answered by a name; which kernels were asked for."""
    asked = []

    def fake(which):
        assert which == "tvm_sched.onednn_fastest_implementations"

        def answered(document):
            asked.extend(kernels := list(json.loads(document)["kernels"].values()))
            return [name] * len(kernels)

        return answered

    monkeypatch.setattr(fastest, "library_function", fake)
    return asked


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))


def chosen(kernels):
    return [json.loads(document)["kernel"].get("implementation") for document in kernels.documents.values()]


def test_large_kernels_are_tried_once_and_kept(monkeypatch, cache):
    large, small = (depthwise(64, 56), fastest.LEAST_FLOPS), (depthwise(16, 8), fastest.LEAST_FLOPS - 1)
    integers = product(64, 64, 64)
    integers["operands"][0]["type"] = "int8"
    described = [large, small, large, (integers, 10**9)]
    asked = answer(monkeypatch, "jit")
    for _ in range(2):
        kernels = kernels_of(*described)
        fastest.choose_implementations(kernels, CompileTarget())
        assert chosen(kernels) == ["jit", None, "jit", None]
    assert asked == [large[0]]


def test_onednns_own_choice_is_not_written(monkeypatch, cache):
    asked = answer(monkeypatch, "")
    for _ in range(2):
        kernels = kernels_of((depthwise(64, 56), 10**7))
        fastest.choose_implementations(kernels, CompileTarget())
        assert chosen(kernels) == [None]
    assert len(asked) == 1


def test_an_artifact_runs_with_the_implementation_that_was_chosen(monkeypatch, cache):
    model = module(lambda b, x: steps(b, x, lambda v: convolution(v, 16)), [IMAGE])
    expected = compile(model, "cpu1", "single").run(*arrays([IMAGE]))
    monkeypatch.setattr(fastest, "LEAST_FLOPS", 0)
    asked = answer(monkeypatch, REFERENCE)
    assert_same(compile(model, "cpu1", "single").run(*arrays([IMAGE])), expected, rtol=2e-5)
    assert asked
