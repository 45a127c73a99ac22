"""`plan` with splits of the user, and within free memory."""

import pytest

from tvm_sched_runtime.problem import Bus, Device, Topology, write_topology

GB = 10**9


@pytest.fixture
def cards(tmp_path):
    """A file of two GPUs of 24 GB, with that much free."""

    def write(*free):
        gpus = tuple(
            Device(f"gpu{n}", 24 * GB, 1e12, {"float32": 2e13}, bus="pcie", free_memory=size)
            for n, size in enumerate(free)
        )
        write_topology(tmp_path / "m.toml", Topology("cards", gpus, (Bus("pcie", 25e9),), host_memory=64 * GB))
        return tmp_path / "m.toml"

    return write


def test_the_command_prices_given_splits(run, fails, cards):
    common = ("plan", "llama-2-13b", "-t", cards(24 * GB, 24 * GB), "--for", "vllm", "--context", "1024")
    told = run(*common, "--given", "24,16", "--given", "40", "--json").json
    assert [row["label"] for row in told["given"]] == ["given 24,16", "given 40"]
    assert "given 24,16" in run(*common, "--given", "24,16").stdout
    assert "whole numbers with commas" in fails(2, *common, "--given", "24,x")
    assert "40 layers in all" in fails(2, *common, "--given", "24,40")


@pytest.mark.thorough
def test_the_command_plans_within_free_memory(run, cards):
    common = ("plan", "llama-2-7b", "-t", cards(24 * GB, GB), "--for", "torch", "--context", "256", "--json")
    assert run(*common, "--free", "--limits").json["ours"]["limit"] == {"gpu0": 24 * GB - 900_000_000}
