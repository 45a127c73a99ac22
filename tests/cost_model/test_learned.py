"""The learned model: trained on a law that is known, and the one that is shipped."""

from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tvm_sched.cost_model import costs
from tvm_sched.cost_model.device_properties import GPUS, DeviceProperties, properties
from tvm_sched.cost_model.features import JOIN_SECONDS, KernelWork, describe, matrix_products, roofline_seconds
from tvm_sched.cost_model.learned_model import SHIPPED, LearnedModel, error_interval, load_learned
from tvm_sched.cost_model.predicted import between_measured, costs_of, refined
from tvm_sched.cost_model.profile import Measurement, Profile, this_machine
from tvm_sched.cost_model.refine import refine
from tvm_sched.cost_model.samples import Samples
from tvm_sched.cost_model.signature import graph_of
from tvm_sched_bench.training import launches
from tvm_sched_bench.training.train import train
from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.problem import FORBIDDEN, load_topology


def law(device, count=500, seed=0, noise=0.02, factor=1.7):
    """Products that take ``factor`` times their roofline, with a little noise."""
    rng = np.random.default_rng(seed)
    m, n, k = 2 ** rng.integers(4, 12, (3, count))
    work = matrix_products(m, n, k, "bfloat16", 16)
    seconds = factor * roofline_seconds(work, device) * np.exp(noise * rng.standard_normal(count))
    return Samples.on(device, work, seconds, [f"{a}x{b}" for a, b in zip(n, k, strict=True)])


@pytest.fixture(scope="module")
def model():
    return train(Samples.concatenate([law(GPUS["A100"]), law(GPUS["H100"], seed=1)]), rounds=60)


def test_it_learns_the_law(model):
    test = law(GPUS["H100"], seed=2)
    found = model.predict(test.work, GPUS["H100"])
    assert np.median(np.abs(found.seconds / test.seconds - 1)) < 0.04
    assert ((found.low <= test.seconds) & (test.seconds <= found.high)).mean() > 0.7
    assert not found.far.any()


def test_a_device_that_it_was_not_trained_on(model):
    test = law(GPUS["L40S"], seed=3)
    assert not model.parts["cuda"].knows(GPUS["L40S"])
    found = model.predict(test.work, GPUS["L40S"])
    assert np.median(np.abs(found.seconds / test.seconds - 1)) < 0.1


def test_columns_that_say_nothing_are_not_looked_at(model):
    names = model.parts["cuda"].names
    assert {"peak", "m", "roofline"} <= set(names)
    assert not {"family", "window", "fused", "exponentials", "calls", "footprint/cache", "flops"} & set(names)


def test_threads_of_a_cpu_are_physics_where_none_were_measured():
    one, two = (DeviceProperties("cpu", "cpu", {"float32": n * 255e9}, 40e9, n, 32e6) for n in (1, 2))
    model = train(law(one), rounds=60)
    test = law(two, seed=1)
    found = model.predict(test.work, two)
    assert not model.parts["cpu"].knows(two)
    ideal = 1.7 * roofline_seconds(test.work, two)
    exact = ideal + np.minimum(JOIN_SECONDS, ideal)
    assert np.median(np.abs(found.seconds / exact - 1)) < 0.08
    measured = Samples.on(two, test.work, exact, test.group)
    again = train(Samples.concatenate([law(one), measured]), rounds=60)
    assert len(again.parts["cpu"].devices) == 2
    assert np.median(np.abs(again.predict(test.work, two).seconds / exact - 1)) < 0.05


def test_far_from_the_data_it_is_the_roofline_times_a_constant(model):
    far = matrix_products([2**20], [2**14], [2**14], "bfloat16", 16)
    found = model.predict(far, GPUS["H100"])
    assert found.far.all()
    assert found.seconds[0] == pytest.approx(1.7 * roofline_seconds(far, GPUS["H100"])[0], rel=0.1)
    other = model.predict(matrix_products([64], [64], [64], "float64", 64), GPUS["H100"])
    assert other.far.all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_convolutions_beyond_their_data_take_a_constant_times_the_roofline(dtype):
    # 27 convolutions of one picture are in the data. Larger ones were 18 times too long, as the trees went on with products.
    ratio = []
    for batch in (32, 128, 512):
        rows, size = batch * 14 * 14, 4 if dtype == "float32" else 2
        work = KernelWork.of(
            "conv2d", dtype, flops=[2.0 * rows * 256 * 2304], read=size * rows * 256, parameters=size * 256 * 2304,
            written=size * rows * 256, m=rows, n=256, k=2304, window=9, library=1,
        )  # fmt: skip
        ratio.append(load_learned().predict(work, GPUS["V100"]).seconds[0] / roofline_seconds(work, GPUS["V100"])[0])
    assert max(ratio) < 1.25 * min(ratio)


