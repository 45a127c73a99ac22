"""No implementation of oneDNN is used whose values are wrong: each is compared with plain values before its first use."""

import json
import os
import subprocess
import sys

import numpy as np
import onednn_values
import pytest
from tvm import tirx

from relax.compare import assert_same, run_plainly
from relax.lower.onednn_cases import needs_onednn
from relax.lower.onednn_fastest_cases import call, depthwise, product
from relax.onednn_cases import IMAGE, arrays, constant, convolution, module, op, steps, transposed
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.onednn.describe import channels_last, dense, permuted, transposed_window
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION, implementation, is_fast
from tvm_sched_runtime.core_library import function

pytestmark = needs_onednn

POST = [{"name": "clip", "alpha": 0.0, "beta": 6.0}]


def document(kernel):
    return json.dumps({"version": VERSION, "kernels": {"k": kernel}})


def checks_run():
    return function("tvm_sched.onednn_checks_run")()


def found_wrong():
    return [str(finding) for finding in function("tvm_sched.onednn_found_wrong")()]


def transposed_convolution(inputs, outputs, kernel, stride, padding, size):
    """A transposed convolution with a bias, as the compiler describes it."""
    out = (size - 1) * stride + kernel - 2 * padding
    geometry = transposed_window([stride] * 2, [padding] * 4, [1, 1], (kernel,) * 2, (size,) * 2, (out,) * 2)
    weights = {**permuted((inputs, outputs, kernel, kernel), (1, 0, 2, 3)), "parameter": True}
    images = [channels_last((1, size, size, inputs)), channels_last((1, out, out, outputs))]
    operands = [images[0], weights, dense((outputs,), parameter=True), images[1]]
    return {"primitive": "deconvolution", **geometry, "bias": 2, "post": [], "operands": operands}


def transposed_values(x, w, b, stride, padding):
    """Its values, of x (H, W, I) and w (I, O, K, K): the sum of shifted products."""
    size, kernel = x.shape[0], w.shape[2]
    out = (size - 1) * stride + kernel
    y = np.zeros((out, out, w.shape[1]))
    for i in range(kernel):
        for j in range(kernel):
            y[i : i + stride * size : stride, j : j + stride * size : stride] += x @ w[:, :, i, j]
    return (y + b)[padding : out - padding, padding : out - padding]


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "padding"),
    [
        # oneDNN 3.2 with AVX2 adds the bias of the first four once for each part of the stride.
        (384, 256, 4, 2, 1),
        (384, 64, 4, 2, 1),
        (256, 24, 8, 4, 2),
        (384, 48, 7, 3, 2),
        (128, 64, 4, 2, 1),
        (40, 25, 5, 3, 0),
    ],
)
def test_transposed_convolutions_with_bias(inputs, outputs, kernel, stride, padding):
    described = transposed_convolution(inputs, outputs, kernel, stride, padding, size=16)
    random = np.random.default_rng(0)
    shapes = (16, 16, inputs), (inputs, outputs, kernel, kernel), (outputs,)
    x, w, b = (random.integers(-3, 4, shape).astype("float32") for shape in shapes)
    wanted = transposed_values(x, w, b, stride, padding)
    # The result has its channels last. Sums of so few integers are exact.
    np.testing.assert_array_equal(call(described, x[None], w, b).reshape(wanted.shape), wanted)


def test_a_compiled_transposed_convolution_with_bias():
    layer = (lambda v: transposed(v, 24, 4, strides=2, padding=1), lambda v: op.add(v, constant(1, 24, 1, 1)))
    model = module(lambda b, x: steps(b, x, *layer), [(1, 384, 16, 16)])
    (x,) = arrays([(1, 384, 16, 16)])
    assert_same(compile(model, "cpu1", "single").run(x), run_plainly(model, x), rtol=1e-4)


