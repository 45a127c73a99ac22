"""The networks that latencies on CPUs are measured on: ONNX structures, ONNX files of packages, architectures in PyTorch.

Weights of structures and architectures are random with a seed, those of files are the packages' own. Half of all networks
may be looked at while kernels are tuned, the other half is held out: the parity of a hash of the name says which.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
Made = tuple[Any, Arrays]
"""A ``torch.nn.Module`` or an ``onnx.ModelProto``, and its inputs by name in their order."""

TOKENS = 128
SETS = ("onnx", "files", "architectures")
HALVES = ("looked-at", "held-out")
LARGE = frozenset({"onnx/zfnet512", "tv/vgg11", "tv/vit_b_16", "hf/distilbert", "hf/gpt2-prompt", "hf/gpt2-decode"})
"""Networks of more than 64 million parameters, which samples leave out."""


class Case(NamedTuple):
    """A network."""

    name: str
    group: str
    """One of `SETS`."""
    kind: str
    """What sort of network it is."""
    needs: tuple[str, ...]
    """Packages that it is made from."""
    make: Callable[[], Made]
    """Makes the model and its inputs."""

    @property
    def half(self) -> str:
        """``"looked-at"`` or ``"held-out"``."""
        return HALVES[_hash(self.name)[0] % 2]

    @property
    def missing(self) -> str:
        """Reason why the network cannot be made here; empty if it can."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(absent)}" if absent else ""


def sample(known: Iterable[Case], count: int) -> list[Case]:
    """Choose at most ``count`` networks, alternately from each set and kind, by the name's hash, none of `LARGE`."""
    small = [case for case in known if case.name not in LARGE]
    turns: Counter[tuple[str, str]] = Counter()
    ranked = []
    for place, case in enumerate(sorted(small, key=lambda case: _hash(case.name))):
        ranked.append((turns[case.group, case.kind], place, case))
        turns[case.group, case.kind] += 1
    return [case for *_, case in sorted(ranked, key=lambda each: each[:2])][:count]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def image(size: int = 224, name: str = "x") -> Arrays:
    """A random picture."""
    return {name: np.random.default_rng(2).standard_normal((1, 3, size, size)).astype("float32")}


def tokens(count: int = TOKENS, vocabulary: int = 1000) -> Arrays:
    """Random token ids."""
    return {"ids": np.random.default_rng(2).integers(0, vocabulary, (1, count))}


