"""``torch.compile(model, backend="tvm_sched")`` computes what PyTorch computes, and says what it leaves to PyTorch."""

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import tomllib

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tvm_sched.torch_backend import BackendOptions, EagerWarning, backend  # noqa: E402
from tvm_sched_runtime.errors import InputError  # noqa: E402

OPTIONS = {"topology": "cpu2", "scheduler": "heft"}


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch.compiler.reset()


def compiled(model, **options):
    return torch.compile(model, backend=backend, options={**OPTIONS, **options})


def equal(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        both = functional.relu(self.norm(torch.cat([self.left(x), self.right(x)], 1)))
        return {"logits": self.head(both.mean((2, 3))), "maps": [both]}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, tokens):
        x = self.table(tokens)
        q = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
        return self.layer(x) + functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(
            2
        )


class Masked(nn.Module):
    """The layers that PyTorch computes by one operator where there are no gradients, with each kind of mask."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu")
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        y, shares = self.attention(x, x, x, attn_mask=later, key_padding_mask=padding)
        return self.layer(x, src_key_padding_mask=padding), self.layer(x, src_mask=later), y, shares


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x) if x.sum() > 1e9 else self.second(x).relu()


class Writes(nn.Module):
    """Writes an input and a buffer, and returns a view of the input and a view of a result."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x[:, 0].mul_(2)
        self.total.add_(x.sum(0))
        y = self.layer(x) + self.total
        return x.t(), y, y[1:], y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "example"),
    [
        (Branches(), torch.randn(2, 3, 6, 6)),
        (Attention(), torch.randint(0, 11, (2, 5))),
        (Masked(), torch.randn(2, 5, 8)),
        (Breaks(), torch.randn(3, 4)),
        (
            nn.Sequential(nn.Conv1d(2, 3, 3), nn.GELU(), nn.Flatten(), nn.LayerNorm(12), nn.Softmax(-1)),
            torch.randn(2, 2, 6),
        ),
    ],
    ids=["branches", "attention", "masks", "graph break", "layers"],
)
def test_equals_eager(model, example):
    model.eval()
    fast = compiled(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", EagerWarning)
        for x in (example, example.flip(0)):
            equal(fast(x), model(x))


@pytest.mark.slow
def test_writes_and_aliases_are_those_of_eager():
    plain, model = Writes(), Writes()
    model.load_state_dict(plain.state_dict())
    fast = compiled(model, fallback=False)
    for seed in (1, 2):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        wanted_input, found_input = x.clone(), x.clone()
        wanted, found = plain(wanted_input), fast(found_input)
        equal(found, wanted)
        equal(found_input, wanted_input)
        equal(model.total, plain.total)
        assert [v.stride() for v in found] == [v.stride() for v in wanted]
        found[0].zero_()  # a view of the input
        found[1].fill_(7)
        assert found_input.abs().sum() == 0
        assert found[2].eq(7).all()
        assert found[3] is found[1]


@pytest.mark.slow
def test_statistics_of_training_without_gradients_are_written():
    plain, model = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    fast = compiled(model, fallback=False)
    for scale in (1, 3):
        x = torch.randn(5, 3) * scale
        equal(fast(x), plain(x))
    equal(model.state_dict(), plain.state_dict())


@pytest.mark.slow
def test_each_size_has_an_artifact_up_to_the_limit():
    model = nn.Linear(3, 2)
    made = []
    fast = compiled(model, any_size=False, size_limit=2, progress=lambda what, *_: made.append(what))
    x = torch.randn(7, 3)
    torch._dynamo.mark_dynamic(x, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (7, 4, 5, 6, 4):
            part = x if size == 7 else torch.randn(size, 3)
            equal(fast(part), model(part))
    assert sum("exporting" in what for what in made) == 2
    texts = [str(each.message) for each in caught if each.category is EagerWarning]
    assert len(texts) == 1
    assert "size_limit" in texts[0]
    assert "[5, 3]" in texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["write", "replace", "load"])
def test_changed_parameters_are_read(change):
    model = nn.Linear(3, 2)
    fast, x = compiled(model, fallback=False), torch.randn(4, 3)
    equal(fast(x), model(x))
    if change == "write":
        model.weight.mul_(3)
    elif change == "replace":
        model.weight = nn.Parameter(torch.randn(2, 3))
    else:
        model.load_state_dict(nn.Linear(3, 2).state_dict())
    for _ in range(2):
        equal(fast(x), model(x))


@pytest.mark.slow
def test_modules_may_share_code():
    layers = [nn.Linear(3, 3) for _ in range(3)]
    fast, x = compiled(lambda layer, x: layer(x), fallback=False), torch.randn(4, 3)
    for layer in (*layers, *layers):
        equal(fast(layer, x), layer(x))


def test_dynamic_sizes_have_one_artifact():
    linear, told = nn.Linear(4, 4), []

    def model(x, y):
        return linear(x).reshape(-1, 2) + y.t(), x.shape[0], x[:, :2]

    options = {"fallback": False, "size_limit": 1, "progress": lambda what, *_: told.append(what)}
    fast = torch.compile(model, backend=backend, dynamic=True, options={**OPTIONS, **options})
    for n in (6, 3, 50):
        x, y = torch.randn(n, 4), torch.randn(2, 2 * n)
        equal(fast(x, y), model(x, y))
    assert len([each for each in told if each.endswith("done")]) == 1


def test_sizes_that_an_artifact_for_any_does_not_take_have_their_own():
    options = {"fallback": False, "size_limit": 2, "any_size": True}
    fast = torch.compile(lambda x: x.t() + 1, backend=backend, dynamic=True, options={**OPTIONS, **options})
    for n in (3, 5):  # the result is not contiguous, so each size has an artifact
        x = torch.randn(n, 4)
        found = fast(x)
        equal(found, x.t() + 1)
        assert found.stride() == (x.t() + 1).stride()
    with pytest.raises(InputError, match="2 combinations of sizes"):
        fast(torch.randn(6, 4))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: torch.linalg.svd(x @ x)[1], "_linalg_svd"),
        (lambda x: functional.dropout(x @ x, 0.5), "dropout"),
    ],
)
def test_refused_operators_are_left_to_pytorch(function, named):
    x = torch.randn(3, 3)
    fast = compiled(function)
    torch.manual_seed(1)
    with pytest.warns(EagerWarning, match=named) as caught:
        found = fast(x)
    torch.manual_seed(1)
    equal(found, function(x))
    assert len([each for each in caught if each.category is EagerWarning]) == 1
    torch.compiler.reset()
    with pytest.raises(InputError, match=named):
        compiled(function, fallback=False)(x)