KERNELS = {
    "convolution": depthwise(24, 19),
    "convolution that is clipped": {**depthwise(40, 9), "post": POST},
    "transposed convolution": transposed_convolution(24, 48, 4, 2, 1, 7),
    "product": product(70, 130, 200),
    "small product": {**product(3, 5, 7), "post": [{"name": "gelu"}]},
    "pooling": {
        "primitive": "pooling", "algorithm": "average", "kernel": [3, 3], "strides": [2, 2], "dilation": [0, 0],
        "padding_low": [1, 1], "padding_high": [1, 1], "operands": [dense((1, 40, 33, 33)), dense((1, 40, 17, 17))],
    },
    "layer normalisation": {
        "primitive": "layer_normalization", "numbers": [1e-5],
        "operands": [dense((9, 72)), dense((72,)), dense((72,)), dense((9, 72))],
    },
    "local response": {
        "primitive": "local_response_normalization", "numbers": [5, 1e-4, 0.75, 1.0],
        "operands": [channels_last((1, 9, 9, 64))] * 2,
    },
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_an_implementation_that_computes_a_wrong_value_is_left_out(kernel, monkeypatch):
    name = implementation(kernel)
    assert name
    known = [finding for finding in found_wrong() if finding.startswith(f"{name} computed")]
    monkeypatch.setenv("TVM_SCHED_DISTORT", name)
    before = checks_run()
    other = implementation(kernel)
    assert name not in other
    assert checks_run() > before
    (finding,) = (f for f in found_wrong() if f.startswith(f"{name} computed") and f not in known)
    assert kernel["primitive"] in finding
    # It is remembered, and not taken where a description, an older choice say, asks for it.
    before = checks_run()
    assert implementation(kernel) == implementation({**kernel, "implementation": name}) == other
    assert checks_run() == before
    fastest = function("tvm_sched.onednn_fastest_implementations")(document(kernel))
    assert name not in [str(each) for each in fastest]


def test_the_next_implementation_computes_the_kernel(monkeypatch):
    kernel = depthwise(16, 11)
    arguments = [np.random.default_rng(1).integers(-3, 4, o["dims"]).astype("float32") for o in kernel["operands"][:-1]]
    expected = call(kernel, *arguments)
    monkeypatch.setenv("TVM_SCHED_DISTORT", implementation(kernel))
    assert_same(call(kernel, *arguments), expected, rtol=0)


def test_tvm_computes_what_no_implementation_does(monkeypatch):
    model = module(lambda b, x: steps(b, x, lambda v: convolution(v, 12)), [IMAGE])
    expected = compile(model, "cpu1", "single", cache=False).run(*arrays([IMAGE]))
    monkeypatch.setenv("TVM_SCHED_DISTORT", ":")  # in all names
    kernel = depthwise(8, 5)
    assert not is_fast(kernel)
    assert_same(compile(model, "cpu1", "single", cache=False).run(*arrays([IMAGE])), expected, rtol=2e-5)


def test_a_kernel_that_nothing_computes_right_here_says_what_to_do(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_DISTORT", ":")
    with pytest.raises(RuntimeError, match="compile the model again on this machine"):
        function("tvm_sched.make_onednn_module")(document(depthwise(8, 7)))


CODE = """
import json, sys
from tvm_sched_runtime.core_library import function
assert not str(function("tvm_sched.why_not_onednn")())
for document in sys.argv[1:]:
    function("tvm_sched.make_onednn_module")(document)
print(json.dumps([function("tvm_sched.onednn_checks_run")(), [str(f) for f in function("tvm_sched.onednn_found_wrong")()]]))
"""


def in_a_process(cache, *kernels, **variables):
    """Checks that a process with this cache runs to make kernels, and what it finds wrong or remembers as wrong."""
    environment = {**os.environ, "TVM_SCHED_CACHE": str(cache), "TVM_SCHED_NO_CACHE": "0", **variables}
    command = [sys.executable, "-c", CODE, *map(document, kernels)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_findings_outlive_the_process(tmp_path):
    kernel = product(20, 30, 40)
    assert in_a_process(tmp_path, kernel, kernel)[0] == 1
    file = tmp_path / "onednn_values.txt"
    assert file.read_text().startswith("right ")
    assert in_a_process(tmp_path, kernel) == [0, []]
    # Not for another number of threads, and not from a line that was not written to its end.
    assert in_a_process(tmp_path, kernel, TVM_SCHED_NUM_THREADS="3")[0] == 1
    file.write_text(file.read_text().splitlines()[0])
    assert in_a_process(tmp_path, kernel)[0] == 1


def test_without_a_cache_each_process_checks(tmp_path):
    for _ in range(2):
        assert in_a_process(tmp_path, product(20, 30, 41), TVM_SCHED_NO_CACHE="1")[0] == 1
    assert not list(tmp_path.iterdir())


def test_doctor_lists_what_was_found_wrong(tmp_path):
    kernel = product(20, 30, 42)
    name = implementation(kernel)
    assert in_a_process(tmp_path, kernel, TVM_SCHED_DISTORT=name)[0] == 2
    environment = {**os.environ, "TVM_SCHED_CACHE": str(tmp_path), "TVM_SCHED_CUDA_DRIVER": "none"}
    command = [sys.executable, "-c", "import tvm_sched.cli; tvm_sched.cli.main()", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    (check,) = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "oneDNN's values")
    assert check["status"] == "warning"
    (finding,) = check["data"]["wrong"]
    assert finding.startswith(f"{name} computed ")
    assert "of matmul, float32 20x30" in finding
    assert finding in check["text"]


LOAD = """
import sys
import numpy
from tvm_sched_runtime import runtime
from tvm_sched_runtime.core_library import function
loaded = runtime.load(sys.argv[1])
for rows in sys.argv[2:]:
    loaded.run(numpy.zeros((int(rows), 16), "float32"))
print(function("tvm_sched.onednn_checks_run")())
"""


def checks_of(artifact, *rows, **variables):
    """Return how many checks a process without a cache runs that loads an artifact, and runs it with so many rows."""
    environment = {**os.environ, "TVM_SCHED_CACHE": str(artifact.parent), "TVM_SCHED_NO_CACHE": "1", **variables}
    command = [sys.executable, "-c", LOAD, str(artifact), *map(str, rows)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_an_artifact_knows_what_was_checked_and_another_processor_checks(tmp_path):
    model = module(lambda b, x: steps(b, x, lambda v: convolution(v, 16)), [IMAGE])
    compile(model, "cpu1", "single").export(tmp_path / "model.so")
    assert checks_of(tmp_path / "model.so") == 0
    assert checks_of(tmp_path / "model.so", ONEDNN_MAX_CPU_ISA="SSE41") == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*it has open dimensions")
def test_an_artifact_of_open_sizes_knows_checks_of_each_kind_of_size(tmp_path):
    n = tirx.Var("n", "int64")
    model = module(lambda b, x: steps(b, x, lambda v: op.matmul(v, constant(16, 24))), [(n, 16)])
    compile(model, "cpu1", "single", cost_model="roofline").export(tmp_path / "model.so")
    assert checks_of(tmp_path / "model.so", 2, 15, 16, 80, 17, 131, 9001) == 0  # 9001 rows are shared by threads
    assert checks_of(tmp_path / "model.so", 2, 80, 131, ONEDNN_MAX_CPU_ISA="SSE41") >= 3


@pytest.mark.parametrize(
    "limit", [pytest.param(limit, marks=pytest.mark.thorough) for limit in onednn_values.instruction_sets()]
)
def test_whole_results_at_real_sizes(limit):
    """What the check lets pass is right: whole results, not the part that it compares."""
    found = onednn_values.sweep(limit, 250)
    assert found["wrong"] == []
    # With SSE4.1 alone most kernels have one implementation, and some have none but reference code.
    assert sum(found["kinds"].values()) == 250
    assert sum(found["ran"].values()) > 200


@pytest.mark.slow
def test_some_whole_results():
    generator = onednn_values.Generator(seed=3)
    ran = [onednn_values.compare(case, seed) for seed, case in enumerate(generator.cases(25))]
    assert all(error <= 1 for errors in ran for error in errors.values())
    assert sum(map(len, ran)) > 25
