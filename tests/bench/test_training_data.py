"""Readers of published measurements."""

from pathlib import Path

import numpy as np
import pytest

from tvm_sched.cost_model.features import FAMILIES
from tvm_sched.cost_model.learned_model import load_learned
from tvm_sched_bench.training import aiconfigurator, vidur
from tvm_sched_bench.training.sources import read_samples
from tvm_sched_bench.training.train import train
from tvm_sched_runtime.errors import InputError

OPERATORS = ("attn_pre_proj", "mlp_up_proj", "mlp_down_proj", "input_layernorm", "add")
SHAPE = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens,num_tensor_parallel_workers"


def write(tmp_path, text):
    folder = tmp_path / "a100" / "organisation" / "llama"
    folder.mkdir(parents=True)
    (folder / "mlp.csv").write_text(text)


def test_vidur_by_hand(tmp_path):
    head = ",".join(f"time_stats.{name}.median" for name in OPERATORS)
    write(tmp_path, f"{head},{SHAPE}\n0.5,0.25,0.125,0.02,,32,8,4096,11008,32000,True,128,2\n")
    (samples,) = vidur.read(tmp_path)
    assert samples.devices[0].name == "A100"
    assert samples.seconds.tolist() == pytest.approx([5e-4, 2.5e-4, 1.25e-4, 2e-5]), "an empty time is no sample"
    assert samples.work.m.tolist() == [128] * 4
    assert samples.work.n.tolist() == [128 * (32 + 2 * 8) / 2, 2 * 11008 / 2, 4096, 4096]
    assert samples.work.k.tolist() == [4096, 4096, 11008 / 2, 1]
    assert FAMILIES[samples.work.family[3]] == "normalise"
    assert set(samples.group) == {"llama"}


def test_wrong_folders(tmp_path):
    with pytest.raises(InputError, match=r"no file GPU/ORGANISATION/MODEL/mlp\.csv"):
        vidur.read(tmp_path)
    write(tmp_path, "a,b\n1,2\n")
    (samples,) = vidur.read(tmp_path)
    assert len(samples) == 0
    (tmp_path / "a100" / "organisation" / "llama" / "mlp.csv").write_text("time_stats.add.median\nfast\n")
    with pytest.raises(InputError, match="not a file of vidur's layer times"):
        vidur.read(tmp_path)


def test_attention_by_hand():
    one = np.ones(1)
    prompt = aiconfigurator.attention("attention", 2 * one, 4 * one, 4 * one, 8 * one, 2 * one, 64 * one)
    assert prompt.flops[0] == 4 * 2 * 8 * (1 + 2 + 3 + 4) * 64, "a query looks at itself and what is before it"
    assert prompt.read[0] == 2 * (2 * 8 * 4 * 64) + 2 * 2 * (2 * 2 * 4 * 64), "queries, keys and values in 2 bytes"
    token = aiconfigurator.attention("decode_attention", one, one, 100 * one, 8 * one, 2 * one, 64 * one)
    assert token.flops[0] == 4 * 8 * 100 * 64


@pytest.mark.skipif(not aiconfigurator.available(), reason="the package aiconfigurator-core is not installed")
def test_the_package():
    (*samples,) = aiconfigurator.read(["a100_sxm"])
    products = samples[0]
    assert len(products) > 30_000
    assert (products.seconds > 0).all()
    large = (products.work.m == 8192) & (products.work.n == 8192) & (products.work.k == 8192)
    assert large.sum() == 1
    assert 0.4 < products.work.flops[large][0] / products.seconds[large][0] / 312e12 < 1, "an A100 has 312 TFLOP/s"
    assert {FAMILIES[f] for part in samples for f in np.unique(part.work.family)} == {
        "matmul", "attention", "decode_attention",
    }  # fmt: skip


def test_the_package_is_missing(monkeypatch):
    monkeypatch.setattr(aiconfigurator, "available", lambda: False)
    with pytest.raises(InputError, match=r"pip install 'tvm-sched\[data\]'"):
        aiconfigurator.read()


@pytest.mark.slow
def test_learning_makes_the_shipped_model_again():
    # The part for CPUs, whose data is here; that for GPUs takes minutes and needs vidur's files.
    data = Path(__file__).parents[2] / "benchmarks" / "data" / "cpu2.json"
    samples, _ = read_samples([data], published=False)
    assert train(samples, seed=0).parts["cpu"] == load_learned().parts["cpu"]
