"""Parameters in the file as oneDNN's kernels read them: values, layouts, and what stays plain."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from onnx_text import onnx_model
from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION
from tvm_sched_runtime import runtime
from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Storage, load_topology

onnx = pytest.importorskip("onnx")

COLD = msgspec.structs.replace(load_topology("cpu1"), name="cold", storage=Storage("disk", 1e9, 1e-5, 4))
RANDOM = np.random.default_rng(0)
VALUES = {
    "kernel": RANDOM.standard_normal((64, 32, 3, 3)).astype("float32") / 20,
    "wide": RANDOM.standard_normal((64 * 36, 128)).astype("float32") / 40,
    "shared": RANDOM.standard_normal((128, 128)).astype("float32") / 10,
}


def network():
    """A convolution, a product of one row, and a matrix that two products share: of a row, and of itself."""
    text = """(float[1, 32, 8, 8] x) => (float[1, 128] y) {
        c = Conv<pads = [0, 0, 0, 0]>(x, kernel)  r = Relu(c)  f = Flatten(r)
        m = MatMul(f, wide)  s = MatMul(m, shared)  y = MatMul(s, shared) }"""
    return onnx_model(text, VALUES)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """The network for a machine with storage, and without."""
    if library_function("tvm_sched.why_not_onednn")():
        pytest.skip("oneDNN is not installed")
    folder, made = tmp_path_factory.mktemp("packed"), {}
    for name, topology in (("cold", COLD), ("plain", "cpu1")):
        model = compile(
            network(), topology, parameters="external", cost_model="roofline", scheduler="single", cache=False
        )
        model.export(folder / f"{name}.so")
        made[name] = folder / f"{name}.so"
    return made


def exact(given):
    """The network's result in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(given[0].astype(float), (3, 3), axis=(1, 2))
    convolved = np.einsum("cyxhw,ochw->oyx", windows, VALUES["kernel"].astype(float))
    row = np.maximum(convolved, 0).reshape(1, -1) @ VALUES["wide"].astype(float)
    return row @ VALUES["shared"].astype(float) @ VALUES["shared"].astype(float)


def test_results_of_laid_out_and_plain_parameters_are_exact_but_for_rounding(artifacts):
    """The two artifacts may add in different orders: oneDNN picks the kernel by the layout and the processor."""
    given = RANDOM.standard_normal((1, 32, 8, 8)).astype("float32")
    cold, plain = (runtime.load(artifacts[name]) for name in ("cold", "plain"))
    expected = exact(given)
    for model in (cold, cold, plain):
        np.testing.assert_allclose(model.run(given)[0], expected, rtol=1e-5, atol=1e-5)
    assert {step["kind"] for step in cold.plans()[0]["steps"]} == {"read", "kernel"}
    assert "queue_depth" not in plain.plans()[0]


def test_some_parameters_are_laid_out_and_keep_their_numbers(artifacts):
    cold, plain = (load_file(artifacts[name].with_suffix(".safetensors")) for name in ("cold", "plain"))
    assert cold.keys() == plain.keys()
    changed = {name for name in cold if not np.array_equal(cold[name], plain[name])}
    assert changed, "the weights of a product of one row are read column by column"
    for name in cold:
        assert cold[name].shape == plain[name].shape
        np.testing.assert_array_equal(np.sort(cold[name], axis=None), np.sort(plain[name], axis=None))


def test_what_lies_in_a_layout_is_laid_out_once():
    described = {
        "primitive": "matmul",
        "operands": [{"dims": [1, 4], "strides": [4, 1]}, {"dims": [4, 6], "strides": [6, 1], "parameter": True},
                     {"dims": [1, 6], "strides": [6, 1]}],
    }  # fmt: skip
    document = json.dumps({"version": VERSION, "kernels": {"kernel": described}})
    layouts = [str(layout) for layout in library_function("tvm_sched.onednn_layouts")(document)]
    assert layouts == ["", "ba", ""], "each column's terms side by side"
    import tvm_ffi

    weights = np.arange(24, dtype="float32").reshape(4, 6)
    packed = np.zeros_like(weights)
    library_function("tvm_sched.onednn_pack")(
        document, 1, "ba", tvm_ffi.from_dlpack(weights), tvm_ffi.from_dlpack(packed)
    )
    np.testing.assert_array_equal(packed.reshape(6, 4), weights.T)

    def product(layout, given):
        kernel = {**described, "operands": [dict(operand) for operand in described["operands"]]}
        if layout:
            kernel["operands"][1]["layout"] = layout
        made = library_function("tvm_sched.make_onednn_module")(
            json.dumps({"version": VERSION, "kernels": {"kernel": kernel}})
        )
        source, result = np.ones((1, 4), "float32"), np.zeros((1, 6), "float32")
        made["kernel"](*map(tvm_ffi.from_dlpack, (source, given, result)))
        return result

    np.testing.assert_array_equal(product("", weights), weights.sum(0, keepdims=True))
    np.testing.assert_array_equal(product("ba", packed), weights.sum(0, keepdims=True))
    # A matrix of ab is what the strides say, under another name: it is copied into the layout that the kernel wants.
    np.testing.assert_array_equal(product("ab", weights), weights.sum(0, keepdims=True))
    with pytest.raises(Exception, match='no layout "nonsense" in this version of oneDNN'):
        product("nonsense", weights)


