"""The command ``plan``."""

import json

import pytest

TOPOLOGY = """
format = "tvm_sched.topology"
version = 1
name = "two cards"
host_memory = "64 GB"
peer_access = false
[[buses]]
names = ["pcie0", "pcie1"]
bandwidth = "25 GB/s"
latency = "10 us"
""" + "".join(
    f"""
[[devices]]
name = "{name}"
memory = "{memory} GB"
memory_bandwidth = "{bandwidth} GB/s"
peak_flops = {{ float32 = "{single} TFLOP/s", float16 = "{half} TFLOP/s" }}
bus = "{bus}"
"""
    for name, memory, bandwidth, single, half, bus in (
        ("large", 24, 1000, 40, 160, "pcie0"),
        ("small", 12, 360, 13, 25, "pcie1"),
    )
)


@pytest.fixture
def cards(tmp_path):
    path = tmp_path / "cards.toml"
    path.write_text(TOPOLOGY)
    return path


def test_a_table_and_a_plan(run, cards, tmp_path):
    done = run("plan", "llama-2-13b", "-t", cards, "--for", "llama.cpp", "--dtype", "q8_0", "-o", tmp_path / "llama.sh")
    for words in ("all layers, by free memory", "ours", "no split is below", "large", "small"):
        assert words in done.stdout
    script = (tmp_path / "llama.sh").read_text()
    assert "--tensor-split" in script
    assert "cannot be told the order in which weights are loaded" in done.stderr
    assert "its host is assumed to read 80 GB/s, to compute 1 TFLOP/s and to start kernels in no time" in done.stderr


def test_a_host_of_which_the_topology_speaks_is_not_assumed(run, cards, tmp_path):
    cards.write_text(
        TOPOLOGY
        + '[[devices]]\nname = "host"\nkind = "cpu"\nmemory = "64 GB"\nmemory_bandwidth = "40 GB/s"\n'
        + 'launch_overhead = "5 us"\npeak_flops = { float32 = "1 TFLOP/s" }\n'
    )
    done = run("plan", "llama-2-13b", "-t", cards, "--for", "llama.cpp", "--dtype", "q8_0")
    assert "assumed to read" not in done.stderr


def test_the_same_for_programs(run, cards, tmp_path):
    plan = tmp_path / "map.json"
    found = run("plan", "llama-2-13b", "-t", cards, "--for", "accelerate", "-o", plan, "--limits", "--json").json
    assert found["ours"]["fits"]
    assert found["files"] == {"plan": str(plan), "with it": str(tmp_path / "device_map.env")}
    assert (tmp_path / "device_map.env").read_text() == "CUDA_DEVICE_ORDER=PCI_BUS_ID\n"
    assert json.loads(plan.read_text()) == found["settings"]["device_map"]
    assert found["lower_bound_ns"] <= found["ours"]["total_ns"]
    assert all(held <= found["ours"]["limit"][place] for place, held in found["ours"]["held"].items())
    assert found["limits"][0].startswith("the longest context that fits on the GPUs with batch 1 is ")


def test_a_context_that_fits_is_one_that_the_model_was_made_for(run, cards, tmp_path):
    fields = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields |= {"model_type": "llama", "vocab_size": 1000, "max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = run("plan", tmp_path, "-t", cards, "--for", "accelerate", "--context", "64", "--limits", "--json").json
    assert found["limits"][0] == "the longest context that fits on the GPUs with batch 1 is 256"


def test_what_is_not_on_gpus_is_said(run, cards):
    done = run("plan", "llama-2-70b", "-t", cards, "--for", "llama.cpp", "--dtype", "q4_0", "--context", "2048")
    assert "not all of it is on GPUs" in done.stderr
    assert "-ngl " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("llama-2-13b -t {cards} --for vllm --batch 0", "batch is 0"),
        ("llama-2-13b -t {cards} --for vllm --overhead 2", None),
        ("llama-2-13b -t {cards} --for vllm --overhead lots", "--overhead: found 'lots'"),
        ("llama-2-13b -t {cards} --for vllm --shape batch=1", "shapes are of ONNX files"),
        ("llama-2-13b -t {cards} --for ollama", "there is no runtime 'ollama'"),
        ("llama-2-13b -t {cards} --for vllm -o {folder}", "that is a directory"),
        ("llama-2-13b -t {cards} --for vllm -o {folder}/no/plan.sh", "there is no directory"),
        ("{cards} -t {cards} --for vllm", "is planned for a language model"),
        ("nothing -t {cards} --for torch", "no such file, nor one of the language models"),
    ],
)
def test_wrong_input(run, fails, cards, tmp_path, arguments, words):
    given = arguments.format(cards=cards, folder=tmp_path).split()
    if words is None:
        assert run("plan", *given)
    else:
        assert words in " ".join(fails(2, "plan", *given).split())


def test_what_does_not_fit(fails, cards):
    text = " ".join(fails(1, "plan", "llama-2-70b", "-t", cards, "--for", "vllm").split())
    assert "does not fit on two cards for vllm: it needs weights 128 GiB" in text
    assert "GPUs like 'large' (22.4 GiB) would do" in text