def test_same_data_and_seed_same_file(model, tmp_path):
    again = train(Samples.concatenate([law(GPUS["A100"]), law(GPUS["H100"], seed=1)]), rounds=60)
    model.save(tmp_path / "a.msgpack")
    again.save(tmp_path / "b.msgpack")
    assert (tmp_path / "a.msgpack").read_bytes() == (tmp_path / "b.msgpack").read_bytes()
    assert LearnedModel.load(tmp_path / "a.msgpack") == model


def test_times_that_make_no_sense_never_get_in():
    for value in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="above 0 and finite"):
            Samples.on(GPUS["A100"], matrix_products([1], [1], [1], "bfloat16", 16), [value], ["x"])
    with pytest.raises(InputError, match="no measurements"):
        Samples.concatenate([])


def test_wrong_files(tmp_path):
    file = tmp_path / "model.msgpack"
    body = msgspec.msgpack.decode(SHIPPED.read_bytes())
    for content, message in (
        (b"\xc1", "not a file of a learned cost model"),
        (msgspec.msgpack.encode([1]), "not a file of a learned cost model"),
        (msgspec.msgpack.encode({**body, "version": 99}), "newer than this tvm_sched"),
        (msgspec.msgpack.encode({**body, "parts": 3}), "parts"),
    ):
        file.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            LearnedModel.load(file)
    part = {**body["parts"]["cuda"], "names": ["other"]}
    file.write_bytes(msgspec.msgpack.encode({**body, "parts": {"cuda": part}}))
    with pytest.raises(FormatError, match="tvm-sched learn"):
        LearnedModel.load(file)
    with pytest.raises(InputError, match="no such file"):
        load_learned(tmp_path / "none.msgpack")


def test_the_shipped_model():
    assert SHIPPED.stat().st_size < 3_000_000
    model = load_learned()
    assert set(model.parts) == {"cpu", "cuda"}
    assert {"A100", "H100", "H200", "L40S", "B200"} <= {device.name for device in model.parts["cuda"].devices}
    work = matrix_products([1, 128, 8192], [4096] * 3, [4096] * 3, "bfloat16", 16)
    found = model.predict(work, GPUS["H100"])
    assert (found.low <= found.seconds).all()
    assert (found.seconds <= found.high).all()
    assert (np.diff(found.seconds) > 0).all()
    assert not found.far.any()


