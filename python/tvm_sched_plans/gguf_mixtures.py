"""Formats of the matrices in GGUF files of mixed types, such as Q4_K_M, as llama.cpp's program `quantize` chooses them.

The sizes that follow are those of published files of LLaMA 3 to 0.1 % (`tests/plans/test_gguf_mixtures.py`). Files that were
made with an importance matrix are meant for the IQ types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Role = Literal["value", "attention_output", "down", "other"]
"""Matrices that a mixture treats apart: projection to values, output of attention, second of the feed-forward network."""


@dataclass(frozen=True)
class Place:
    """A matrix of a model: its role, its layer, and what else the choice depends on."""

    role: Role
    layer: int
    layers: int
    heads_of_a_key: int
    """Heads of queries that share a head of keys and values."""

    @property
    def gets_more(self) -> bool:
        """Whether the layer is one of the first or last eighth, or each third between."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    @property
    def is_first_eighth(self) -> bool:
        """Whether the layer is one of the first eighth."""
        return self.layer < self.layers // 8


def _q2_k(at: Place) -> str:
    return {"value": "q4_k" if at.heads_of_a_key >= 4 else "q3_k", "other": "q2_k"}.get(at.role, "q3_k")


def _q3_k_m(at: Place) -> str:
    if at.role == "value":
        return "q5_k" if at.layer < 2 else "q4_k"
    if at.role == "down":
        return "q5_k" if at.layer < at.layers // 16 else "q4_k"
    return "q4_k" if at.role == "attention_output" else "q3_k"


def _q4_k_s(at: Place) -> str:
    first = at.layer < 4 if at.role == "value" else at.is_first_eighth
    return "q5_k" if at.role in ("value", "down") and first else "q4_k"


def _medium(base: str) -> Callable[[Place], str]:
    return lambda at: "q6_k" if at.role in ("value", "down") and at.gets_more else base


def _iq4(base: str) -> Callable[[Place], str]:
    return lambda at: "q5_k" if at.role == "value" and at.heads_of_a_key >= 4 else base


_CHOICES = MappingProxyType(
    {
        "q2_k": _q2_k,
        "q3_k_s": lambda at: "q3_k",
        "q3_k_m": _q3_k_m,
        "q3_k_l": lambda at: "q3_k" if at.role == "other" else "q5_k",
        "q4_k_s": _q4_k_s,
        "q4_k_m": _medium("q4_k"),
        "q5_k_s": lambda at: "q5_k",
        "q5_k_m": _medium("q5_k"),
        "iq4_xs": _iq4("iq4_xs"),
        "iq4_nl": _iq4("iq4_nl"),
    }
)
MIXTURES = tuple(_CHOICES)
"""File types that hold matrices of several formats."""


def format_of(mixture: str, at: Place) -> str:
    """Return the format of a matrix; values of models with 80 layers and shared keys (70B) get at least ``q5_k``."""
    chosen = _CHOICES[mixture](at)
    large = at.layers == 80 and at.heads_of_a_key > 1
    return "q5_k" if large and at.role == "value" and chosen in ("q3_k", "q4_k") else chosen