def test_a_layout_with_padding_is_a_vector_with_it():
    """One block of 16 rows and 64 columns, whose elements lie row by row."""
    import tvm_ffi

    described = {
        "primitive": "matmul",
        "operands": [{"dims": [2, 3], "strides": [3, 1]}, {"dims": [3, 5], "strides": [5, 1], "parameter": True},
                     {"dims": [2, 5], "strides": [5, 1]}],
    }  # fmt: skip
    document = json.dumps({"version": VERSION, "kernels": {"kernel": described}})
    assert library_function("tvm_sched.onednn_packed_elements")(document, 1, "BA16a64b") == 16 * 64
    assert library_function("tvm_sched.onednn_packed_elements")(document, 1, "ba") == 15
    weights, packed = np.arange(1, 16, dtype="float32").reshape(3, 5), np.full(1024, np.nan, "float32")
    library_function("tvm_sched.onednn_pack")(
        document, 1, "BA16a64b", tvm_ffi.from_dlpack(weights), tvm_ffi.from_dlpack(packed)
    )
    expected = np.zeros((16, 64), "float32")
    expected[:3, :5] = weights
    np.testing.assert_array_equal(packed.reshape(16, 64), expected)
    described["operands"][1]["layout"] = "BA16a64b"
    made = library_function("tvm_sched.make_onednn_module")(
        json.dumps({"version": VERSION, "kernels": {"kernel": described}})
    )
    source, result = np.array([[1, 2, 3], [4, 5, 6]], "float32"), np.zeros((2, 5), "float32")
    made["kernel"](*map(tvm_ffi.from_dlpack, (source, packed, result)))
    np.testing.assert_array_equal(result, source @ weights)  # whole numbers
    with pytest.raises(Exception, match='argument 1 of the kernel "kernel" is no float32 tensor of 1024 elements'):
        made["kernel"](*map(tvm_ffi.from_dlpack, (source, weights, result)))


def test_weights_whose_sizes_are_no_multiples_of_blocks_are_laid_out(tmp_path):
    """A convolution of three channels, and a product of 70 terms and 130 columns for several rows, then a ReLU."""

    if library_function("tvm_sched.why_not_onednn")():
        pytest.skip("oneDNN is not installed")
    kernel = RANDOM.standard_normal((10, 3, 3, 3)).astype("float32")
    odd = RANDOM.standard_normal((70, 130)).astype("float32")
    text = """(float[1, 3, 16, 9] x) => (float[14, 130] y) {
        c = Conv(x, kernel)  r = Reshape(c, shape)  m = MatMul(r, odd)  y = Relu(m) }"""
    model = onnx_model(text, {"kernel": kernel, "odd": odd, "shape": np.array([14, 70], "int64")})
    compiled = compile(model, COLD, parameters="external", cost_model="roofline", scheduler="single", cache=False)
    compiled.export(tmp_path / "odd.so")
    stored = load_file(tmp_path / "odd.safetensors")
    for value in (kernel, odd):  # on every processor the numbers, whatever their layout, and zeros
        assert any(
            np.array_equal(np.sort(found[found != 0]), np.sort(value, axis=None)) for found in stored.values()
        ), stored.keys()
    if any(found.ndim == 1 and found.size > odd.size for found in stored.values()):
        assert not any(found.shape == odd.shape for found in stored.values())
    given = RANDOM.standard_normal((1, 3, 16, 9)).astype("float32")
    windows = np.lib.stride_tricks.sliding_window_view(given[0].astype(float), (3, 3), axis=(1, 2))
    convolved = np.einsum("cyxhw,ochw->oyx", windows, kernel.astype(float))
    expected = np.maximum(convolved.reshape(14, 70) @ odd.astype(float), 0)
    module = runtime.load(tmp_path / "odd.so")
    for _ in range(2):
        np.testing.assert_allclose(module.run(given)[0], expected, rtol=1e-4, atol=1e-4)


def test_damage_to_laid_out_parameters_is_found_on_request(artifacts, tmp_path):
    """A machine with storage reads the file while it runs, so that no load reads it before."""
    for end in (".so", ".safetensors"):
        shutil.copy(artifacts["cold"].with_suffix(end), tmp_path)
    file = tmp_path / "cold.safetensors"
    runtime.load(tmp_path / "cold.so", verify=True)
    content = bytearray(file.read_bytes())
    content[-5000] ^= 1
    file.write_bytes(content)
    runtime.load(tmp_path / "cold.so")
    with pytest.raises(InputError, match=r"cold.safetensors: was altered after it was written"):
        runtime.load(tmp_path / "cold.so", verify=True)