EXTENTS = {
    "matmul": lambda b, m, n, k: (2 * b * m * n * k, f"a T[{b},{m},{k}];p T[{k},{n}]", f"T[{b},{m},{n}]"),
    "conv2d": lambda b, m, n, k: (18 * b * m * m * n * k, f"a T[{b},{m},{m},{k}];p T[{n},{k},3,3]", f"T[{b},{m},{m},{n}]"),
    "add": lambda b, m, n, k: (b * m * n, f"a T[{b},{m},{n}];a T[{b},{m},{n}]", f"T[{b},{m},{n}]"),
    "rms_norm": lambda b, m, n, k: (8 * b * m * n, f"a T[{b},{m},{n}];p T[{n}]", f"T[{b},{m},{n}]"),
    "softmax": lambda b, m, n, k: (5 * b * m * n, f"a T[{b},{m},{n}]", f"T[{b},{m},{n}]"),
    "reshape_transpose": lambda b, m, n, k: (0, f"a T[{b},{m},{n}]", f"T[{b},{m},{n}]"),
    "max_pool2d": lambda b, m, n, k: (9 * b * m * m * n, f"a T[{b},{m},{m},{n}]", f"T[{b},{m},{m},{n}]"),
    "mean": lambda b, m, n, k: (b * m * n, f"a T[{b},{m},{n}]", f"T[{b},{m}]"),
    "take": lambda b, m, n, k: (0, f"p T[{m * k},{n}];a int64[{b}]", f"T[{b},{n}]"),
    "matmul_split": lambda b, m, n, k: (2 * m * k * (n + b), f"a T[{m},{k}];p T[{k},{n + b}]", f"T[{m},{n}];T[{m},{b}]"),
    "lstm": lambda b, m, n, k: (
        8 * b * m * n * (n + k), f"a T[{b},{m},{k}];p T[{4 * n},{k}];p T[{4 * n},{n}]", f"T[{b},{m},{n}]"
    ),
    "conv1d": lambda b, m, n, k: (6 * b * m * n * k, f"a T[{b},{k},{m}];p T[{n},{k},3]", f"T[{b},{n},{m}]"),
    "attention": lambda b, m, n, k: (
        32 * b * m * n * k, f"a T[{b},8,{m},{k}];a T[{b},8,{n},{k}];a T[{b},8,{n},{k}]", f"T[{b},8,{m},{k}]"
    ),
    "self_attention": lambda b, m, n, k: (
        32 * b * m * n * k, f"a T[{b},{m},8,{k}];a T[{b},{n},8,{k}];a T[{b},{n},8,{k}]", f"T[{b},{m},8,{k}]"
    ),
}  # fmt: skip
"""Operations, inputs and result of an operator of four extents."""


@settings(deadline=None)
@given(
    kind=st.sampled_from(sorted(EXTENTS)), library=st.booleans(), extents=st.tuples(*[st.integers(1, 600)] * 4),
    grown=st.integers(0, 3), factor=st.integers(2, 64), dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    machine=st.sampled_from(["v100-server", "h200x8", "v100-hetero", "a6000-server", "cpu2", "cpu1"]),
)  # fmt: skip
@example(
    "attention", True, (108, 1, 30434, 128), 1, 2, "float16", "a6000-server"
)  # from the family of one query to another
@example("self_attention", True, (138, 125, 8, 21), 2, 2, "float16", "v100-server")  # as many rows as heads
@example("conv1d", True, (161, 2, 2, 1), 2, 2, "float16", "v100-server")  # as many columns as channels
@example("take", True, (30, 1, 1, 98), 1, 16, "int8", "cpu2")  # a table of fewer bytes than its indices
@example("matmul_split", False, (19, 1, 1, 77), 2, 32, "float32", "v100-server")  # two results side by side
def test_a_larger_shape_is_never_cheaper(kind, library, extents, grown, factor, dtype, machine):
    larger = tuple(size * (factor if n == grown else 1) for n, size in enumerate(extents))
    found = []
    for sizes in (extents, larger):
        graph = graph_of([described(kind, sizes, dtype, library)])
        found.append(costs(graph, load_topology(machine), "learned").operator_ns[0])
    assert (found[0] <= found[1]).all()


def described(kind, extents, dtype="float32", library=False):
    """Return the signature of an operator of four extents."""
    flops, read, written = EXTENTS[kind](*extents)
    return f"{'onednn.' if library else ''}{kind}|{flops}|{read}|{written}".replace("T[", f"{dtype}[")


@cache
def measured_at_random():
    """A refinement of a CPU device by times that have nothing to do with the operators: the hardest for its order."""
    rng = np.random.default_rng(1)
    extents = {described(kind, own): (kind, own) for kind in EXTENTS for own in rng.integers(1, 300, (8, 4)).tolist()}
    rows = {text: Measurement(text, warm=float(np.exp(rng.normal(-10, 2)))) for text in extents}
    topology = load_topology("cpu2")
    profile = Profile(this_machine(), properties(topology.devices[0]), tuple(rows.values()))
    exact = {device.name: rows for device in topology.devices}
    return topology, refined(load_learned(), profile, rows), exact, list(extents.values())


