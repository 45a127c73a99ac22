"""Measuring kernels: figures by hand, the database, random networks."""

import numpy as np
import pytest

from tvm_sched.cost_model.profile import Database
from tvm_sched.cost_model.signature import signatures
from tvm_sched.errors import InputError
from tvm_sched.relax import make_problem, profile
from tvm_sched.relax.random_networks import random_networks


@pytest.fixture(scope="module")
def network():
    return random_networks(3)["transformer2"]


def test_median_and_its_error_by_hand():
    median, error = profile.median_and_error(np.arange(1.0, 102.0))
    assert median == 51
    # 1.96 standard deviations of a binomial of 101 and 1/2 are 9.85: from the 41st to the 61st smallest
    assert error == pytest.approx((61 - 41) / 2 / 51, abs=0.02)
    assert profile.median_and_error(np.array([2.0, 2.0, 2.0])) == (2.0, 0.0)


def test_every_kernel_once_and_never_again(network, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "MOST_SECONDS", 1.0)
    database = Database(tmp_path / "m.sqlite")
    found = profile.profile_models({"a": network}, "cpu2", database=database)
    graph = make_problem(network, "cpu2", name="a").graph
    assert [row.signature for row in found.kernels] == list(dict.fromkeys(signatures(graph)))
    assert all(row.in_run > 0 and row.repeats > 0 for row in found.kernels)
    assert any(row.warm > 0 and row.cold > 0 for row in found.kernels)
    monkeypatch.setattr(profile, "compile", None)
    assert profile.profile_models({"a": network}, "cpu2", database=database).kernels == found.kernels


def test_only_this_machines_cores():
    with pytest.raises(InputError, match="allowed is cpuN"):
        profile.profile_models({}, "a40x2")


def test_random_networks_repeat():
    first, again, other = random_networks(6), random_networks(6), random_networks(6, seed=1)
    assert list(first) == [f"{k}{n}" for n, k in enumerate(["convolutional", "convolutional", "transformer"] * 2)]

    def graphs(networks):
        return [make_problem(module, "cpu1", name=name).graph for name, module in networks.items()]

    assert graphs(first) == graphs(again)
    assert graphs(first) != graphs(other)
