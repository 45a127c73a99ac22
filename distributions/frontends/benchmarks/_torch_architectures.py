"""Architectures in PyTorch at small sizes: of transformers, timm, torchvision, diffusers, and of our own."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from _cpu_models import _import_torchvision
from _torch_transformers import LEFT_OUT
from torch.utils import _pytree as pytree

SMALL = {
    "hidden_size": 32, "d_model": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 64, "vocab_size": 99, "max_position_embeddings": 64, "embedding_size": 16,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_kv": 8,
    "d_ff": 64, "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64, "ffn_dim": 64, "word_embed_proj_dim": 32,
    "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "use_cache": False, "decoder_start_token_id": 1, "rotary_dim": 4, "n_routed_experts": 4,
}  # fmt: skip
"""Sizes that are given to a configuration of transformers that has fields of these names."""


@dataclass(frozen=True)
class Architecture:
    """A network with random weights."""

    name: str
    """Source and network."""
    needs: tuple[str, ...]
    """Packages that it is made from."""
    make: Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]
    """Makes the module, whose results are tensors, and its inputs."""

    @property
    def missing(self) -> str:
        """Reason why the network cannot be made here; empty if it can."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"needs {', '.join(absent)}" if absent else ""


class Tensors(torch.nn.Module):
    """A network by the names of its inputs, of which it gives the tensors among the results."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.names:
            results = self.model(**dict(zip(self.names, tensors, strict=True)), **self.fixed)
        else:
            results = self.model(*tensors, **self.fixed)
        leaves = pytree.tree_leaves(dict(results) if hasattr(results, "to_tuple") else results)
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def architectures() -> dict[str, Architecture]:
    """Return all architectures by name."""
    from _torch_own_architectures import OWN

    found: dict[str, Architecture] = {}
    for each in [*_own(OWN), *_transformers(), *_timm(), *_torchvision()]:
        name = each.name if each.name not in found else f"{each.name} (2)"
        found[name] = replace(each, name=name)
    return found


def _own(makers: dict[str, Callable[[], Any]]) -> list[Architecture]:
    return [Architecture(f"own/{name}", ("torch",), make) for name, make in makers.items()]


def _small(config: Any, options: dict[str, Any]) -> dict[str, Any]:
    probe = config(**{k: v for k, v in options.items() if k.endswith("config")}) if options else config()
    known = {key: value for key, value in SMALL.items() if _has(probe, key)}
    return {key: value for key, value in {**known, **options}.items() if value is not LEFT_OUT}


def _has(config: Any, field: str) -> bool:
    try:
        return hasattr(config, field)
    except RuntimeError:  # layers have values of their own
        return False


def _transformers() -> list[Architecture]:
    from _torch_transformers import MODELS

    def make(model: str, inputs: Callable[[], dict[str, torch.Tensor]], options: dict[str, Any], fixed: dict[str, Any]):
        if importlib.util.find_spec("torchvision"):
            _import_torchvision()
        import transformers

        kind = getattr(transformers, model)
        made = {key: value(transformers) if callable(value) else value for key, value in options.items()}
        network = kind(kind.config_class(**_small(kind.config_class, made)))
        for weight in network.parameters():  # a router of zeros gives equal scores, of which topk may take any
            if weight.dim() > 1 and not weight.any():
                torch.nn.init.normal_(weight)
        given = inputs()
        return Tensors(network.eval(), tuple(given), **fixed), tuple(given.values())

    return [
        Architecture(f"transformers/{model}", ("transformers",), lambda a=(model, *rest): make(*a))
        for model, *rest in (((*entry, {}, {})[:4]) for entry in MODELS)
    ]


def _timm() -> list[Architecture]:
    names = {
        "convmixer_768_32": 64, "gmlp_s16_224": 224, "cait_xxs24_224": 224, "crossvit_9_240": 240, "davit_tiny": 64,
        "eva02_tiny_patch14_224": 224, "efficientvit_b0": 64, "efficientvit_m0": 224, "ese_vovnet19b_dw": 64,
        "focalnet_tiny_srf": 64, "gcvit_xxtiny": 224, "gernet_s": 64, "hgnetv2_b0": 64, "inception_next_atto": 64,
        "inception_resnet_v2": 96, "lambda_resnet26t": 64, "lcnet_050": 64, "mobileone_s0": 64, "mvitv2_tiny": 224,
        "nest_tiny": 224, "pit_ti_224": 224, "repghostnet_050": 64, "repvit_m0_9": 64, "resnest14d": 64,
        "rexnet_100": 64, "sebotnet33ts_256": 256, "selecsls42": 64, "sequencer2d_s": 224, "skresnet18": 64,
        "starnet_s1": 64, "swinv2_cr_tiny_224": 224, "tiny_vit_5m_224": 224, "tinynet_e": 64, "tnt_s_patch16_224": 224,
        "twins_pcpvt_small": 64, "visformer_tiny": 224, "volo_d1_224": 224, "xception41": 64, "mambaout_femto": 64,
        "halonet26t": 64, "convit_tiny": 224, "coatnet_nano_rw_224": 224, "haloregnetz_b": 64, "fasternet_t0": 64,
        "shvit_s1": 64, "swiftformer_xs": 64, "eca_botnext26ts_256": 256, "hardcorenas_a": 64, "bat_resnext26ts": 64,
        "rdnet_tiny": 64, "pnasnet5large": 96, "hiera_tiny_224": 224, "beit_base_patch16_224": 224, "gcresnet33ts": 64,
        "test_nfnet": 64, "test_vit4": 64, "naflexvit_base_patch16_gap": 64, "vitamin_small_224": 224,
        "nextvit_small": 64, "resmlp_12_224": 224, "swin_s3_tiny_224": 224, "test_convnext3": 64, "cs3darknet_s": 64,
        "ghostnet_050": 64, "densenet121": 64, "iformer_t": 224, "sam2_hiera_tiny": 224, "efficientformerv2_s0": 224,
        "tresnet_m": 64, "pvt_v2_b0": 64, "lowformer_b0": 64,
    }  # fmt: skip

    def make(name: str, size: int) -> Any:
        _import_torchvision()
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=10)
        return Tensors(model.eval(), ()), (torch.randn(1, 3, size, size),)

    return [Architecture(f"timm/{n}", ("timm", "torchvision"), lambda n=n, s=s: make(n, s)) for n, s in names.items()]


def _torchvision() -> list[Architecture]:
    def segmentation(name: str) -> Any:
        return lambda tv: (getattr(tv.models.segmentation, name)(weights=None, weights_backbone=None), (1, 3, 64, 64))

    def video(name: str, *shape: int) -> Any:
        return lambda tv: (getattr(tv.models.video, name)(weights=None), shape)

    makers: dict[str, Callable[[Any], Any]] = {
        **{name: segmentation(name) for name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")},
        "r3d_18": video("r3d_18", 1, 3, 4, 32, 32),
        "r2plus1d_18": video("r2plus1d_18", 1, 3, 4, 32, 32),
        "s3d": video("s3d", 1, 3, 16, 64, 64),
        "mvit_v2_s": lambda tv: (tv.models.video.mvit_v2_s(weights=None), (1, 3, 16, 224, 224)),
        "swin3d_t": video("swin3d_t", 1, 3, 4, 64, 64),
        "swin_v2_t": lambda tv: (tv.models.swin_v2_t(weights=None), (1, 3, 64, 64)),
        "raft_small": lambda tv: (tv.models.optical_flow.raft_small(weights=None), (2, 1, 3, 128, 128)),
        "ssdlite320_mobilenet_v3_large": lambda tv: (
            tv.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None), (1, 3, 320, 320)
        ),
        "fasterrcnn_mobilenet_v3_large_320_fpn": lambda tv: (
            tv.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None),
            (1, 3, 320, 320),
        ),
        "retinanet_heads": lambda tv: (_RetinaHeads(tv), (1, 3, 64, 64)),
    }  # fmt: skip

    def make(name: str) -> Any:
        model, shape = makers[name](_import_torchvision())
        if name == "raft_small":
            pictures = torch.randn(*shape)
            return Tensors(model.eval(), (), num_flow_updates=2), (pictures[0], pictures[1])
        return Tensors(model.eval(), ()), (torch.randn(*shape),)

    return [Architecture(f"torchvision/{n}", ("torchvision",), lambda n=n: make(n)) for n in makers]


class _RetinaHeads(torch.nn.Module):
    """RetinaNet without the selection of boxes."""

    def __init__(self, torchvision: Any) -> None:
        super().__init__()
        made = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5)
        self.backbone, self.head = made.backbone, made.head

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(list(self.backbone(x).values()))