@settings(deadline=None)
@given(
    kind=st.sampled_from(sorted(EXTENTS)), extents=st.tuples(*[st.integers(1, 600)] * 4), grown=st.integers(0, 3),
    factor=st.integers(2, 64),
)  # fmt: skip
@example("matmul", (1, 8, 64, 64), 0, 2)
@example("attention", (2, 1, 64, 64), 1, 2)  # from the family of one query to another
def test_nor_is_it_on_a_device_that_was_measured(kind, extents, grown, factor):
    topology, predict, _, _ = measured_at_random()
    larger = tuple(size * (factor if n == grown else 1) for n, size in enumerate(extents))
    graph = graph_of([described(kind, extents), described(kind, larger)])
    smaller, longer = costs_of(graph, topology, predict, "calibrated").operator_ns
    assert (smaller <= longer).all()


@pytest.mark.parametrize("machine", ["v100-hetero", "cpu2", "measured"])
def test_no_pair_of_any_family_is_cheaper_when_larger(machine):
    bases = [(1, 8, 64, 32), (2, 8, 64, 64), (1, 1, 512, 64), (4, 128, 256, 64), (1, 56, 64, 128), (8, 1, 1024, 128)]
    of = [(kind, base, library) for kind in EXTENTS for base in bases for library in (False, True)]
    if machine == "measured":  # in these pairs the smaller was measured, the larger was not
        topology, predict, rows, own = measured_at_random()
        of += [(kind, base, False) for kind, base in own]
    pairs = []
    for kind, base, library in of:
        for grown in range(4):
            for factor in (2, 3, 16):
                larger = [size * (factor if n == grown else 1) for n, size in enumerate(base)]
                pairs.append([described(kind, sizes, library=library) for sizes in (base, larger)])
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    graph, place = graph_of(texts), {text: n for n, text in enumerate(texts)}
    if machine == "measured":
        exact = {name: (texts, of_device) for name, of_device in rows.items()}
        found = costs_of(graph, topology, predict, "calibrated", exact).operator_ns
    else:
        found = costs(graph, load_topology(machine), "learned").operator_ns
    smaller, longer = (found[[place[pair[n]] for pair in pairs]] for n in range(2))
    assert len(pairs) >= 2016
    assert (smaller <= longer).all(), [pairs[n] for n in np.flatnonzero((smaller > longer).any(axis=1))[:5]]


def test_times_between_those_that_were_measured():
    graph = graph_of([described("matmul", (1, m, 64, 64)) for m in (16, 32, 64, 128)])
    relu, half = described("matmul", (1, 32, 64, 64)), described("matmul", (1, 32, 64, 64), "float16")
    others = [Measurement(text, warm=1.0) for text in (relu.replace("matmul", "matmul_relu"), half)]

    def between(found, measured):
        rows = [Measurement(described("matmul", (1, m, 64, 64)), warm=ns / 1e9) for m, ns in measured.items()]
        return between_measured(graph, describe(graph), np.array(found), [*rows, *others]).tolist()

    assert between([9, 1, 1, 1], {32: 2, 64: 3}) == [2, 2, 3, 3]
    assert between([9, 1, 5, 1], {32: 3, 64: 2}) == [2, 3, 3, 3]
    assert between([0, 1, 2, 3], {}) == [0, 1, 2, 3]


def test_operators_are_predicted_together(monkeypatch):
    import xgboost

    predict, calls = xgboost.Booster.inplace_predict, []
    monkeypatch.setattr(xgboost.Booster, "inplace_predict", lambda *args: calls.append(1) or predict(*args))
    graph = graph_of([f"matmul|{2048 * m}|a float16[{m},32];p float16[32,32]|float16[{m},32]" for m in range(1, 1001)])
    assert costs(graph, load_topology("v100-hetero"), "learned").operator_ns.shape[0] == 1000
    assert len(calls) == 2, "one call for each distinct device"


def test_costs_of_the_shipped_model():
    graph = graph_of(
        ["matmul|8589934592|a bfloat16[1024,1024];p bfloat16[1024,4096]|bfloat16[1024,4096]", "add|8||float32[8]"]
    )
    found = costs(graph, load_topology("h200x8"), "learned")
    assert found.source == "learned"
    assert (found.operator_ns == found.operator_ns[:, :1]).all(), "equal devices have equal latencies"
    assert found.direct_ns[0, 0] >= found.operator_ns[0, 0]
    assert found.direct_ns[1, 0] == FORBIDDEN
    bounds = found.uncertainty
    assert ((bounds.low_ns <= found.operator_ns) & (found.operator_ns <= bounds.high_ns)).all()