def noise(**shapes: tuple[int, ...]) -> Arrays:
    """Random inputs by name."""
    rng = np.random.default_rng(2)
    return {name: rng.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def cases() -> dict[str, Case]:
    """All networks by name."""
    found = [*_structures(), *_files(), *_torchvision(), *_timm(), *_transformers(), *_recurrent()]
    return {case.name: case for case in found}


def _structures() -> list[Case]:
    def make(name: str) -> Made:
        from tvm_sched_bench.testing import models

        model = models.onnx_model(name, seed=1)
        return model, noise(**dict([models.input_shape(model)]))

    names = ("inception_v1", "inception_v2", "squeezenet", "resnet50", "densenet121", "shufflenet", "zfnet512")
    return [Case(f"onnx/{n}", "onnx", "convolutional", ("onnx",), lambda n=n: make(n)) for n in names]


def _files() -> list[Case]:
    rate = {"sr": np.array(16000)}
    state = noise(state=(2, 1, 128))
    vad = "silero_vad/data/silero_vad"
    files: dict[str, tuple[str, Arrays]] = {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer": ("convolutional", image(320)),
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer": ("hybrid", noise(x=(1, 3, 48, 320))),
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer": ("convolutional", noise(x=(1, 3, 48, 192))),
        vad: ("recurrent", {**noise(input=(1, 576)), **state, **rate}),
        f"{vad}_16k_op15": ("recurrent", {**noise(input=(1, 576)), **state, **rate}),
        f"{vad}_op18_ifless": ("recurrent", {**noise(input=(1, 576)), **rate, **state}),
        f"{vad}_openvino_16k": ("recurrent", {**noise(input=(1, 576)), **state}),
        f"{vad}_half": ("recurrent", {**noise(input=(1, 576)), **state}),
        f"{vad}_16k_sequence": ("recurrent", noise(input=(32, 576), h=(1, 1, 128), c=(1, 1, 128))),
        "magika/models/standard_v3_3/model": ("convolutional", {"bytes": _bytes(2048)}),
        "nudenet/320n": ("convolutional", image(320, "images")),
        "ddddocr/common": ("hybrid", noise(input1=(1, 1, 64, 160))),
        "ddddocr/common_old": ("hybrid", noise(input1=(1, 1, 64, 160))),
        "ddddocr/common_det": ("convolutional", image(416, "images")),
    }
    found = []
    for file, (kind, inputs) in files.items():
        package, _, inside = file.partition("/")
        make = lambda p=package, i=inside, v=inputs: (_onnx_file(p, i), v)  # noqa: E731
        found.append(Case(f"{package}/{inside.rpartition('/')[2]}", "files", kind, ("onnx", package), make))
    return found


def _bytes(count: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (1, count)).astype("int32")


def _onnx_file(package: str, inside: str) -> Any:
    import onnx

    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return onnx.load(Path(spec.origin).parent / f"{inside}.onnx")


def _torchvision() -> list[Case]:
    names: Mapping[str, tuple[str, int, dict[str, Any]]] = {
        **{
            name: ("convolutional", 224, {})
            for name in (
                "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "efficientnet_b0",
                "densenet121", "shufflenet_v2_x1_0", "squeezenet1_1", "mnasnet1_0", "regnet_y_400mf", "vgg11",
                "convnext_tiny", "resnext50_32x4d",
            )
        },
        "googlenet": ("convolutional", 224, {"aux_logits": False, "init_weights": False}),
        "inception_v3": ("convolutional", 299, {"aux_logits": False, "init_weights": False}),
        **{name: ("transformer", 224, {}) for name in ("vit_b_16", "swin_t")},
        "maxvit_t": ("hybrid", 224, {}),
    }  # fmt: skip

    def make(name: str) -> Made:
        _kind, size, options = names[name]
        return _import_torchvision().models.get_model(name, weights=None, **options), image(size)

    needs = ("torch", "torchvision")
    return [Case(f"tv/{n}", "architectures", v[0], needs, lambda n=n: make(n)) for n, v in names.items()]


def _timm() -> list[Case]:
    kinds = {
        "convolutional": (
            "ghostnetv2_100", "hrnet_w18_small", "dpn68", "res2net50_26w_4s", "repvgg_a0", "tf_efficientnetv2_b0",
            "mobilenetv4_conv_small", "nfnet_l0", "regnetx_008",
        ),
        "hybrid": ("mobilevit_s", "mobilevitv2_100", "edgenext_small", "efficientformer_l1", "levit_192",
                   "coat_lite_mini", "fastvit_t8", "poolformer_s12"),
        "transformer": ("deit_tiny_patch16_224", "pvt_v2_b0", "xcit_nano_12_p16_224", "mixer_s16_224"),
    }  # fmt: skip

    def make(name: str) -> Made:
        _import_torchvision()
        import timm

        return timm.create_model(name, pretrained=False, exportable=True), image(256 if "mobilevit" in name else 224)

    return [
        Case(f"timm/{name}", "architectures", kind, ("torch", "torchvision", "timm"), lambda n=name: make(n))
        for kind, names in kinds.items()
        for name in names
    ]


def _import_torchvision() -> Any:
    """Import torchvision; if its compiled operators do not fit this PyTorch, only declare the operators for detection."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
        import torchvision
    return torchvision


_kept: list[Any] = []


def _transformers() -> list[Case]:
    found = {
        "bert-mini": ("transformer", lambda: (_encoder("Bert", 6, 384, 12), tokens())),
        "distilbert": ("transformer", lambda: (_plain("DistilBert", n_layers=6), tokens())),
        "t5-encoder-small": ("transformer", lambda: (_plain("T5", "EncoderModel"), tokens())),
        "segformer-b0": ("hybrid", lambda: (_plain("Segformer"), image())),
        "whisper-tiny-encoder": ("hybrid", lambda: (_whisper(), noise(features=(1, 80, 3000)))),
        "wav2vec2-6-layers": ("hybrid", lambda: (_plain("Wav2Vec2", num_hidden_layers=6), noise(sound=(1, 16000)))),
    }
    for name, hidden, heads, layers, groups in (
        ("GPT2", 768, 12, 12, 12),
        ("Llama", 512, 8, 8, 8),
        ("Qwen3", 512, 8, 8, 2),
    ):
        make = lambda n=name, s=(hidden, heads, layers, groups): _language_model(n, *s)  # noqa: E731
        found[f"{name.lower()}-prompt"] = ("language", lambda m=make: (_Prompt(m()), tokens()))
        past = noise(**{f"past{i}": (1, groups, TOKENS, hidden // heads) for i in range(2 * layers)})
        found[f"{name.lower()}-decode"] = ("language", lambda m=make, p=past: (_Decode(m()), {**tokens(1), **p}))
    return [
        Case(f"hf/{name}", "architectures", kind, ("torch", "transformers"), make)
        for name, (kind, make) in found.items()
    ]


def _import_transformers() -> Any:
    """Import transformers, which imports torchvision if it is installed."""
    if importlib.util.find_spec("torchvision"):
        _import_torchvision()
    import transformers

    return transformers


def _language_model(name: str, hidden: int, heads: int, layers: int, groups: int) -> Any:
    """A decoder: GPT-2 small, or eight layers of another."""
    transformers = _import_transformers()
    if name == "GPT2":
        config = transformers.GPT2Config(n_embd=hidden, n_head=heads, n_layer=layers)
    else:
        config = getattr(transformers, f"{name}Config")(
            hidden_size=hidden, num_attention_heads=heads, num_hidden_layers=layers, num_key_value_heads=groups,
            intermediate_size=3 * hidden, head_dim=hidden // heads, vocab_size=32000, max_position_embeddings=1024,
        )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def _plain(name: str, suffix: str = "Model", **options: Any) -> Any:
    """Return a network of transformers, with its default configuration and these options, that gives its first result."""
    transformers = _import_transformers()
    return _First(getattr(transformers, name + suffix)(getattr(transformers, f"{name}Config")(**options)))


def _encoder(name: str, layers: int, hidden: int, heads: int) -> Any:
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden}
    return _plain(name, num_hidden_layers=layers, num_attention_heads=heads, **sizes)


def _whisper() -> Any:
    transformers = _import_transformers()
    config = transformers.WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return _First(transformers.WhisperModel(config).encoder)


def _recurrent() -> list[Case]:
    def make(name: str) -> Made:
        import torch

        cell = {"lstm": torch.nn.LSTM, "bi-lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[name]
        return _First(cell(256, 256, 2, batch_first=True, bidirectional=name == "bi-lstm")), noise(x=(1, 100, 256))

    return [
        Case(f"torch/{name}", "architectures", "recurrent", ("torch",), lambda n=name: make(n))
        for name in ("lstm", "bi-lstm", "gru")
    ]


def _wrapper(name: str) -> Any:
    """Return one of the module classes below. They need PyTorch, which is imported only here."""
    import torch

    class First(torch.nn.Module):
        """The first result of a network."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            """Run the network."""
            return self.model(x)[0]

    class Prompt(First):
        """Logits of a prompt."""

        def forward(self, x: Any) -> Any:
            """Run the network."""
            return self.model(x, use_cache=False).logits

    class Decode(First):
        """Logits of one more token, and the cache with its keys and values."""

        def forward(self, x: Any, *past: Any) -> Any:
            """Run the network."""
            from transformers import DynamicCache

            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            result = self.model(x, past_key_values=cache, use_cache=True)
            return (result.logits, *(t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)))

    return {"First": First, "Prompt": Prompt, "Decode": Decode}[name]


def _First(model: Any) -> Any:  # noqa: N802
    return _wrapper("First")(model)


def _Prompt(model: Any) -> Any:  # noqa: N802
    return _wrapper("Prompt")(model)


def _Decode(model: Any) -> Any:  # noqa: N802
    return _wrapper("Decode")(model)
