"""Models of torchvision, timm and transformers through ``torch.compile(model, backend="tvm_sched")``, beside PyTorch.

Weights are random. Each model is compiled in a process of its own, with the options that a user would give first. Nothing
else here needs torchvision and timm; ``pip install --no-deps --target FOLDER torchvision timm`` and ``--packages FOLDER``
give them to this script alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the parent forks: it must have one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "distributions/frontends/benchmarks"))

from _common import parser
from _cpu_models import _import_torchvision
from _fork_server import run_forked, write_results
from _real_models import relative_error
from _result_page import Page

LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {**LAYERS, "vocab_size": 128}
Case = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A model with the positional and named arguments of its call."""


def _vision(name: str, size: int = 64, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import torch

        models = _import_torchvision().models
        made = getattr(models, name, None) or getattr(models.segmentation, name)
        kind = {} if isinstance(made, type) else {"weights": None}
        if name.startswith("lraspp"):
            kind["weights_backbone"] = None
        return made(**kind, **settings), (torch.randn(1, 3, size, size),), {}

    return make


def _timm(name: str, size: int = 64, **settings: Any) -> Callable[[], Case]:
    def make() -> Case:
        import torch

        _import_torchvision()
        import timm

        return timm.create_model(name, pretrained=False, **settings), (torch.randn(1, 3, size, size),), {}

    return make


def _transformers(name: str, settings: dict[str, Any], named: Callable[[Any], dict[str, Any]], config: str = "") -> Any:
    def make() -> Case:
        import torch
        import transformers

        read = getattr(transformers, config or name.removesuffix("Model").split("For")[0] + "Config")
        return getattr(transformers, name)(read(**settings)), (), named(torch)

    return make


def _tokens(torch: Any) -> dict[str, Any]:
    return {"input_ids": torch.arange(16)[None]}


def _masked(torch: Any) -> dict[str, Any]:
    return {**_tokens(torch), "attention_mask": (torch.arange(16) < 12).long()[None]}


def _translated(torch: Any) -> dict[str, Any]:
    return {**_tokens(torch), "decoder_input_ids": torch.arange(8)[None]}


MODELS: dict[str, Callable[[], Case]] = {
    "torchvision/resnet18": _vision("resnet18"),
    "torchvision/mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "torchvision/shufflenet_v2_x0_5": _vision("shufflenet_v2_x0_5"),
    "torchvision/squeezenet1_1": _vision("squeezenet1_1"),
    "torchvision/regnet_y_400mf": _vision("regnet_y_400mf"),
    "torchvision/lraspp_mobilenet_v3_large": _vision("lraspp_mobilenet_v3_large", num_classes=5),
    "torchvision/VisionTransformer": _vision(
        "VisionTransformer", 32, image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128
    ),
    "timm/convnext_atto": _timm("convnext_atto"),
    "timm/mobilenetv4_conv_small": _timm("mobilenetv4_conv_small"),
    "timm/edgenext_xx_small": _timm("edgenext_xx_small"),
    "timm/ghostnet_050": _timm("ghostnet_050"),
    "timm/vit_tiny_patch16_224": _timm("vit_tiny_patch16_224", img_size=64, depth=3),
    "timm/mixer_s32_224": _timm("mixer_s32_224", img_size=64),
    "timm/efficientnet_lite0": _timm("efficientnet_lite0"),
    "transformers/BertModel": _transformers("BertModel", TEXT, _masked),
    "transformers/GPT2LMHeadModel": _transformers(
        "GPT2LMHeadModel", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, _tokens, "GPT2Config"
    ),
    "transformers/LlamaForCausalLM": _transformers("LlamaForCausalLM", {**TEXT, "num_key_value_heads": 2}, _masked),
    "transformers/T5ForConditionalGeneration": _transformers(
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 128}, _translated,
    ),
    "transformers/WhisperModel": _transformers(
        "WhisperModel",
        {
            "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 128,
            "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 16, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        },
        lambda torch: {"input_features": torch.randn(1, 16, 64), "decoder_input_ids": torch.arange(8)[None]},
    ),
    "transformers/CLIPModel": _transformers(
        "CLIPModel",
        {
            "text_config": {**TEXT, "eos_token_id": 2, "max_position_embeddings": 16},
            "vision_config": {**LAYERS, "image_size": 32, "patch_size": 8}, "projection_dim": 32,
        },
        lambda torch: {**_tokens(torch), "pixel_values": torch.randn(1, 3, 32, 32)},
    ),
}  # fmt: skip
"""Models at small sizes, by package and name."""
HEAD = (
    "model", "relative error", "graphs", "graph breaks", "left to PyTorch", "steps told", "first call, s",
    "PyTorch, processor ms", "ours, processor ms",
)  # fmt: skip


def judge(name: str, runs: int) -> dict[str, Any]:
    """Compile a model, compare its outputs with PyTorch's, and time both, in alternation."""
    import torch
    from torch._dynamo.utils import counters

    from tvm_sched.torch_backend import EagerWarning, backend

    torch.manual_seed(0)
    model, positional, named = MODELS[name]()
    model.eval()
    with torch.no_grad():
        for value in model.parameters():  # what begins as a constant would hide an error
            if value.numel() > 1 and value.min() == value.max():
                value += 0.1 * torch.randn_like(value)
    steps: list[str] = []
    options = {"topology": "cpu2", "time_limit": 5, "progress": lambda what, done, total: steps.append(what)}
    compiled = torch.compile(model, backend=backend, options=options)
    spent = {"theirs": 0.0, "ours": 0.0}
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        wanted = _tensors(model(*positional, **named))
        began = time.process_time()
        found = _tensors(compiled(*positional, **named))
        first = time.process_time() - began
        for _ in range(runs):
            for side, which in (("theirs", model), ("ours", compiled)):
                began = time.process_time()
                which(*positional, **named)
                spent[side] += time.process_time() - began
    errors = [relative_error(a.numpy(), b.numpy()) for a, b in zip(found, wanted, strict=True)]
    return {
        "error": max(errors),
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "left": [str(each.message) for each in told if each.category is EagerWarning],
        "steps": len(steps),
        "first": first,
        "theirs": spent["theirs"] / runs * 1e3,
        "ours": spent["ours"] / runs * 1e3,
    }


def _tensors(result: Any) -> list[Any]:
    """Return the tensors of a result, also those of caches and of transformers' structures."""
    import torch

    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else getattr(result, "layers", result)
    if not isinstance(result, (dict, list, tuple)) and not hasattr(result, "layers"):
        parts = [value for value in vars(result).values() if isinstance(value, torch.Tensor)] if result else []
    return [tensor for part in parts for tensor in _tensors(part)]


def page(found: dict[str, dict[str, Any]], path: Path | None) -> Page:
    """Make the page of results."""
    result = Page("torch.compile: models of torchvision, timm and transformers", path)
    equal = sum(row.get("error", 1) <= 1e-4 for row in found.values())
    whole = sum(not row.get("left", ["failed"]) for row in found.values())
    result.text(
        f"{equal} of {len(found)} models give the outputs of PyTorch within 1e-4 of the largest value of each output, and "
        f"PyTorch computes no part of {whole} of them. Weights are random; pictures are of 32 or 64 pixels, and texts of 16 "
        "tokens. Options: the topology `cpu2` and 5 s for the scheduler. [How to use it](../tasks/torch_compile.md)."
    )
    result.text(
        "All times are processor time. The first call compiles. A run's time is the mean of runs that alternate between "
        "PyTorch, which has one thread, and the compiled model, which has two. Steps told are calls of the function given "
        "as `progress`. Rows that `--resume` held are of earlier runs."
    )
    rows = []
    for name, row in found.items():
        if "failed" in row:
            rows.append([name, row["failed"], *[""] * (len(HEAD) - 2)])
            continue
        rows.append([
            name, f"{row['error']:.1e}", row["graphs"], row["breaks"], len(row["left"]), row["steps"],
            f"{row['first']:.1f}", f"{row['theirs']:.2f}", f"{row['ours']:.2f}",
        ])  # fmt: skip
    result.table(HEAD, rows)
    result.left_to("PyTorch", ((name, row.get("left", ())) for name, row in found.items()))
    return result


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--packages", type=Path, metavar="FOLDER", help="where torchvision and timm are installed")
    arguments.add_argument("--only", default="", help="models whose names contain this text")
    arguments.add_argument("--runs", type=int, default=10, help="timed runs of each side")
    arguments.add_argument("--resume", type=Path, help="JSON of what is done, read and kept up: a run goes on from it")
    options = arguments.parse_args()
    if options.packages:
        sys.path.append(str(options.packages.resolve()))
    import torch

    if find_spec("torchvision"):  # before transformers, which imports it where it is installed
        _import_torchvision()
    import transformers  # noqa: F401

    import tvm_sched.relax
    import tvm_sched.torch_backend  # noqa: F401

    torch.set_num_threads(1)
    kept = options.resume
    found = json.loads(kept.read_text()) if kept and kept.exists() else {}
    left = [
        name
        for name in MODELS
        if options.only in name and name not in found and find_spec(name.partition("/")[0])  # the others are left out
    ]
    if options.quick:
        left = [name for name in left if name.startswith("transformers/")]
    for name, row, failure, _ in run_forked(lambda name: judge(name, options.runs), left, seconds=900, jobs=1):
        found[name] = row or {"failed": str(failure).strip().splitlines()[-1]}
        print(name, found[name], flush=True)
        if kept:
            write_results(kept, found)
    found = {name: found[name] for name in MODELS if name in found}
    if options.json:
        write_results(options.json, found)
    result = page(found, options.markdown)
    result.write()


if __name__ == "__main__":
    main()
