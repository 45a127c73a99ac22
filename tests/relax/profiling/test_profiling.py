"""Measuring kernels: figures by hand, the database, random networks."""

import numpy as np
import pytest

from tvm_sched.cost_model.database import Database
from tvm_sched.cost_model.features import describe, footprint_of
from tvm_sched.cost_model.signature import signatures
from tvm_sched.relax import make_problem
from tvm_sched.relax import profile_models as profile
from tvm_sched.relax.profiling import other_load
from tvm_sched.relax.profiling.cpu_bench import CpuBench
from tvm_sched.relax.profiling.random_networks import random_networks
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime.machine import cores


@pytest.fixture(scope="module")
def network():
    return random_networks(1, first=1)["transformer1"]


def test_median_and_its_error_by_hand():
    median, error = profile.median_and_error(np.arange(1.0, 102.0))
    assert median == 51
    # 1.96 standard deviations of a binomial of 101 and 1/2 are 9.85: from the 41st to the 61st smallest
    assert error == pytest.approx((61 - 41) / 2 / 51, abs=0.02)
    assert profile.median_and_error(np.array([2.0, 2.0, 2.0])) == (2.0, 0.0)


def test_which_runs_count_by_hand(monkeypatch):
    monkeypatch.setattr(other_load, "FEWEST_RUNS", 3)
    latencies, loads = np.array([10.0, 10.5, 19.0, 11.4, 11.6, 9.0]), np.array([0, 0, 0, 0, 0, 1.0])
    # The last was fast, but beside another process; the fastest tenth of the others is 10.2: up to 11.73 counts.
    assert profile.undisturbed(latencies, loads).tolist() == [0, 1, 3, 4]
    assert profile.undisturbed(latencies, loads + 1).tolist() == [0, 1, 5], "no run was quiet: the fastest tenth is 9.5"


@pytest.mark.thorough
def test_every_kernel_once_and_never_again(network, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "MOST_SECONDS", 0.03)
    monkeypatch.setattr(CpuBench, "copies", lambda self: ())
    database = Database(tmp_path / "m.sqlite")
    found = profile.profile_models({"a": network}, "cpu2", database=database)
    graph = make_problem(network, "cpu2", name="a").graph
    assert [row.signature for row in found.kernels] == list(dict.fromkeys(signatures(graph)))
    assert all(row.in_run > 0 and row.repeats > 0 for row in found.kernels)
    assert any(row.warm > 0 and row.cold > 0 for row in found.kernels)
    assert {row.footprint for row in found.kernels} == {footprint_of(graph, describe(graph))}
    monkeypatch.setattr(profile, "compile", None)
    assert profile.profile_models({"a": network}, "cpu2", database=database).kernels == found.kernels


@pytest.mark.thorough
def test_pairs_concurrently(network, tmp_path, monkeypatch):
    if cores() < 2:
        pytest.skip("one core runs nothing beside anything")
    monkeypatch.setattr(profile, "MOST_SECONDS", 0.03)
    database = Database(tmp_path / "m.sqlite")
    found = profile.profile_models({"a": network}, "cpu2", database=database, alone=False, pairs=3)
    assert len(found.pairs) == 3
    known = {row.signature for row in found.kernels}
    assert all({pair.first, pair.second} <= known and pair.threads == 1 for pair in found.pairs)
    assert {(c.route, c.at_once) for c in found.copies} == {("memory", 1), ("memory", 2)}
    monkeypatch.setattr(CpuBench, "beside", None)
    monkeypatch.setattr(CpuBench, "copies", lambda self: ())
    assert profile.profile_models({"a": network}, "cpu2", database=database, pairs=3).pairs == found.pairs


def test_only_this_machines_cores():
    with pytest.raises(InputError, match="allowed are cpuN, cuda:N"):
        profile.profile_models({}, "a40x2")


@pytest.mark.thorough
def test_random_networks_repeat():
    first, again, other = random_networks(6), random_networks(6), random_networks(6, seed=1)
    kinds = ["convolutional", "transformer", "convolutional", "transformer", "elementwise", "convolutional"]
    assert list(first) == [f"{kind}{n}" for n, kind in enumerate(kinds)]
    assert list(random_networks(2, first=3)) == ["transformer3", "elementwise4"]

    def graphs(networks, *names):
        return [make_problem(networks[name], "cpu1", name=name).graph for name in names]

    found = graphs(first, "convolutional0", "transformer1", "elementwise4")
    assert found == graphs(again, "convolutional0", "transformer1", "elementwise4")
    assert found[2:] != graphs(other, "elementwise4")
