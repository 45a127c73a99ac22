"""Measuring on a GPU: the arithmetic by hand, the rest against a small stand-in for cupy that keeps a clock a stream."""

import sys

import pytest
import tvm
from tvm import relax

from fake_cupy import BUS_SECONDS, HOST_RATE, KERNEL_SECONDS, PEER_RATE, FakeCupy
from tvm_sched.cost_model.database import Database
from tvm_sched.cost_model.profile import Measurement
from tvm_sched.cost_model.signature import signatures
from tvm_sched.relax.codegen.cuda.compile import CudaImage
from tvm_sched.relax.passes import LowerToKernels
from tvm_sched.relax.problem.operator_graph import extract
from tvm_sched.relax.profile_models import profile_models
from tvm_sched.relax.profiling import cuda_bench as bench
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import KernelResources, Topology, load_topology


@pytest.fixture
def cupy(monkeypatch):
    """Two GPUs; a kernel that reads pinned memory takes longer."""
    fake = FakeCupy(["0000:00:00.0", "0000:01:00.0"])
    monkeypatch.setitem(sys.modules, "cupy", fake)
    full = load_topology("h200x8")
    one = Topology("gpu0", full.devices[:1], tuple(b for b in full.buses if b.name == full.devices[0].bus))
    monkeypatch.setattr(bench, "topology_of", lambda address: one)

    def compiled(functions, archs):
        launch = {"symbol": "k", "grid": [8, 2, 1], "block": [64, 1, 1], "shared_bytes": 512}
        count = {name: len(function.params) for name, function in functions.items()}
        described = {
            name: {
                "tensors": n,
                "workspaces": [16],
                "launches": [{**launch, "pointers": [("tensor", k) for k in range(n)]}],
            }
            for name, n in count.items()
        }
        return CudaImage(described, b"binary", {})

    monkeypatch.setattr(bench, "compile_image", compiled)
    return fake


@pytest.fixture(scope="module")
def lowered():
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.softmax(x))
            result = builder.emit_output(relax.op.matmul(y, relax.op.permute_dims(y)))
        builder.emit_func_output(result)
    mod = tvm.transform.Sequential([LowerToKernels(libraries=(), device_kind="cuda")])(builder.get())
    return mod, extract(mod)


def measurements(extraction):
    return {text: Measurement(text, "m", 1e-5) for text in signatures(extraction.graph)}


def test_slowdowns_by_hand():
    # Both take 4 s alone; the first ends after 6. The second ends after 7: 1 s of it alone, so 3 s of it took 6.
    assert bench.slowdowns((4, 4), (6, 7)) == pytest.approx((1.5, 2.0))
    assert bench.slowdowns((4, 4), (7, 6)) == pytest.approx((2.0, 1.5))
    assert bench.slowdowns((4, 8), (4, 8)) == (1.0, 1.0), "they do not touch each other"
    assert bench.slowdowns((4, 8), (3.9, 12)) == (1.0, 1.0), "less than alone is noise"


def test_kernels_alone_warm_cold_and_from_the_host(cupy, lowered):
    mod, extraction = lowered
    found = bench.CudaBench("cuda:1").alone(mod, extraction, measurements(extraction))
    first, *others = (found[text] for text in signatures(extraction.graph))
    assert first.warm == pytest.approx(KERNEL_SECONDS)
    assert first.cold == pytest.approx(KERNEL_SECONDS), "the flush is not counted"
    assert first.direct == pytest.approx(BUS_SECONDS), "it reads the model's input"
    assert all(other.direct == 0 for other in others), "they read activations"
    assert first.launches == (KernelResources(16, 64, 40, 1024 + 512, 512),)
    assert first.in_run == 1e-5


def test_kernels_concurrently(cupy, lowered):
    mod, extraction = lowered
    names = signatures(extraction.graph)
    (pair,) = bench.CudaBench("cuda").beside(mod, extraction, [(names[0], names[1]), (names[0], "unknown")])
    assert pair.alone == pytest.approx((KERNEL_SECONDS,) * 2)
    assert pair.beside == pytest.approx((KERNEL_SECONDS,) * 2), "the stand-in's streams share nothing"
    assert pair.threads == 0


def test_copies_alone_together_and_to_another_gpu(cupy):
    found = bench.CudaBench("cuda:1").copies()
    assert [(c.route, c.at_once) for c in found] == [
        ("host to cuda:1", 1), ("cuda:1 to host", 1), ("host to cuda:1", 2), ("cuda:1 to host", 2), ("cuda:1 to cuda:0", 1),
    ]  # fmt: skip
    assert [size for size, _ in found[0].times] == list(bench.COPY_SIZES)
    assert all(seconds == pytest.approx(size / HOST_RATE) for size, seconds in found[0].times)
    assert found[4].times[-1][1] == pytest.approx(bench.COPY_SIZES[-1] / PEER_RATE)


def test_a_profile_of_a_gpu(cupy, lowered, monkeypatch, tmp_path):
    from tvm_sched.relax import profile_models as profile

    asked = {}

    def run_times(compiled, **settings):
        asked.update(settings)
        return {operator.name: [3e-5] * 12 for operator in lowered[1].graph.operators}, 1e-4

    monkeypatch.setattr(profile, "compile", lambda *_, **options: asked.update(options))
    monkeypatch.setattr(profile, "run_times", run_times)
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")
    module = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    with module.function("main", [x]):
        with module.dataflow():
            y = module.emit(relax.op.nn.softmax(x))
            result = module.emit_output(relax.op.matmul(y, relax.op.permute_dims(y)))
        module.emit_func_output(result)
    database = Database(tmp_path / "m.sqlite")
    found = profile_models({"m": module.get()}, "cuda:1", database=database, pairs=1)
    assert asked["backend"] == "cuda"
    assert asked["devices"] == [1]
    assert (found.device.kind, found.device.name, found.threads) == ("cuda", "H200", 0)
    assert found.machine.versions["cuda driver"] == "12.8"
    assert len(found.pairs) == 1
    assert all(row.in_run == 3e-5 for row in found.kernels)
    found.save(tmp_path / "p.json")
    assert type(found).load(tmp_path / "p.json") == found
    if any(row.launches for row in found.kernels):
        pytest.importorskip("pyarrow")
        found.save(tmp_path / "p.parquet")
        assert type(found).load(tmp_path / "p.parquet") == found


def test_what_cannot_be_measured(cupy, monkeypatch):
    with pytest.raises(InputError, match="this machine has 2 GPUs"):
        bench.CudaBench("cuda:2")
    with pytest.raises(InputError, match="allowed are cpuN and cuda:N"):
        bench.CudaBench("cuda:x")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"pip install 'tvm-sched\[cuda\]'"):
        bench.CudaBench("cuda:0")


@pytest.mark.gpu
def test_on_a_real_gpu(gpu, tmp_path, lowered, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setenv("TVM_SCHED_CUDA_ARCHS", gpu)
    device = bench.CudaBench("cuda:0")
    mod, extraction = lowered
    found = device.alone(mod, extraction, measurements(extraction))
    assert all(0 < row.warm < 1e-3 and 0 < row.cold < 1e-2 for row in found.values())
    assert any(row.direct > 0 for row in found.values())
    assert all(launch.registers > 0 for row in found.values() for launch in row.launches)
    names = signatures(extraction.graph)
    assert device.beside(mod, extraction, [(names[0], names[1])])[0].together > 0
    assert all(seconds > 0 for copies in device.copies() for _, seconds in copies.times)
