"""Data sheets of NVIDIA's GPUs by product name, for topologies: memory, rates, PCIe and NVLink."""

from __future__ import annotations

import re
from typing import NamedTuple

from .device_properties import known_gpu


class GpuSpecification(NamedTuple):
    """A GPU as its data sheet describes it; of variants with one name, the smaller or slower one."""

    name: str
    memory: int
    """Bytes; 0 if the GPU uses the host's memory."""
    bandwidth: float
    """Bytes a second of the memory."""
    rates: dict[str, float]
    """Floating-point operations a second by dtype, dense; float16 with sums in float32."""
    capability: str
    generation: int
    width: int
    """PCIe generation and lanes; 0 if it is not on PCIe."""


# GB, GB/s, TFLOP/s of float32 and of float16 on tensor cores (0: none), PCIe generation and lanes; by compute capability.
_TABLE: dict[str, dict[str, tuple[float, ...]]] = {
    "6.0": {"P100": (16, 732, 9.3, 18.7, 3, 16)},
    "6.1": {
        "P4": (8, 192, 5.5, 0, 3, 16), "P40": (24, 346, 11.8, 0, 3, 16), "GTX 1080 TI": (11, 484, 11.3, 0, 3, 16),
        "GTX 1080": (8, 320, 8.9, 0, 3, 16), "GTX 1070": (8, 256, 6.5, 0, 3, 16), "GTX 1060": (3, 192, 3.9, 0, 3, 16),
    },
    "7.0": {
        "V100": (16, 900, 14, 112, 3, 16), "V100 SXM2": (16, 900, 15.7, 125, 3, 16),
        "TITAN V": (12, 653, 14.9, 110, 3, 16),
    },
    "7.5": {
        "T4": (16, 300, 8.1, 65, 3, 16), "RTX 2060": (6, 336, 6.5, 26, 3, 16), "RTX 2070": (8, 448, 7.5, 30, 3, 16),
        "RTX 2080": (8, 448, 10.1, 40, 3, 16), "RTX 2080 TI": (11, 616, 13.4, 54, 3, 16),
        "TITAN RTX": (24, 672, 16.3, 130, 3, 16), "QUADRO RTX 6000": (24, 672, 16.3, 130, 3, 16),
        "QUADRO RTX 8000": (48, 672, 16.3, 130, 3, 16),
    },
    "8.0": {
        "A100": (80, 1935, 19.5, 312, 4, 16), "A100 40GB": (40, 1555, 19.5, 312, 4, 16),
        "A100 SXM4 80GB": (80, 2039, 19.5, 312, 4, 16), "A800": (40, 1555, 19.5, 312, 4, 16),
        "A800 80GB": (80, 1935, 19.5, 312, 4, 16), "A30": (24, 933, 10.3, 165, 4, 16),
    },
    "8.6": {
        "A2": (16, 200, 4.5, 18, 4, 8), "A10": (24, 600, 31.2, 125, 4, 16), "A10G": (24, 600, 31.2, 70, 4, 16),
        "A16": (16, 200, 4.5, 18, 4, 16), "A40": (48, 696, 37.4, 149.7, 4, 16),
        "RTX A2000": (6, 288, 8, 31.9, 4, 16), "RTX A2000 12GB": (12, 288, 8, 31.9, 4, 16),
        "RTX A4000": (16, 448, 19.2, 76.7, 4, 16), "RTX A4500": (20, 640, 23.7, 94.6, 4, 16),
        "RTX A5000": (24, 768, 27.8, 111, 4, 16), "RTX A5500": (24, 768, 34.1, 136, 4, 16),
        "RTX A6000": (48, 768, 38.7, 154.8, 4, 16),
        "RTX 3050": (6, 168, 6.8, 13.5, 4, 8), "RTX 3060": (8, 240, 12.7, 25, 4, 16),
        "RTX 3060 TI": (8, 448, 16.2, 32, 4, 16),
        "RTX 3070": (8, 448, 20.3, 40, 4, 16), "RTX 3070 TI": (8, 608, 21.7, 43, 4, 16),
        "RTX 3080": (10, 760, 29.8, 59.5, 4, 16), "RTX 3080 TI": (12, 912, 34.1, 68, 4, 16),
        "RTX 3090": (24, 936, 35.6, 71, 4, 16), "RTX 3090 TI": (24, 1008, 40, 80, 4, 16),
    },
    "8.9": {
        "L4": (24, 300, 30.3, 121, 4, 16), "L20": (48, 864, 59.8, 119.5, 4, 16), "L40": (48, 864, 90.5, 181, 4, 16),
        "L40S": (48, 864, 91.6, 362, 4, 16),
        "RTX 2000 ADA": (16, 224, 12, 48, 4, 8), "RTX 4000 SFF ADA": (20, 280, 19.2, 76, 4, 16),
        "RTX 4000 ADA": (20, 360, 26.7, 106, 4, 16),
        "RTX 4500 ADA": (24, 432, 39.6, 158, 4, 16), "RTX 5000 ADA": (32, 576, 65.3, 261, 4, 16),
        "RTX 6000 ADA": (48, 960, 91.1, 364, 4, 16),
        "RTX 4060": (8, 272, 15.1, 30, 4, 8), "RTX 4060 TI": (8, 288, 22, 44, 4, 8), "RTX 4070": (12, 504, 29.1, 58, 4, 16),
        "RTX 4070 SUPER": (12, 504, 35.5, 71, 4, 16), "RTX 4070 TI": (12, 504, 40.1, 80, 4, 16),
        "RTX 4070 TI SUPER": (16, 672, 44.1, 88, 4, 16), "RTX 4080": (16, 717, 48.7, 97, 4, 16),
        "RTX 4080 SUPER": (16, 736, 52.2, 104, 4, 16), "RTX 4090": (24, 1008, 82.6, 165, 4, 16),
        "RTX 4090 D": (24, 1008, 73.5, 147, 4, 16),
    },
    "9.0": {
        "H100": (80, 2039, 51.2, 756, 5, 16), "H100 HBM3": (80, 3350, 66.9, 989, 5, 16),
        "H100 SXM5": (80, 3350, 66.9, 989, 5, 16), "H100 NVL": (94, 3938, 60, 835, 5, 16),
        "H800": (80, 2039, 51.2, 756, 5, 16), "H800 HBM3": (80, 3350, 66.9, 989, 5, 16),
        "H20": (96, 4000, 44, 148, 5, 16), "H200": (141, 4800, 66.9, 989, 5, 16), "H200 NVL": (141, 4800, 60, 835, 5, 16),
        "GH200": (96, 4000, 66.9, 989, 5, 16),
    },
    "10.0": {"B200": (180, 8000, 75, 2250, 5, 16), "GB200": (184, 8000, 80, 2500, 5, 16)},
    "10.3": {"B300": (268, 8000, 75, 2250, 6, 16), "GB300": (275, 8000, 80, 2500, 6, 16)},
    "12.0": {
        "RTX PRO 6000": (96, 1597, 120, 504, 5, 16), "RTX 5060": (8, 448, 19.2, 38, 5, 8),
        "RTX 5060 TI": (8, 448, 23.7, 47, 5, 8), "RTX 5070": (12, 672, 30.9, 61, 5, 16),
        "RTX 5070 TI": (16, 896, 43.9, 87, 5, 16), "RTX 5080": (16, 960, 56.3, 112, 5, 16),
        "RTX 5090": (32, 1792, 104.8, 209, 5, 16), "RTX 5090 D": (32, 1792, 104.8, 209, 5, 16),
    },
    "12.1": {"GB10": (0, 273, 29.7, 125, 0, 0)},
    "8.7": {"ORIN": (0, 102, 1.9, 15, 0, 0)},
}  # fmt: skip


