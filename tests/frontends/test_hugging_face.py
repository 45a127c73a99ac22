"""Folders of Hugging Face, made from small random configurations: compiled offline, with the values of transformers."""

import json

import numpy as np
import pytest

from relax.compare import assert_same
from tvm_frontends import load_model, open_model
from tvm_frontends.errors import ModelError
from tvm_sched.relax import compile

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL)).eval()
    folder = tmp_path_factory.mktemp("classifier")
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").is_file(), "it lies in several files"
    return folder, model


@pytest.mark.thorough
@pytest.mark.slow
def test_a_classifier_for_two_shapes(classifier):
    folder, model = classifier
    compiled = compile(folder, "cpu1", "single", input_shapes={"tokens": {4, 7}}, constants={"token_type_ids": 0})
    assert [a["name"] for a in compiled.module.plans()[0]["arguments"]] == ["input_ids", "attention_mask"]
    for tokens in (4, 7):
        ids = np.random.default_rng(tokens).integers(0, 99, (1, tokens))
        mask = np.ones((1, tokens), "int64")
        mask[0, -1] = 0
        with torch.no_grad():
            expected = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
        assert_same(compiled.module.run(ids, mask), [expected])


def test_half_precision_tied_weights_and_names(tmp_path):
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=99, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="its weights are bfloat16; it is compiled in float32"):
        imported = load_model(tmp_path, {"tokens": 4})
    assert "transformer.wte.weight" in imported.parameters
    assert all(value.dtype != "bfloat16" for value in imported.parameters.values())


def test_an_image_model_knows_its_size(tmp_path):
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=8
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    assert load_model(tmp_path).inputs == {"pixel_values": ((1, 3, 16, 16), "float32")}
    found = open_model(tmp_path).describe()
    assert found.about["architecture"] == "ViTForImageClassification"
    assert found.parameter_bytes == 4 * sum(
        p.numel() for p in transformers.ViTForImageClassification(config).parameters()
    )


def test_folders_that_are_refused(classifier, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match="holds no weights"):
        open_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ModelError, match="its weights cannot be read"):
        load_model(tmp_path, {"tokens": 4})
    for content, message in (
        ("{}", "has no model_type"),
        ('{"model_type": "nosuch"}', "cannot read its config"),
        ("[", "not a config"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ModelError, match=message):
            open_model(tmp_path)
    with pytest.raises(ModelError, match=r"dimension 1 \('tokens'\) has no fixed size"):
        load_model(classifier[0])
