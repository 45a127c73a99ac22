"""Operators and devices as numbers, against small cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched.cost_model.device_properties import GPUS, DeviceProperties, guess_processors, known_gpu, properties
from tvm_sched.cost_model.features import (
    FAMILIES,
    FUNCTIONS,
    JOIN_SECONDS,
    NAMES,
    describe,
    family_of,
    features,
    footprint_of,
    join_seconds,
    matrix_products,
    roofline_seconds,
    without_join,
)
from tvm_sched.cost_model.signature import graph_of, signatures
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Operator, OpGraph, Tensor, load_topology

CONVOLUTION = (
    "onednn.conv2d_bias_relu|237633536|a float32[1,224,224,3];p float32[64,3,7,7];p float32[64]|float32[1,112,112,64]"
)
DEPTHWISE = "onednn.conv2d_bias|1668352|a float32[1,56,56,112];p float32[112,1,3,3];p float32[112]|float32[1,28,28,112]"
PRODUCT = "onednn.matmul|196608|a float32[12,16,32];a float32[12,32,16]|float32[1,12,16,16]"
LOOKUP = "take|0|p float32[30522,384];a int32[16]|float32[16,384]"
ALL = (CONVOLUTION, DEPTHWISE, PRODUCT, LOOKUP, "add|8|a float32[8];a float32[8]|float32[8]")


def test_extents():
    work = describe(graph_of(ALL))
    assert [FAMILIES[f] for f in work.family] == ["conv2d", "conv2d", "matmul", "gather", "elementwise"]
    assert work.m.tolist()[:3] == [112 * 112, 28 * 28, 16]
    assert work.n.tolist()[:3] == [64, 1, 16]
    assert work.k.tolist()[:3] == [3 * 7 * 7, 9, 32]
    assert work.batch.tolist()[:3] == [1, 112, 12]
    assert work.window.tolist()[:3] == [49, 9, 1]
    assert work.fused.tolist()[:3] == [2, 1, 0]
    assert work.parameters[0] == 4 * (64 * 3 * 49 + 64)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_either_layout_is_what_its_measurements_are(causal):
    # 3 sequences, 12 heads, 100 queries, 4 key heads, 130 keys, width 64; the measurements have (batch, rows, keys, width).
    flops = 4 * 3 * 12 * 100 * (80 if causal else 130) * 64
    by_head = f"cuda.attention|{flops}|a float16[3,12,100,64];a float16[3,4,130,64]|float16[3,12,100,64]"
    by_row = f"cuda.attention|{flops}|a float16[3,100,12,64];a float16[3,130,4,64]|float16[3,100,12,64]"
    token = "library.attention|998400|a float16[3,12,1,64];p float16[3,4,130,64]|float16[3,12,1,64]"
    work = describe(graph_of([by_head, by_row, token]))
    assert [FAMILIES[f] for f in work.family] == ["attention", "attention", "decode_attention"]
    assert work.batch.tolist() == [36, 36, 36]
    assert (work.m.tolist(), work.n.tolist(), work.k.tolist()) == ([100, 100, 1], [130] * 3, [64] * 3)
    assert work.parameters[2] == 0
    assert work.read[2] == 2 * (3 * 12 * 64 + 3 * 4 * 130 * 64)


def test_channels_may_come_before_rows_and_columns():
    depthwise = "library.conv2d|7225344|a float32[1,32,112,112];p float32[32,1,3,3]|float32[1,32,112,112]"
    work = describe(graph_of([depthwise]))
    assert (work.batch.tolist(), work.m.tolist(), work.n.tolist(), work.k.tolist()) == ([32], [112 * 112], [1], [9])


def test_a_lookup_reads_rows_not_its_table():
    work = describe(graph_of([LOOKUP]))
    assert work.parameters[0] == 4 * 16 * 384
    assert work.written[0] == 4 * 16 * 384


def test_footprint_counts_a_parameter_once():
    tensors = (
        Tensor("x", 40, "input", (10,), "float32"), Tensor("w", 40, "parameter", (10,), "float32"),
        Tensor("v", 80, "parameter", (20,), "float32"), Tensor("y", 40, "activation", (10,), "float32"),
        Tensor("z", 80, "activation", (20,), "float32"),
    )  # fmt: skip
    operators = (Operator("a", "add", ("x", "w"), ("y",)), Operator("b", "add_add", ("y", "w", "v"), ("z",)))
    graph = OpGraph("g", operators, tensors, ("z",))
    work = describe(graph)
    assert footprint_of(graph, work) == 40 + 80
    assert work.footprint.tolist() == [120, 120]
    assert describe(graph, [7, 8]).footprint.tolist() == [7, 8]


def test_words_are_counted_by_what_they_cost():
    kind = "reshape_transpose_multiply_power_tanh_sqrt_where_sigmoid"
    work = describe(graph_of([f"{kind}|8|a float32[4];a float32[8]|float32[8]"]))
    counts = {name: getattr(work, name)[0] for name in FUNCTIONS}
    assert counts == {"exponentials": 1, "polynomials": 1, "powers": 1, "roots": 1, "choices": 1, "moves": 2}


def test_families():
    assert family_of("onednn.max_pool2d") == ("pool", 0)
    assert family_of("reshape_transpose_reshape")[0] == "move"
    assert family_of("subtract_divide_multiply_add") == ("elementwise", 3)
    assert family_of("")[0] == "elementwise"


def test_signatures_are_read_back():
    assert signatures(graph_of(ALL)) == list(ALL)
    for wrong in ("add", "add|x||", "add|1|b float32[1]|float32[1]", "add|1||float32[1"):
        with pytest.raises(InputError, match="signature"):
            graph_of([wrong])


def test_roofline_of_a_product_by_hand():
    device = GPUS["H100"]
    work = matrix_products([4096], [4096], [4096], "bfloat16", 16)
    assert work.flops[0] == 2 * 4096**3
    assert roofline_seconds(work, device)[0] == pytest.approx(2 * 4096**3 / 989e12 + 2e-6)
    thin = matrix_products([1], [4096], [4096], "bfloat16", 16)
    assert roofline_seconds(thin, device)[0] == pytest.approx(2 * (4096 + 4096**2 + 4096) / 3350e9 + 2e-6)


def test_threads_of_a_cpu_by_hand():
    one, two = (
        DeviceProperties("cpu", "cpu", {"float32": rate}, 40e9, guess_processors("cpu", rate), 32e6)
        for rate in (255e9, 500e9)
    )
    assert (one.processors, two.processors) == (1, 2)
    work = describe(graph_of([CONVOLUTION, "conv2d|237633536|a float32[8];p float32[8]|float32[8]"]))
    flops = 237633536
    assert roofline_seconds(work, one) == pytest.approx([flops / 255e9 + 0.5e-6] * 2)
    assert roofline_seconds(work, two) == pytest.approx([flops / 500e9 + 0.5e-6, flops / 250e9 + 0.5e-6])
    long, short = np.array([1e-3, 1e-3]), np.array([5e-6, 5e-6])
    assert join_seconds(work, one, long).tolist() == [0, 0]
    assert join_seconds(work, two, long).tolist() == [JOIN_SECONDS, 0], "only the library's kernel has threads to join"
    assert join_seconds(work, two, short).tolist() == [5e-6, 0], "a short kernel is as fast as on one thread"
    for seconds in (long, short):
        assert without_join(work, two, seconds + join_seconds(work, two, seconds)) == pytest.approx(seconds)
        assert without_join(work, one, seconds) is seconds


def test_waves_of_a_product_by_hand():
    row = dict(
        zip(NAMES, features(matrix_products([1024], [1024], [64], "bfloat16", 16), GPUS["A100"])[0], strict=True)
    )
    assert row["waves 128x128"] == pytest.approx(np.log2(64 / 108), abs=1e-5)
    assert row["waves 64x64"] == pytest.approx(np.log2(256 / 108), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "name"),
    [("NVIDIA H200 SXM 141 GB", "H200"), ("A100-SXM4-40GB", "A100"), ("Tesla V100 DGXS 32GB at 135 MHz", "V100"),
     ("NVIDIA L40S", "L40S"), ("RTX A6000", "A6000"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
     ("NVIDIA GB200", "GB200"), ("NVIDIA L4", "L4"), ("A4000", None), ("GeForce RTX 3090", None)],
)  # fmt: skip
def test_gpus_are_known_by_their_product_names(model, name):
    found = known_gpu(model)
    assert (found.name if found else None) == name


def test_a_device_keeps_the_rates_of_its_topology():
    slow = next(d for d in load_topology("v100-hetero").devices if "135 MHz" in d.model)
    assert properties(slow).processors == 80
    assert properties(slow).bandwidth == slow.memory_bandwidth


@given(st.lists(st.tuples(*[st.integers(1, 5000)] * 3), min_size=1, max_size=20), st.sampled_from(sorted(GPUS)))
def test_features_are_finite_but_for_what_is_not_known(sizes, gpu):
    m, n, k = np.array(sizes).T
    found = features(matrix_products(m, n, k, "bfloat16", 16), GPUS[gpu])
    unknown = NAMES.index("footprint/cache")
    assert np.isnan(found[:, unknown]).all()
    assert np.isfinite(np.delete(found, unknown, axis=1)).all()


def test_bytes_that_are_not_there_do_not_tell_the_cache():
    """Else a column would tell one device from another where that must not be known."""
    work = describe(graph_of(["softmax|40|a float32[8]|float32[8]"]))
    assert work.parameters[0] == work.footprint[0] == 0
    for device in (GPUS["A100"], GPUS["H100"]):
        row = dict(zip(NAMES, features(work, device)[0], strict=True))
        assert np.isnan([row["parameters/cache"], row["footprint/cache"]]).all()