def _rates(float32: float, float16: float, capability: str) -> dict[str, float]:
    rates = {"float32": float32 * 1e12}
    if float16:
        rates["float16"] = float16 * 1e12
        if float(capability) >= 8:
            rates["bfloat16"] = float16 * 1e12
    return rates


SPECIFICATIONS = tuple(
    GpuSpecification(
        name,
        int(memory * 1e9),
        bandwidth * 1e9,
        _rates(float32, float16, capability),
        capability,
        int(generation),
        int(width),
    )
    for capability, gpus in _TABLE.items()
    for name, (memory, bandwidth, float32, float16, generation, width) in gpus.items()
)
"""Known GPUs."""


def specification_of(model: str) -> GpuSpecification | None:
    """Return the specification of a product name such as ``"NVIDIA A100-SXM4-40GB"``; None if it is not known.

    All words of a specification's name must be in the product name; the most words count. Notebook and mobile GPUs share
    names with faster cards, so they are not known.
    """
    words = re.sub(r"[^A-Z0-9]+", " ", model.upper()).split()
    if {"LAPTOP", "NOTEBOOK", "MAX", "MOBILE"} & set(words):
        return None
    matches = [known for known in SPECIFICATIONS if _has(words, known.name)]
    best = max(matches, key=lambda known: len(known.name.split()), default=None)
    if best is None:
        return None
    chip = known_gpu(model)
    if chip is None:
        return best
    # The table of the cost models has float8, for the fastest card of each chip.
    share = min(best.rates["float32"] / chip.rates["float32"], 1.0)
    more = {dtype: rate * share for dtype, rate in chip.rates.items() if dtype.startswith("float8")}
    return best._replace(rates={**best.rates, **more})


def _has(words: list[str], name: str) -> bool:
    """Return whether a product name has all words of a known name, a number right after its brand.

    ``RTX A4000`` is written ``A4000``, too; ``RTX PRO 6000`` is another card than ``RTX 6000``.
    """
    brand, *model = name.split()
    if brand not in ("RTX", "GTX", "QUADRO"):
        return {brand, *model} <= set(words)
    if not set(model) <= set(words):
        return False
    if brand == "QUADRO":
        return brand in words
    return not model[0].isdigit() or f"{brand} {model[0]}" in " ".join(words)


def known_names() -> list[str]:
    """Return the names of all known GPUs, sorted."""
    return sorted(known.name for known in SPECIFICATIONS)
