"""A small language model with a tokenizer of bytes and a chat template, for two sequences at once."""

import pytest

from tvm_sched_bench.testing.language_models import save_model, save_tokenizer

TEMPLATE = (
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ bos_token }}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="session")
def artifact(tmp_path_factory):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tvm_sched_language import GenerationOptions, compile_language_model

    folder = save_model("llama", tmp_path_factory.mktemp("folder"), vocab_size=259)
    save_tokenizer(folder, TEMPLATE)
    options = GenerationOptions(context=64, pieces=(4, 16), sequences=2)
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    compile_language_model(folder, "cpu1", options, cost_model="roofline").export(path)
    return path


@pytest.fixture
def generator(artifact):
    from tvm_sched_language import Generator

    return Generator(artifact)
