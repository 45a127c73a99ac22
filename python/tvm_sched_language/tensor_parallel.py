"""Tensor parallelism: cut packed weights so that several devices compute each layer together.

Shoeybi et al., *Megatron-LM: Training multi-billion parameter language models using model parallelism* (2019): a part has
some of the heads, with their keys and values, and some columns inside of the feed-forward network. So the products behind
attention and behind the activation give terms of a sum, which each device adds for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tvm_sched_runtime.problem import DecoderConfig

from .decoder import PackedWeights, part_prefix
from .packing import COLUMNS, GROUP, Array, aligned


def why_not(architecture: DecoderConfig, number_format: str, parts: int) -> str:
    """Return why a model's layers cannot be cut into equal parts of whole tiles of weights; "" if they can."""
    a = architecture
    if a.experts:
        return "its layers have experts"
    if a.heads % parts or a.key_heads % parts or a.intermediate % parts:
        sizes = (
            f"{a.heads} heads of queries, {a.key_heads} of keys and a feed-forward network of {a.intermediate} columns"
        )
        return f"it has {sizes}, not all of which are multiples of {parts}"
    summed = COLUMNS if number_format == "float32" else GROUP  # terms of a sum come in groups
    for what, size, unit in (
        ("the queries", a.heads // parts * a.head_width, summed),
        ("the keys", a.key_heads // parts * a.head_width, COLUMNS),
        ("the feed-forward network", a.intermediate // parts, summed),
    ):
        if size % unit:
            return f"a part of {what} has {size} columns, and {number_format} needs multiples of {unit}"
    return "" if a.vocab >= parts * COLUMNS else f"its vocabulary has only {a.vocab} tokens"


def in_parts(packed: PackedWeights, parts: int) -> PackedWeights:
    """Return the weights with those of products cut: part 1 of ``0.qkv.weight`` is ``0.part1.qkv.weight``.

    Others are whole, and so is the embedding's table. Part 0 has the bias of the products whose results are added.
    """
    a = packed.architecture
    # Columns that are cut alike lie in blocks, one after the other.
    blocks = {
        "qkv": (a.heads * a.head_width, a.key_heads * a.head_width, a.key_heads * a.head_width),
        "up": (a.intermediate, a.intermediate) if a.gated else (a.intermediate,),
        "head": (a.vocab,),
    }
    arrays: dict[str, tuple[Array, ...]] = {}
    formats: dict[str, str] = {}
    for name, whole in packed.arrays.items():
        *layer, product, kind = ["head", "weight"] if name == "table" and a.tied else ["", *name.split(".")]
        prefix = "".join(f"{each}." for each in layer if each)
        if product in blocks:
            cut = [cut_columns(whole, blocks[product], part, parts, kind == "bias") for part in range(parts)]
        elif product in ("output", "down"):
            cut = [whole] if kind == "bias" else [cut_terms(whole, part, parts) for part in range(parts)]
        else:
            cut = []
        for part, own in enumerate(cut):
            key = f"{part_prefix(prefix, part, parts)}{product}.{kind}"
            arrays[key] = own
            if name in packed.formats:
                formats[key] = packed.formats[name]
        if not cut or name == "table":
            arrays[name] = whole
            formats |= {name: packed.formats[name]} if name in packed.formats else {}
    return replace(packed, arrays=arrays, formats=formats, parts=parts)


def cut_columns(
    arrays: Sequence[Array], blocks: Sequence[int], part: int, parts: int, of_bias: bool
) -> tuple[Array, ...]:
    """Cut whole tiles of the columns of each block; a bias has a number for each column."""
    unit, slices, first = COLUMNS if of_bias else 1, [], 0
    for columns in blocks:
        tiles = -(-columns // COLUMNS)
        slices.append(slice(unit * (first + part * tiles // parts), unit * (first + (part + 1) * tiles // parts)))
        first += tiles
    return tuple(aligned(np.concatenate([array[each] for each in slices])) for array in arrays)


def cut_terms(arrays: Sequence[Array], part: int, parts: int) -> tuple[Array, ...]:
    """Cut the terms: they, their pairs or their groups are the second axis."""
    return tuple(aligned(np.split(array, parts, axis=1)[part]) for array in arrays)