def test_gradients_are_left_to_pytorch():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with torch.enable_grad():
        with pytest.warns(EagerWarning, match=r"torch\.no_grad"):
            compiled(model)(x).sum().backward()
        found = model.weight.grad.clone()
        model.weight.grad = None
        model(x).sum().backward()
        equal(found, model.weight.grad)
        torch.compiler.reset()
        with pytest.raises(Exception, match="gradients"):
            compiled(model, fallback=False)(x)


@pytest.mark.slow
def test_memory_formats_modes_and_threads():
    model = nn.Conv2d(3, 4, 3).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    fast, wanted = compiled(model, fallback=False), model(x)
    found = [None] * 4

    def call(place):
        with torch.inference_mode():
            found[place] = fast(x)

    threads = [threading.Thread(target=call, args=(place,)) for place in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for each in found:
        equal(each, wanted)
        assert each.stride() == wanted.stride()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topologie": "cpu2"}, "topologie"),
        ({"topology": "cpu2", "target": "tvm_sched/cpu2"}, "leave one"),
        ({"size_limit": 0}, "size_limit is 0"),
        ({"fallback": "no"}, "fallback is 'no'"),
        ({"scheduler": "hefty"}, "hefty"),
        ({"objective": "throughput"}, "throughput"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(InputError, match=said):
        BackendOptions.of(options)


def test_options_of_targets_and_time():
    chosen = BackendOptions.of({"target": "tvm_sched/cpu3", "time_limit": 2, "precision": "float32"})
    assert (chosen.compile.topology.name, chosen.compile.options) == ("cpu3", {"time_limit": 2})
    with pytest.raises(Exception, match="mode is 'max-autotune'"):
        torch.compile(nn.Linear(3, 2), backend=backend, mode="max-autotune")(torch.ones(1, 3))


@pytest.mark.slow
def test_the_page_runs(monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "tasks" / "torch_compile.md"
    code = page.read_text().split("```python\n")[1].split("```")[0].replace('backend="tvm_sched"', "backend=backend")
    monkeypatch.setenv("TVM_SCHED_COSTS", "roofline")
    names = {"backend": backend}
    exec(code, names)
    assert names["compiled"](torch.ones(8, 64)).shape == (8, 10)


def test_found_by_its_name_and_imported_when_used():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["tvm_sched"].partition(":")
    assert getattr(sys.modules[module], name) is backend
    code = "import sys, torch, torch._dynamo; print([m for m in ('tvm', 'tvm_sched') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


BERT = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 128,
}  # fmt: skip
GROUPED = {**BERT, "num_key_value_heads": 2, "use_cache": False}
TOKENS = [torch.arange(16)[None]]
PICTURE = [torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)]
TRANSFORMERS = {
    "Bert": (BERT, TOKENS),
    "Roberta": (BERT, TOKENS),
    "Albert": ({**BERT, "embedding_size": 32}, TOKENS),
    "Electra": ({**BERT, "embedding_size": 32}, TOKENS),
    "MPNet": (BERT, TOKENS),
    "DistilBert": ({"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 128}, TOKENS),
    "GPT2": ({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "use_cache": False}, TOKENS),
    "GPTNeoX": ({**BERT, "use_cache": False}, TOKENS),
    "Phi": ({**BERT, "use_cache": False}, TOKENS),
    "Llama": (GROUPED, TOKENS),
    "Mistral": ({**GROUPED, "head_dim": 16}, TOKENS),
    "Qwen2": (GROUPED, TOKENS),
    "Qwen3": ({**GROUPED, "head_dim": 16}, TOKENS),
    "Gemma": ({**GROUPED, "head_dim": 16}, TOKENS),
    "OPT": (
        {
            "hidden_size": 64, "word_embed_proj_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
            "vocab_size": 128, "use_cache": False,
        },
        TOKENS,
    ),
    "T5": (
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 128, "use_cache": False},
        [*TOKENS, None, torch.arange(8)[None]],
    ),
    "ViT": ({**BERT, "image_size": 32, "patch_size": 8}, PICTURE),
    "Swin": (
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        PICTURE,
    ),
    "ConvNext": ({"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}, PICTURE),
    "ResNet": ({"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}, PICTURE),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_models_of_transformers_equal_eager(name):
    transformers = pytest.importorskip("transformers")
    settings, inputs = TRANSFORMERS[name]
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings)).eval()
    wanted, found = model(*inputs), compiled(model, fallback=False)(*inputs)
    torch.testing.assert_close(found.to_tuple(), wanted.to_tuple(), rtol=1e-4, atol=1e-4)