def test_an_empty_graph():
    assert costs(graph_of([]), load_topology("a40x2"), "learned").operator_ns.shape == (0, 2)


def test_a_few_measurements_refine_a_device(model):
    slow = law(GPUS["H100"], seed=4, factor=2.5)
    some, rest = slow.take(np.arange(12)), slow.take(np.arange(12, 500))
    refinement = refine(some.work, some.seconds, model.predict(some.work, GPUS["H100"]))
    plain = model.predict(rest.work, GPUS["H100"])
    better = refinement(rest.work, plain)
    assert np.median(np.abs(plain.seconds / rest.seconds - 1)) > 0.25
    assert np.median(np.abs(better.seconds / rest.seconds - 1)) < 0.12
    inside = (better.low <= rest.seconds) & (rest.seconds <= better.high)
    assert inside.mean() >= 0.75


def test_intervals_of_a_refined_device_cover():
    rng = np.random.default_rng(0)
    work = matrix_products(
        rng.integers(1, 512, 400), rng.integers(8, 512, 400), rng.integers(8, 512, 400), "float32", 32
    )
    device = properties(load_topology("cpu2").devices[0])
    plain = load_learned().predict(work, device)
    seconds = 2 * plain.seconds * np.exp(rng.normal(0, 0.6, 400))
    some, rest = np.arange(100), np.arange(100, 400)
    found = refine(work.take(some), seconds[some], load_learned().predict(work.take(some), device))(
        work.take(rest), load_learned().predict(work.take(rest), device)
    )
    inside = ((found.low <= seconds[rest]) & (seconds[rest] <= found.high)).mean()
    assert 0.75 <= inside <= 0.9
    one = np.arange(1)
    found = refine(work.take(one), seconds[one], load_learned().predict(work.take(one), device))(
        work.take(rest), load_learned().predict(work.take(rest), device)
    )
    assert ((found.low <= seconds[rest]) & (seconds[rest] <= found.high)).mean() >= 0.75


def test_spread_by_hand():
    common = error_interval(np.array([0.1, 0.1, -0.1, -0.1] * 20), ["a", "a", "b", "b"] * 20)
    assert (common.low, common.high) == pytest.approx((-0.1, 0.1))
    assert common.shared == pytest.approx(1.0)
    own = error_interval(np.array([0.1, -0.1, 0.1, -0.1] * 20), ["a", "a", "b", "b"] * 20)
    assert own.shared == pytest.approx(0.0)


def test_launches_of_libraries_are_samples(tmp_path):
    file = tmp_path / "launches.json"
    rows = [
        ["conv 3 64 224 7 2", "k", 18.0],
        ["mm 2 3 4", "k", 5.0],
        ["mm 2 3 4", "reduce", 1.0],
        ["bmm 5 2 3 4", "k", 7.0],
    ]
    file.write_text(msgspec.json.encode({"format": "library-launches", "version": 1, "rows": rows}).decode())
    assert launches.is_launches(file)
    found = launches.read(file)
    assert found.seconds.tolist() == pytest.approx([18e-6, 6e-6, 7e-6]), "a case takes as long as its kernels together"
    assert found.work.flops.tolist() == [2 * 112 * 112 * 64 * 3 * 49, 48, 240]
    assert found.work.m.tolist() == [112 * 112, 2, 2]
    assert found.work.batch.tolist() == [1, 1, 5]
    file.write_text('{"format": "library-launches"}')
    with pytest.raises(InputError, match="not a file of launches"):
        launches.read(file)


def test_a_family_that_is_not_in_the_data_gets_a_wide_interval():
    model = load_learned()
    unknown = "softmax|2560|a float16[8,64]|float16[8,64]"
    work = describe(graph_of([unknown, "matmul|65536|a float16[8,64];p float16[64,64]|float16[8,64]"]))
    found = model.predict(work, GPUS["H100"])
    assert found.far.tolist() == [True, False]
    ratio = found.seconds[0] / roofline_seconds(work, GPUS["H100"])[0]
    assert ratio == pytest.approx(np.exp(model.parts["cuda"].far_ratio))
    assert (found.high / found.low)[0] > 4 > (found.high / found.low)[1]
