"""Make the Relax module of a decoder's configuration, and lower it to an operator graph."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Group, OpGraph, Topology
from tvm_sched_runtime.problem.decoder_config import DecoderConfig

from ..codegen.describe_launches import DescribeLaunches
from ..codegen.prepare_kernels import PrepareKernels
from ..ir.attributes import NAME
from ..lower.lower_to_kernels import LowerToKernels
from ..problem.demands import with_demands
from ..problem.operator_graph import extract_variants
from ..variants.offer_variants import OfferVariants
from ..variants.split_rows import SplitRows
from .decoder_layers import Decoder

PHASES = ("full", "prefill", "decode")
"""``full`` computes logits; ``prefill`` also returns the KV cache; ``decode`` takes the cache and one more token."""


def decoder_module(
    config: DecoderConfig, batch: int, tokens: int, *, phase: str = "full", dtype: str = "float32"
) -> tvm.IRModule:
    """Make the Relax module of a decoder; parameters are arguments without values.

    Parameters
    ----------
    batch, tokens : int
        Number of sequences, and tokens of each: computed tokens, or in the phase ``decode`` cached tokens.
    phase : {"full", "prefill", "decode"}
        See `PHASES`. In ``decode`` the cache of each block is two parameters, of shape (batch, kv heads, tokens, head
        width), and the new token's keys and values are returned after the logits.
    dtype : {"float32", "float16"}
        Type of parameters and activations.

    Raises
    ------
    InputError
        A size below 1, an unknown phase or dtype, more tokens than the model has positions.
    """
    _check(config, batch, tokens, phase, dtype)
    past, new = (tokens, 1) if phase == "decode" else (0, tokens)
    module = Decoder(config, batch, past, cache=phase != "full")
    module.to(dtype)
    mod, _ = module.export_tvm({"forward": {"input_ids": relax.frontend.nn.spec.Tensor([batch, new], "int32")}})
    main = mod["forward"].with_attr("global_symbol", "main")
    del mod["forward"]
    mod["main"] = main
    mod = relax.transform.FuseTransposeMatmul()(mod)  # one kernel reads transposed weights, as in GPU libraries
    name = config.name if phase == "full" else f"{config.name}-{phase}"
    return mod.with_attr(NAME, f"{name}-{batch}x{tokens}")


def decoder_graph(
    config: DecoderConfig, batch: int, tokens: int, *, phase: str = "full", dtype: str = "float32"
) -> OpGraph:
    """Make the graph of a decoder's fused kernels, without allocating its parameters; see `decoder_module`.

    The kernels are TVM's, without the CPU's libraries, so a configuration gives the same graph on every machine.
    """
    return decoder_variants(config, batch, tokens, phase=phase, dtype=dtype)[0]


def decoder_variants(
    config: DecoderConfig,
    batch: int,
    tokens: int,
    *,
    phase: str = "full",
    dtype: str = "float32",
    pieces: Sequence[int] = (),
    rows: bool = False,
    row_parts: int = 1,
    gpus: Topology | None = None,
) -> tuple[OpGraph, tuple[Group, ...]]:
    """Make the graph as `decoder_graph`, and the groups of its operators that have alternatives.

    ``pieces`` holds the numbers of pieces of products. ``rows`` offers splits by rows also if only warm runs can gain
    (`tvm_sched.relax.variants.row_regions`). ``row_parts`` splits the whole model
    (`tvm_sched.relax.variants.split_rows`). With ``gpus``, operators have demands on the GPUs of that topology
    (`tvm_sched.relax.problem.demands`), which takes a tenth of a second for each kernel.
    """
    archs = [device.arch for device in gpus.devices if device.kind == "cuda"] if gpus else ()
    variants = OfferVariants(pieces, unbound=True, rows=rows)
    passes = [
        LowerToKernels(libraries=(), after_fusion=[variants], before_fusion=[SplitRows(row_parts)]),
        PrepareKernels(schedule=False),
    ]
    if archs:
        passes.insert(1, DescribeLaunches(archs))
    mod = tvm.transform.Sequential(passes)(decoder_module(config, batch, tokens, phase=phase, dtype=dtype))
    extraction = extract_variants(mod)
    if gpus:
        extraction = with_demands(mod, extraction, gpus)
    return extraction.graph, extraction.groups


def _check(config: DecoderConfig, batch: int, tokens: int, phase: str, dtype: str) -> None:
    for what, size in (("batch", batch), ("tokens", tokens)):
        if size < 1:
            raise InputError(f"{config.name}: {what} is {size}; it must be 1 or more")
    if phase not in PHASES:
        raise InputError(f"{config.name}: phase is {phase!r}; allowed are {', '.join(PHASES)}")
    if dtype not in ("float32", "float16"):
        raise InputError(f"{config.name}: dtype is {dtype!r}; 'float32' or 'float16' is allowed")
    most = config.positions - (phase == "decode")
    if config.positions and tokens > most:
        raise InputError(
            f"{config.name}: {tokens} tokens; the model has {config.positions} positions, so at most {most}"
        )
