"""How an artifact keeps the tokenizer."""

import json

import pytest

from tvm_sched_language.language_model import compact_tokenizer


@pytest.mark.parametrize(
    ("merges", "joined"),
    [([("a", "b"), ("ab", "c")], True), ([("a", " "), ("a", "b")], False), ([("#version", "a")], False), ([], True)],
)
def test_a_compact_tokenizer_is_the_same(merges, joined):
    """Merges become strings, which are read faster, unless the library would read another merge from the string."""
    tokenizers = pytest.importorskip("tokenizers")
    parts = dict.fromkeys(part for pair in merges for part in (*pair, "".join(pair)))
    vocabulary = {part: number for number, part in enumerate([*parts, "é", '"'])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges, unk_token="é"))
    made.add_special_tokens(["<s>"])
    compact = compact_tokenizer(json.loads(made.to_str(pretty=True)))
    assert tokenizers.Tokenizer.from_str(compact.decode()).to_str() == made.to_str()
    assert json.loads(compact)["model"]["merges"] == [" ".join(pair) if joined else list(pair) for pair in merges]
