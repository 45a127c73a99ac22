"""The workload of a language model (context, batch, tokens) and the number formats, which determine memory and times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from tvm_sched_runtime.errors import InputError, did_you_mean

from .gguf_mixtures import MIXTURES, Place, format_of


@dataclass(frozen=True)
class NumberFormat:
    """A number format: bytes of weights or of cache entries in memory."""

    name: str
    block: int
    block_bytes: int
    """Numbers that share a scale, and the bytes of such a block with its scales. A row is rounded up to whole blocks.
    """
    compute: str = "float16"
    """The dtype in which matrix products are computed."""
    table: str = "fp16"
    output: str = "fp16"
    """Formats of the embedding table and of the last layer where the linear layers of the blocks have this one."""
    mixed: bool = field(default=False, repr=False)
    """Whether the matrices of the blocks have formats of their own (`gguf_mixtures`); `block` is then that of most."""

    def of(self, at: Place) -> NumberFormat:
        """Return the format of a matrix."""
        return FORMATS[format_of(self.name, at)] if self.mixed else self

    def size(self, rows: int, columns: int) -> int:
        """Return the bytes of a matrix whose rows of ``columns`` numbers are contiguous."""
        return rows * math.ceil(columns / self.block) * self.block_bytes


def _plain(name: str, size: int, compute: str) -> NumberFormat:
    return NumberFormat(name, 1, size, compute, name, name)


def _ggml(name: str, block: int, size: int, output: str = "q6_k") -> NumberFormat:
    return NumberFormat(name, block, size, "float16", name, output)


def _mixture(name: str, base: NumberFormat) -> NumberFormat:
    return replace(base, name=name, table=base.table, mixed=True)


_BLOCKS = {
    each.name: each
    for each in (
        # Blocks of llama.cpp (ggml-common.h); its files keep the last layer in q6_K.
        _ggml("q4_0", 32, 18),
        _ggml("q4_1", 32, 20),
        _ggml("q5_0", 32, 22),
        _ggml("q5_1", 32, 24),
        _ggml("q8_0", 32, 34, "q8_0"),
        _ggml("q2_k", 256, 84),
        _ggml("q3_k", 256, 110),
        _ggml("q4_k", 256, 144),
        _ggml("q5_k", 256, 176),
        _ggml("q6_k", 256, 210),
        _ggml("iq4_nl", 32, 18),
        _ggml("iq4_xs", 256, 136),
    )
}
FORMATS = MappingProxyType(
    {
        each.name: each
        for each in (
            _plain("fp32", 4, "float32"),
            _plain("fp16", 2, "float16"),
            _plain("bf16", 2, "bfloat16"),
            # Weights alone; embedding table and last layer remain 16 bits wide (bitsandbytes, compressed-tensors).
            NumberFormat("fp8", 1, 1),
            NumberFormat("int8", 1, 1),
            # GPTQ and AWQ: 128 numbers of 4 bits share a 16-bit scale and a 4-bit zero point, which is stored in 2 bytes.
            NumberFormat("int4", 128, 128 // 2 + 4),
            *_BLOCKS.values(),
            *(
                _mixture(name, _BLOCKS[name.removesuffix("_s").removesuffix("_m").removesuffix("_l")])
                for name in MIXTURES
            ),
        )
    }
)
"""Formats of weights by name; those of llama.cpp with the true bytes of a block. A name that llama.cpp gives to files is the
mixture that such files hold (``q4_k_m``); ``q3_k`` to ``q5_k`` are one format for all matrices."""

CACHE_FORMATS = ("fp32", "fp16", "bf16", "fp8", "q8_0", "q4_0")
"""Formats of keys and values."""


class TokenWorkload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The requests that a language model serves at once: context, batch and number formats.

    Parameters
    ----------
    context : int
        Tokens that the cache of keys and values holds of each sequence, the new ones included.
    batch : int
        Sequences at once.
    new_tokens : int
        Of ``context``, how many are generated one by one; the others are the prompt. 0: a quarter, at most 128.
    dtype : str
        Format of the weights, of `FORMATS`.
    cache_dtype : str
        Format of keys and values, of `CACHE_FORMATS`; empty: 16 bits, or 32 with weights of 32.

    Raises
    ------
    InputError
        A number below 1, more new tokens than the context has room for beside a prompt, an unknown format.

    Examples
    --------
    >>> from tvm_sched_plans import TokenWorkload
    >>> TokenWorkload(context=8192, batch=2).cache
    NumberFormat(name='fp16', block=1, block_bytes=2, compute='float16', table='fp16', output='fp16')
    """

    context: int = 4096
    batch: int = 1
    new_tokens: int = 0
    dtype: str = "fp16"
    cache_dtype: str = ""

    def __post_init__(self) -> None:
        for name, least in (("context", 2), ("batch", 1), ("new_tokens", 0)):
            value = getattr(self, name)
            if not least <= value <= 1 << 30:
                raise InputError(f"{name} is {value}; {least} to {1 << 30} is allowed")
        if self.new_tokens >= self.context:
            raise InputError(f"new_tokens is {self.new_tokens}, context {self.context}; a prompt of 1 must fit, too")
        if self.dtype not in FORMATS:
            raise InputError(_unknown("dtype", self.dtype, FORMATS))
        if self.cache_dtype and self.cache_dtype not in CACHE_FORMATS:
            raise InputError(_unknown("cache_dtype", self.cache_dtype, CACHE_FORMATS))

    @property
    def generated(self) -> int:
        """New tokens of each sequence."""
        return self.new_tokens or max(1, min(128, self.context // 4))

    @property
    def prompt(self) -> int:
        """Tokens of each sequence's prompt."""
        return self.context - self.generated

    @property
    def weights(self) -> NumberFormat:
        """Format of the linear layers' weights."""
        return FORMATS[self.dtype]

    @property
    def cache(self) -> NumberFormat:
        """Format of keys and values."""
        return FORMATS[self.cache_dtype or {"fp32": "fp32", "bf16": "bf16"}.get(self.dtype, "fp16")]


def _unknown(what: str, name: str, known: object) -> str:
    names = list(known)  # type: ignore[call-overload]
    return f"{what} is {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}"
