"""The speed of a core: named, kept, or measured; topologies and the number of threads follow from it."""

import json
from contextlib import contextmanager

import msgspec
import pytest

from tvm_sched.cost_model.calibrated_model import is_of_this_machine
from tvm_sched.cost_model.device_properties import properties
from tvm_sched_runtime import cores
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import core_speed, cpu_presets, load_topology, read_topology, write_topology


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The file of a cache folder that has none yet."""
    monkeypatch.delenv(core_speed.VARIABLE)
    monkeypatch.setenv("TVM_SCHED_CACHE", str(tmp_path))
    return tmp_path / "core_speed.json"


def test_a_processor_is_measured_once(kept, monkeypatch):
    measured = core_speed.core_speed()
    assert json.loads(kept.read_bytes()) == {
        core_speed.processor_key(): {"flops": measured.flops, "bandwidth": measured.bandwidth}
    }
    # From a core of 100 MHz without vectors to one of 10 GHz with four units of 512 bits.
    assert 2e8 < measured.flops < 1.3e12
    assert measured.bandwidth > 1e7
    core_speed.kept_speed.cache_clear()
    monkeypatch.setattr(core_speed, "measured_speed", lambda: pytest.fail("measured again"))
    assert core_speed.core_speed() == measured


@pytest.mark.parametrize("content", [b"{", b'{"x": 1}', b"[]"])
def test_a_damaged_file_is_replaced_and_other_processors_stay(kept, content):
    kept.write_bytes(content)
    assert core_speed.core_speed().flops > 0
    kept.write_text(json.dumps({"another": {"flops": 1e9, "bandwidth": 2e9}}))
    core_speed.kept_speed.cache_clear()
    core_speed.core_speed()
    assert set(json.loads(kept.read_bytes())) == {"another", core_speed.processor_key()}


@pytest.mark.parametrize(("flops", "bandwidth"), [(-1.0, 1e9), (1e9, 0.0), (1e308, 1e9), (1e9, 1e-300)])
def test_kept_speeds_that_no_core_has_are_measured_anew(kept, flops, bandwidth):
    kept.write_text(json.dumps({core_speed.processor_key(): {"flops": flops, "bandwidth": bandwidth}}))
    core_speed.kept_speed.cache_clear()
    measured = core_speed.core_speed()
    assert (measured.flops, measured.bandwidth) != (flops, bandwidth)
    assert json.loads(kept.read_bytes())[core_speed.processor_key()]["flops"] == measured.flops > 0
    assert load_topology("cpu2").devices[0].memory_bandwidth > 0


def test_a_process_takes_what_another_has_measured_meanwhile(kept, monkeypatch):
    @contextmanager
    def locked(file):
        file.write_text(json.dumps({core_speed.processor_key(): {"flops": 1e11, "bandwidth": 2e10}}))
        yield

    monkeypatch.setattr(core_speed, "locked", locked)
    monkeypatch.setattr(core_speed, "measured_speed", lambda: pytest.fail("measured again"))
    core_speed.kept_speed.cache_clear()
    assert core_speed.core_speed() == core_speed.CoreSpeed(1e11, 2e10)


def test_a_folder_that_cannot_be_written_needs_no_cache(kept, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_CACHE", str(kept / "below"))
    kept.write_bytes(b"")
    assert core_speed.core_speed().flops > 0


def test_the_best_of_several_measurements_counts(monkeypatch):
    rates = iter([(1e11, 3e10), (2e11, 1e10), (1.5e11, 2e10), (1e11, 1e10), None])
    monkeypatch.setattr(core_speed, "library_function", lambda name: lambda: next(rates))
    assert core_speed.measured_speed() == core_speed.CoreSpeed(2e11, 3e10)


def test_generations_of_one_name_are_told_apart(monkeypatch):
    known = {"model name": "Intel(R) Xeon(R) Processor", "cpu family": "6", "stepping": "8"}
    names = set()
    for model in ("106", "143"):
        fields = known | {"model": model}
        for module in (cores, core_speed):
            monkeypatch.setattr(module, "processor_fields", lambda fields=fields: fields)
        names.add(core_speed.processor_key())
    assert names == {f"Intel(R) Xeon(R) Processor (family 6), model {model}, stepping 8" for model in ("106", "143")}


def test_nothing_is_kept_without_caches(kept, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_NO_CACHE", "1")
    core_speed.kept_speed.cache_clear()
    assert core_speed.core_speed().flops > 0
    assert not kept.exists()


def test_topologies_have_the_rates_of_the_cores(monkeypatch):
    monkeypatch.setenv(core_speed.VARIABLE, "100,20")
    monkeypatch.setattr(cpu_presets, "own_cores", lambda: 4)
    monkeypatch.setattr(cpu_presets, "own_kernels", lambda: cpu_presets.ONEDNN)
    four, two, one, many = (load_topology(f"cpu{count}").devices[0] for count in (4, 2, 1, 8))
    assert [four.peak_flops["float32"], two.peak_flops["float32"], many.peak_flops["float32"]] == [100e9, 195e9, 50e9]
    assert [four.memory_bandwidth, one.memory_bandwidth, many.memory_bandwidth] == [20e9, 20e9, 10e9]
    assert [properties(device).processors for device in (four, two, one, many)] == [1, 2, 4, 1]


def test_a_topology_with_other_rates_is_still_of_this_machine(monkeypatch):
    written = load_topology("cpu2")
    monkeypatch.setenv(core_speed.VARIABLE, "12,3")
    assert load_topology("cpu2") != written
    assert is_of_this_machine(written)
    older = tuple(msgspec.structs.replace(device, threads=msgspec.UNSET) for device in written.devices)
    assert is_of_this_machine(msgspec.structs.replace(written, devices=older))
    for other in ({"memory": written.devices[0].memory // 2}, {"threads": 77}):
        device = msgspec.structs.replace(written.devices[0], **other)
        assert not is_of_this_machine(msgspec.structs.replace(written, devices=(device, written.devices[1])))


def test_threads_are_those_of_the_machine_that_wrote_the_topology(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_presets, "own_cores", lambda: 4)
    monkeypatch.setattr(cpu_presets, "own_kernels", lambda: cpu_presets.ONEDNN)
    monkeypatch.setenv(core_speed.VARIABLE, "100,20")
    write_topology(tmp_path / "two.toml", load_topology("cpu2"))
    monkeypatch.setattr(cpu_presets, "own_cores", lambda: 1)
    monkeypatch.setenv(core_speed.VARIABLE, "50,20")  # a rate of 195 GFLOP/s would be four threads of this speed
    assert [properties(device).processors for device in read_topology(tmp_path / "two.toml").devices] == [2, 2]


@pytest.mark.parametrize("text", ["255", "a,b", "0,40", "255,-1", "inf,40", "nan,40", "1,2,3"])
def test_a_speed_that_is_none(monkeypatch, text):
    monkeypatch.setenv(core_speed.VARIABLE, text)
    with pytest.raises(InputError, match=r"TVM_SCHED_CORE_SPEED is .* it must be GFLOP/s,GB/s, such as 255,40"):
        load_topology("cpu2")
