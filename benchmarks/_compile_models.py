"""Models for `compile_time`: networks with random weights of a seed, and pairs of similar ones, made by transformers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_MAKE = '''
import sys, warnings
import torch
import transformers as t

warnings.simplefilter("ignore")


class Plain(torch.nn.Module):
    """A tensor in place of one of the classes of transformers."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, value):
        return self.model(value)[0]


def mobilenet(**options):
    return t.MobileNetV2ForImageClassification(t.MobileNetV2Config(**options))


def resnet(*depths):
    sizes = [64, 128, 256, 512]
    return t.ResNetForImageClassification(t.ResNetConfig(layer_type="basic", depths=depths, hidden_sizes=sizes))


def bert(layers):
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    return t.BertModel(t.BertConfig(num_hidden_layers=layers, **sizes), add_pooling_layer=False)


def image(size=224):
    return torch.zeros(1, 3, size, size)


tokens = torch.zeros(1, 128, dtype=torch.int64)
makers = {
    "mobilenet_v2": lambda: (mobilenet(num_labels=1000), image()),
    "mobilenet_v2-10-classes": lambda: (mobilenet(num_labels=10), image()),
    "mobilenet_v2-other-weights": lambda: (mobilenet(num_labels=1000), image()),
    "mobilenet_v2-192x192": lambda: (mobilenet(num_labels=1000), image(192)),
    "resnet18": lambda: (resnet(2, 2, 2, 2), image()),
    "resnet34": lambda: (resnet(3, 4, 6, 3), image()),
    "bert-4-layers": lambda: (bert(4), tokens),
    "bert-8-layers": lambda: (bert(8), tokens),
    "vit_base": lambda: (t.ViTModel(t.ViTConfig()), image()),
    "gpt2": lambda: (t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)), tokens),
}
for number, file in enumerate(sys.argv[1:]):
    name, _, kind = file.rpartition("/")[2].rpartition(".")
    torch.manual_seed(number)
    model, value = makers[name]()
    program = torch.export.export(Plain(model).eval(), (value,))
    if kind == "onnx":
        torch.onnx.export(program, dynamo=True, verbose=False).save(file)
    else:
        torch.export.save(program, file)
'''


@dataclass(frozen=True)
class Pair:
    """Two similar models: the second is compiled after the first.

    Attributes
    ----------
    first, second : str
        Files' names.
    what : str
        How they differ.
    """

    first: str
    second: str
    what: str


PAIRS = (
    Pair("mobilenet_v2.onnx", "mobilenet_v2-other-weights.onnx", "the same network, trained again"),
    Pair("mobilenet_v2.onnx", "mobilenet_v2-10-classes.onnx", "10 classes in place of 1000"),
    Pair("mobilenet_v2.onnx", "mobilenet_v2-192x192.onnx", "192x192 in place of 224x224"),
    Pair("resnet18.onnx", "resnet34.onnx", "another member of the family"),
    Pair("bert-4-layers.onnx", "bert-8-layers.onnx", "twice as many layers"),
)
MODELS = ("mobilenet_v2.onnx", "mobilenet_v2.pt2", "vit_base.pt2", "gpt2.pt2")


def make(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Models' files, exported by PyTorch in a process of its own, each with other weights."""
    files = [folder / name for name in names]
    done = subprocess.run([sys.executable, "-c", _MAKE, *map(str, files)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the models could not be made: {done.stderr.strip().splitlines()[-1]}")
    return files
