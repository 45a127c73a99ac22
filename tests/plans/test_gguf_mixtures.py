"""Formats of matrices in GGUF files of mixed types: the files' sizes are those that were published."""

import pytest

from tvm_sched_plans import TokenWorkload
from tvm_sched_plans.gguf_mixtures import Place, format_of
from tvm_sched_plans.language import language_model, read_architecture
from tvm_sched_runtime.errors import InputError

# GiB, of XiongjieDai/GPU-Benchmarks-on-LLM-Inference, README.
LLAMA_3_70B = {
    "q2_k": 24.56, "q3_k_s": 28.79, "q3_k_m": 31.91, "q3_k_l": 34.59, "iq4_xs": 35.30, "iq4_nl": 37.30, "q4_k_s": 37.58,
    "q4_k_m": 39.60, "q5_k_s": 45.32, "q5_k_m": 46.52, "q6_k": 53.91, "q8_0": 69.83,
}  # fmt: skip
FILES = [("llama-3-70b", *item) for item in LLAMA_3_70B.items()] + [("llama-3-8b", "q4_k_m", 4.58)]


@pytest.mark.parametrize(("model", "name", "size"), FILES, ids=lambda value: str(value))
def test_parameters_take_what_the_file_does(model, name, size):
    phase = language_model(read_architecture(model), TokenWorkload(context=64, dtype=name)).phases[0]
    parameters = (t for t in phase.graph.tensors if t.kind == "parameter" and not t.name.startswith("cache"))
    assert sum(tensor.size for tensor in parameters) / 2**30 == pytest.approx(size, rel=1.5e-3)


def test_layers_that_get_more_bits():
    """Of 32: the first and last four, and each third between."""
    more = [n for n in range(32) if format_of("q4_k_m", Place("down", n, 32, 4)) == "q6_k"]
    assert more == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert format_of("q4_k_m", Place("other", 0, 32, 4)) == "q4_k"


def test_an_unknown_mixture_is_refused():
    with pytest.raises(InputError, match="q4_k_m"):
        TokenWorkload(dtype="q4_k_n")
